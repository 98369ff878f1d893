// The kernel for any layout that open_sums.h describes.
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

  __device__ __forceinline__ ColumnOfManyTaps(const Job<W>& job, int32_t column)
      : ColumnOfManyTaps(job, static_cast<uint32_t>(column * kVector)) {}

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
  __device__ __forceinline__ ColumnOfManyTaps(const Job<W>& job, uint32_t element)
      : inner(job.inner),
        channel(static_cast<int32_t>(job.by_inner.split(element))),
        taps(job.tables.row(job.tables.w, static_cast<int32_t>(element)), job.tables.w),
        empty(taps.count() == 0) {}
};

template <class T, int kOpen, int kVector, class Column>
__global__ void __launch_bounds__(kThreads)
    sum_pixels_kernel(const __grid_constant__ Job<compute_t<T>> job) {
  using W = compute_t<T>;
  const uint32_t worker = blockIdx.x * kThreads + threadIdx.x;
  if (worker >= job.workers)
    return;
  const Place at = place(job, worker);
  const Column column(job, at.column);
  const TapLoop<W> planes(job.tables.row(job.tables.d, at.d), job.tables.d);
  const T* src = static_cast<const T*>(job.src) + at.src + planes.first() * job.src_stride[2];
  T* dst = static_cast<T*>(job.dst) + at.dst + at.column * kVector;

  OpenSums<W, kOpen, kVector> sums(job, at);
  for (int32_t y = at.begin; y < at.end; y++) {
    W sum[kVector];
    sums.complete(y, sum, [&](int32_t row, W(&row_sum)[kVector]) {
      add_planes(job, planes, src + row * job.src_stride[3], column, row_sum);
    });
    Vector<T, kVector> out;
#pragma unroll
    for (int v = 0; v < kVector; v++)
      out.at[v] = result<T>(sum[v]);
    if (job.has_empty_rows) {
      const bool is_empty =
          column.empty || planes.count() == 0 || job.tables.row(job.tables.h, y).count == 0;
      fill_if(is_empty, out, job.fill);
    }
    store_vector<kVector>(dst + y * job.dst_stride[3], out);
  }
}

template <class W>
void run(
    const Plan<W>& plan,
    const SharedTable<W>& readers,
    void (*kernel)(Job<W>),
    int64_t open,
    int64_t w_slots,
    int64_t vector) {
  const RowImages& m = plan.images;
  const Workers workers = workers_for(m, m.row() / vector, 1);
  Job<W> job = make_job(plan, workers);
  const std::optional<Scratch> memory = make_sum_tables(plan, job, readers, open, w_slots);
  const dim3 blocks((job.workers + kThreads - 1) / kThreads);
  launch(kernel, blocks, dim3(kThreads), 0, job);
}

template <class T, int kOpen, class W>
void run(const Plan<W>& plan, const SharedTable<W>& readers) {
  constexpr int kVector = kLanes<T>, kTaps = 4;
  const RowImages& m = plan.images;
  const int64_t width = plan.tables[2]->width;
  if (m.inner % kVector != 0 || !m.stores(kVector) || !m.loads(kVector)) {
    const auto kernel = sum_pixels_kernel<T, kOpen, 1, ColumnOfManyTaps<W, 1>>;
    run(plan, readers, kernel, kOpen, width, 1);
  } else if (width > 1 && width <= kTaps) {
    const auto kernel = sum_pixels_kernel<T, kOpen, kVector, Columns<W, kTaps, kVector, true>>;
    run(plan, readers, kernel, kOpen, kTaps, kVector);
  } else {
    const auto kernel = sum_pixels_kernel<T, kOpen, kVector, ColumnOfManyTaps<W, kVector>>;
    run(plan, readers, kernel, kOpen, width, kVector);
  }
}

} // namespace

template <class W>
void sum_pixels(const Plan<W>& plan, const SharedTable<W>& readers) {
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (readers->width <= 2) {
      run<T, 2>(plan, readers);
    } else if (readers->width <= 4) {
      run<T, 4>(plan, readers);
    } else {
      run<T, kMostOpenSums>(plan, readers);
    }
  });
}

template void sum_pixels(const Plan<float>&, const SharedTable<float>&);
template void sum_pixels(const Plan<double>&, const SharedTable<double>&);

} // namespace torch_dnnl::cuda
