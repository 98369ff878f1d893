// The kernels for few taps, and for one that is copied.
#include "core/dispatch.h"
#include "resample/cuda/kernels.h"
#include "resample/cuda/regular_columns.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 256;

// The rows of src that a row of dst reads, weighed along D and W, in registers.
template <class W, int kTaps, int kVector>
class WindowOfRows {
 public:
  __device__ __forceinline__ WindowOfRows(const KernelArguments<W>& args, const Place& at)
      : rows_(args.tables, args.tables.h, at.begin) {
#pragma unroll
    for (int slot = 0; slot < kTaps; slot++)
      held_[slot] = -1;
  }

  // Row y of dst, the one after the last. `weigh(row, sum)` adds a row of src, weighed along D and
  // W.
  template <class F>
  __device__ __forceinline__ void complete(int32_t y, W (&sum)[kVector], F&& weigh) {
    const Taps<W> rows = rows_.next(y);
#pragma unroll
    for (int v = 0; v < kVector; v++)
      sum[v] = 0;
#pragma unroll
    for (int slot = 0; slot < kTaps; slot++) {
      const int32_t tap = (slot - rows.first) & (kTaps - 1), row = rows.first + tap;
      if (tap >= rows.count)
        continue;
      if (held_[slot] != row) {
        held_[slot] = row;
#pragma unroll
        for (int v = 0; v < kVector; v++)
          window_[slot][v] = 0;
        weigh(row, window_[slot]);
      }
      const W weight = rows.weights[slot];
#pragma unroll
      for (int v = 0; v < kVector; v++)
        sum[v] += weight * window_[slot][v];
    }
  }

 private:
  TapRows<W> rows_;
  W window_[kTaps][kVector];
  int32_t held_[kTaps]; // which row of src each slot has
};

// One tap, which is copied.
template <class T, int kVector, bool kPixels, int kTableBytes>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ ArgumentsWithTables<float, kTableBytes> args) {
  const uint32_t worker = blockIdx.x * kThreads + threadIdx.x;
  if (worker >= args.workers)
    return;
  const Place at = place(args, worker);
  const Columns<float, 1, kVector, kPixels> columns(args, at.column);
  const Taps<float> planes = args.tables.row(args.tables.d, at.d);
  const T* src = static_cast<const T*>(args.src) + at.src + planes.first * args.src_stride[2];
  T* dst = static_cast<T*>(args.dst) + at.dst + at.begin * args.dst_stride[3] + at.column * kVector;

  PackedVector<T, kVector> out;
  TapRows<float> rows_of_dst(args.tables, args.tables.h, at.begin);
  int32_t held = -1;
  for (int32_t y = at.begin; y < at.end; y++) {
    const Taps<float> rows = rows_of_dst.next(y);
    const bool is_empty = rows.count == 0 || planes.count == 0;
    if (held != rows.first && !is_empty) {
      held = rows.first;
      const T* line = src + rows.first * args.src_stride[3];
      if constexpr (kPixels) {
        out.load(line + columns.offset[0][0]);
      } else {
        Vector<T, kVector> elements;
#pragma unroll
        for (int v = 0; v < kVector; v++)
          elements.at[v] = line[columns.offset[v][0]];
        out.set(elements);
      }
    }
    PackedVector<T, kVector> filled = out;
    if (args.has_empty_rows)
      fill_empty(args, columns, is_empty, filled);
    filled.store(dst);
    dst += args.dst_stride[3];
  }
}

template <class T, int kTaps, int kVector, class Columns>
void slide(const ResamplePlan<compute_t<T>>& plan) {
  using Rows = WindowOfRows<compute_t<T>, kTaps, kVector>;
  run_columns<T, kThreads, kVector, Columns, Rows>(plan, {kTaps, kTaps});
}

// The widest stores that the row of dst allows, and loads where the vector is one pixel's.
template <class T, int kTaps, class W>
void slide(const ResamplePlan<W>& plan) {
  constexpr int kPixel = kLanes<T>, kVector = std::min(kPixel, 16 / kTaps);
  const RowImages& m = plan.images;
  if (m.stores(kPixel) && m.loads(kPixel) && m.inner % kPixel == 0)
    return slide<T, kTaps, kPixel, Columns<W, kTaps, kPixel, true>>(plan);
  if constexpr (kPixel >= kTaps) {
    using Doubled = RegularColumns<W, 2, 1, kTaps, kPixel>;
    if (Doubled::can_read(m, *plan.tables[2]))
      return slide<T, kTaps, kPixel, Doubled>(plan);
  }
  m.stores(kVector) ? slide<T, kTaps, kVector, Columns<W, kTaps, kVector, false>>(plan)
                    : slide<T, kTaps, 1, Columns<W, kTaps, 1, false>>(plan);
}

template <class T, int kVector, bool kPixels>
void copy(const ResamplePlan<float>& plan) {
  const KernelInstances<float> kernel{
      copy_kernel<T, kVector, kPixels>, copy_kernel<T, kVector, kPixels>};
  run_threads(plan, kernel, kThreads, kVector, {1, 1});
}

template <class T>
void copy(const ResamplePlan<float>& plan) {
  constexpr int kVector = kWidestAccess / sizeof(T);
  const RowImages& m = plan.images;
  if (m.stores(kVector) && m.loads(kVector) && m.inner % kVector == 0)
    copy<T, kVector, true>(plan);
  else if (m.stores(kVector))
    copy<T, kVector, false>(plan);
  else
    copy<T, 1, false>(plan);
}

} // namespace

template <class W>
void slide_window(const ResamplePlan<W>& plan) {
  const int64_t taps = std::max(plan.tables[1]->width, plan.tables[2]->width);
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&]<class T>(std::type_identity<T>) {
    taps <= 2 ? slide<T, 2>(plan) : slide<T, 4>(plan);
  });
}

template void slide_window(const ResamplePlan<float>&);
template void slide_window(const ResamplePlan<double>&);

void copy_elements(const ResamplePlan<float>& plan) {
  dispatch_bytes(c10::elementSize(plan.images.dtype), [&](auto tag) {
    copy<typename decltype(tag)::type>(plan);
  });
}

} // namespace torch_dnnl::cuda
