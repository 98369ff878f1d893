// The kernel for any layout that running_sums.h describes.
#include "resample/cuda/running_sums.h"
#include "resample/cuda/running_sums_device.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;

// The W axis of one pixel, with any number of taps: the weights are read from the table.
template <class W, int kVector>
struct ColumnOfManyTaps {
  int32_t inner, channel;
  TapLoop<W> taps;
  bool empty;

  __device__ __forceinline__ ColumnOfManyTaps(const KernelArguments<W>& args, int32_t column)
      : ColumnOfManyTaps(args, static_cast<uint32_t>(column * kVector)) {}

  template <class T>
  __device__ __forceinline__ void add(const T* line, W scale, W (&sum)[kVector]) const {
    W part[kVector] = {};
    taps.for_each([&](int32_t index, W weight) {
      const Vector<T, kVector> x = load_vector<kVector>(line + index * inner + channel);
#pragma unroll
      for (int v = 0; v < kVector; v++)
        part[v] += weight * static_cast<W>(x.at[v]);
    });
#pragma unroll
    for (int v = 0; v < kVector; v++)
      sum[v] += scale * part[v];
  }

 private:
  // `element` is divided by inner first, which leaves the pixel.
  __device__ __forceinline__ ColumnOfManyTaps(const KernelArguments<W>& args, uint32_t element)
      : inner(args.inner),
        channel(static_cast<int32_t>(args.by_inner.split(element))),
        taps(args.tables.row(args.tables.w, static_cast<int32_t>(element)), args.tables.w),
        empty(taps.count() == 0) {}
};

template <class T, int kSums, int kVector, class Column>
__global__ void __launch_bounds__(kThreads)
    sum_pixels_kernel(const __grid_constant__ KernelArguments<compute_t<T>> args) {
  using W = compute_t<T>;
  const uint32_t worker = blockIdx.x * kThreads + threadIdx.x;
  if (worker >= args.workers)
    return;
  const Place at = place(args, worker);
  const Column column(args, at.column);
  const TapLoop<W> planes(args.tables.row(args.tables.d, at.d), args.tables.d);
  const T* src = static_cast<const T*>(args.src) + at.src + planes.first() * args.src_stride[2];
  T* dst = static_cast<T*>(args.dst) + at.dst + at.column * kVector;

  RunningSums<W, kSums, kVector> sums(args, at);
  for (int32_t y = at.begin; y < at.end; y++) {
    W sum[kVector];
    sums.complete(y, sum, [&](int32_t row, W(&row_sum)[kVector]) {
      add_planes(args, planes, src + row * args.src_stride[3], column, row_sum);
    });
    Vector<T, kVector> out;
#pragma unroll
    for (int v = 0; v < kVector; v++)
      out.at[v] = result<T>(sum[v]);
    if (args.has_empty_rows) {
      const bool is_empty =
          column.empty || planes.count() == 0 || args.tables.row(args.tables.h, y).count == 0;
      fill_if(is_empty, out, args.fill);
    }
    store_vector<kVector>(dst + y * args.dst_stride[3], out);
  }
}

template <class W>
void run(
    const ResamplePlan<W>& plan,
    void (*kernel)(KernelArguments<W>),
    int64_t open,
    int64_t w_slots,
    int64_t vector) {
  const RowImages& m = plan.images;
  const Workers workers = workers_for(m, m.row() / vector, 1);
  KernelArguments<W> args = make_arguments(plan, workers);
  const std::optional<Scratch> memory = make_sum_tables(plan, args, open, w_slots);
  const dim3 blocks(ceil_div(args.workers, kThreads));
  launch(kernel, blocks, dim3(kThreads), 0, args);
}

template <class T, int kSums, class W>
void run(const ResamplePlan<W>& plan) {
  constexpr int kVector = kLanes<T>, kTaps = 4;
  const RowImages& m = plan.images;
  const int64_t width = plan.tables[2]->width;
  if (m.inner % kVector != 0 || !m.stores(kVector) || !m.loads(kVector)) {
    const auto kernel = sum_pixels_kernel<T, kSums, 1, ColumnOfManyTaps<W, 1>>;
    run(plan, kernel, kSums, width, 1);
  } else if (width > 1 && width <= kTaps) {
    const auto kernel = sum_pixels_kernel<T, kSums, kVector, Columns<W, kTaps, kVector, true>>;
    run(plan, kernel, kSums, kTaps, kVector);
  } else {
    const auto kernel = sum_pixels_kernel<T, kSums, kVector, ColumnOfManyTaps<W, kVector>>;
    run(plan, kernel, kSums, width, kVector);
  }
}

} // namespace

template <class W>
void sum_pixels(const ResamplePlan<W>& plan) {
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t sums = readers_of(plan)->width;
    if (sums <= 2) {
      run<T, 2>(plan);
    } else if (sums <= 4) {
      run<T, 4>(plan);
    } else {
      run<T, kMostRunningSums>(plan);
    }
  });
}

template void sum_pixels(const ResamplePlan<float>&);
template void sum_pixels(const ResamplePlan<double>&);

} // namespace torch_dnnl::cuda
