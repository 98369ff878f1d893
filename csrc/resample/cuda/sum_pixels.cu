// The kernel of running sums for any layout; see kernels.h.
#include "resample/cuda/kernels.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;

// The W axis of one pixel, with any number of taps: the weights are read from the table.
template <class W, int kVector>
struct ColumnOfManyTaps {
  int32_t inner, channel;
  TapLoop<W> taps;

  __device__ __forceinline__ ColumnOfManyTaps(const KernelArguments<W>& args, int32_t column)
      : ColumnOfManyTaps(args, static_cast<uint32_t>(column * kVector)) {}

  template <class T>
  __device__ __forceinline__ void add(const T* line, W scale, W (&sum)[kVector]) const {
    W part[kVector] = {};
    taps.for_each([&](int32_t index, W weight) {
      PackedVector<T, kVector> loaded;
      loaded.load(line + index * inner + channel);
      W x[kVector];
      widen(loaded, x);
#pragma unroll
      for (int v = 0; v < kVector; v++)
        part[v] += weight * x[v];
    });
#pragma unroll
    for (int v = 0; v < kVector; v++)
      sum[v] += scale * part[v];
  }

  __device__ __forceinline__ bool is_empty(int) const {
    return taps.count == 0;
  }

 private:
  // `element` is divided by inner first, which leaves the pixel.
  __device__ __forceinline__ ColumnOfManyTaps(const KernelArguments<W>& args, uint32_t element)
      : inner(args.inner),
        channel(static_cast<int32_t>(args.by_inner.split(element))),
        taps(args.tables.loop(args.tables.w, static_cast<int32_t>(element))) {}
};

template <class T, int kSums, int kVector, class Columns>
void run(const ResamplePlan<compute_t<T>>& plan, int64_t w_slots) {
  using Rows = RunningSums<compute_t<T>, kSums, kVector>;
  run_columns<T, kThreads, kVector, Columns, Rows>(plan, {plan.tables[1]->width, w_slots, kSums});
}

template <class T, int kSums, class W>
void run(const ResamplePlan<W>& plan) {
  constexpr int kVector = kLanes<T>, kTaps = 4, kManyTaps = 8, kFewSums = 4;
  const RowImages& m = plan.images;
  const int64_t width = plan.tables[2]->width;
  if (m.inner % kVector != 0 || !m.stores(kVector) || !m.loads(kVector))
    run<T, kSums, 1, ColumnOfManyTaps<W, 1>>(plan, width);
  else if (width > 1 && width <= kTaps)
    run<T, kSums, kVector, Columns<W, kTaps, kVector, true>>(plan, kTaps);
  else if (kSums <= kFewSums && width > kTaps && width <= kManyTaps) // of more, registers run out
    run<T, std::min(kSums, kFewSums), kVector, Columns<W, kManyTaps, kVector, true>>(
        plan, kManyTaps);
  else
    run<T, kSums, kVector, ColumnOfManyTaps<W, kVector>>(plan, width);
}

} // namespace

template <class W>
void sum_pixels(const ResamplePlan<W>& plan) {
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&]<class T>(std::type_identity<T>) {
    const int64_t sums = readers_of(plan)->width;
    if (sums <= 2)
      run<T, 2>(plan);
    else if (sums <= 4)
      run<T, 4>(plan);
    else
      run<T, kMostRunningSums>(plan);
  });
}

template void sum_pixels(const ResamplePlan<float>&);
template void sum_pixels(const ResamplePlan<double>&);

} // namespace torch_dnnl::cuda
