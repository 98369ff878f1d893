#include "resample/cuda/sliding_window.h"

#include "core/dispatch.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 256;

// Two taps of an image whose rows are made twice as long: outputs 2i - 1 and 2i read the elements
// i - 1 and i. So a vector of outputs reads half a vector, its neighbour before and the one behind;
// beyond the ends of the row these are the element at the end.
template <class W, int kVector>
struct DoubledColumns {
  static constexpr int kHalf = kVector / 2;
  int32_t before, first, behind;
  W weight[kVector][2];

  __device__ __forceinline__ DoubledColumns(const KernelArguments<W>& args, int32_t column)
      : first(column * kHalf) {
    before = max(first - 1, 0);
    behind = min(first + kHalf, args.src_row - 1);
#pragma unroll
    for (int v = 0; v < kVector; v++) {
      const Taps<W> taps = args.tables.row(args.tables.w, column * kVector + v);
      const bool is_end = taps.count == 1; // both elements are the one at the end
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const W whole = taps.weights[is_end ? taps.first & 1 : (taps.first + k) & 1];
        weight[v][k] = is_end ? whole / 2 : whole;
      }
    }
  }

  static bool can_read(const HostTable<W>& table) {
    bool doubles = table.out == 2 * table.in;
    for (int64_t x = 0; doubles && x < table.out; x++) {
      const int64_t left = (x + 1) / 2 - 1;
      const bool is_end = x == 0 || x == table.out - 1;
      doubles = is_end ? table.count[x] == 1 : table.count[x] == 2 && table.start[x] == left;
    }
    return doubles;
  }

  template <class T>
  __device__ __forceinline__ void add(const T* line, W scale, W (&sum)[kVector]) const {
    W x[kHalf + 2];
    x[0] = static_cast<W>(line[before]);
    const Vector<T, kHalf> own = load_vector<kHalf>(line + first);
#pragma unroll
    for (int i = 0; i < kHalf; i++)
      x[i + 1] = static_cast<W>(own.at[i]);
    x[kHalf + 1] = static_cast<W>(line[behind]);
#pragma unroll
    for (int v = 0; v < kVector; v++) {
      const int i = (v + 1) / 2;
      sum[v] += scale * (weight[v][0] * x[i] + weight[v][1] * x[i + 1]);
    }
  }

  template <class T>
  __device__ __forceinline__ void
  fill_empty(Vector<T, kVector>& out, uint64_t fill, bool all) const {
    fill_if(all, out, fill);
  }
};

// Source: how a row of src is read, one of the two kinds of columns.
template <class T, int kTaps, int kVector, class Source>
__global__ void __launch_bounds__(kThreads)
    slide_window_kernel(const __grid_constant__ KernelArguments<compute_t<T>> args) {
  using W = compute_t<T>;
  const uint32_t worker = blockIdx.x * kThreads + threadIdx.x;
  if (worker >= args.workers)
    return;
  const Place at = place(args, worker);
  const Source columns(args, at.column);
  const TapLoop<W> planes(args.tables.row(args.tables.d, at.d), args.tables.d);
  const T* src = static_cast<const T*>(args.src) + at.src + planes.first() * args.src_stride[2];
  T* dst = static_cast<T*>(args.dst) + at.dst + at.column * kVector;

  W window[kTaps][kVector];
  int32_t held[kTaps]; // which row of src each slot has
#pragma unroll
  for (int slot = 0; slot < kTaps; slot++)
    held[slot] = -1;
  for (int32_t y = at.begin; y < at.end; y++) {
    const Taps<W> rows = args.tables.row(args.tables.h, y);
    W sum[kVector] = {};
#pragma unroll
    for (int slot = 0; slot < kTaps; slot++) {
      const int32_t tap = (slot - rows.first) & (kTaps - 1), row = rows.first + tap;
      if (tap >= rows.count)
        continue;
      if (held[slot] != row) {
        held[slot] = row;
#pragma unroll
        for (int v = 0; v < kVector; v++)
          window[slot][v] = 0;
        add_planes(args, planes, src + row * args.src_stride[3], columns, window[slot]);
      }
      const W weight = rows.weights[slot];
#pragma unroll
      for (int v = 0; v < kVector; v++)
        sum[v] += weight * window[slot][v];
    }
    Vector<T, kVector> out;
#pragma unroll
    for (int v = 0; v < kVector; v++)
      out.at[v] = result<T>(sum[v]);
    if (args.has_empty_rows)
      columns.fill_empty(out, args.fill, rows.count == 0 || planes.count() == 0);
    store_vector<kVector>(dst + y * args.dst_stride[3], out);
  }
}

// The same with one tap, which is copied.
template <class T, int kVector, bool kPixels>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ KernelArguments<float> args) {
  const uint32_t worker = blockIdx.x * kThreads + threadIdx.x;
  if (worker >= args.workers)
    return;
  const Place at = place(args, worker);
  const Columns<float, 1, kVector, kPixels> columns(args, at.column);
  const Taps<float> planes = args.tables.row(args.tables.d, at.d);
  const T* src = static_cast<const T*>(args.src) + at.src + planes.first * args.src_stride[2];
  T* dst = static_cast<T*>(args.dst) + at.dst + at.column * kVector;

  Vector<T, kVector> out;
  int32_t held = -1;
  for (int32_t y = at.begin; y < at.end; y++) {
    const Taps<float> rows = args.tables.row(args.tables.h, y);
    const bool is_empty = rows.count == 0 || planes.count == 0;
    if (held != rows.first && !is_empty) {
      held = rows.first;
      const T* line = src + rows.first * args.src_stride[3];
      if constexpr (kPixels) {
        out = load_vector<kVector>(line + columns.offset[0][0]);
      } else {
#pragma unroll
        for (int v = 0; v < kVector; v++)
          out.at[v] = line[columns.offset[v][0]];
      }
    }
    Vector<T, kVector> filled = out;
    if (args.has_empty_rows)
      columns.fill_empty(filled, args.fill, is_empty);
    store_vector<kVector>(dst + y * args.dst_stride[3], filled);
  }
}

template <class W>
void run(
    const ResamplePlan<W>& plan,
    void (*kernel)(KernelArguments<W>),
    int64_t taps,
    int64_t vector) {
  const RowImages& m = plan.images;
  const Workers workers = workers_for(m, m.row() / vector, 1);
  KernelArguments<W> args = make_arguments(plan, workers);
  TapTables<W>& tables = args.tables;
  const bool transposed = plan.problem.transposed;
  const std::optional<Scratch> memory = make_tables<W>(
      plan,
      args,
      {{&tables.d, 0, plan.tables[0]->width, plan.tables[0], transposed},
       {&tables.h, 1, taps, plan.tables[1], transposed},
       {&tables.w, 2, taps, plan.tables[2], transposed}});
  const dim3 blocks(ceil_div(args.workers, kThreads));
  launch(kernel, blocks, dim3(kThreads), 0, args);
}

// The widest stores that the row of dst allows, and loads where the vector is one pixel's.
template <class T, int kTaps, class W>
void slide(const ResamplePlan<W>& plan) {
  constexpr int kVector = std::min(kLanes<T>, 16 / kTaps);
  const RowImages& m = plan.images;
  if (m.stores(kLanes<T>) && m.loads(kLanes<T>) && m.inner % kLanes<T> == 0) {
    using Pixels = Columns<W, kTaps, kLanes<T>, true>;
    run(plan, slide_window_kernel<T, kTaps, kLanes<T>, Pixels>, kTaps, kLanes<T>);
    return;
  }
  if constexpr (kTaps == 2) {
    using Doubled = DoubledColumns<W, kVector>;
    if (m.inner == 1 && m.stores(kVector) && m.loads(kVector / 2) &&
        Doubled::can_read(*plan.tables[2])) {
      run(plan, slide_window_kernel<T, kTaps, kVector, Doubled>, kTaps, kVector);
      return;
    }
  }
  if (m.stores(kVector)) {
    run(plan,
        slide_window_kernel<T, kTaps, kVector, Columns<W, kTaps, kVector, false>>,
        kTaps,
        kVector);
  } else {
    run(plan, slide_window_kernel<T, kTaps, 1, Columns<W, kTaps, 1, false>>, kTaps, 1);
  }
}

template <class T>
void copy(const ResamplePlan<float>& plan) {
  constexpr int kVector = kWidestAccess / sizeof(T);
  const RowImages& m = plan.images;
  if (m.stores(kVector) && m.loads(kVector) && m.inner % kVector == 0) {
    run(plan, copy_kernel<T, kVector, true>, 1, kVector);
  } else if (m.stores(kVector)) {
    run(plan, copy_kernel<T, kVector, false>, 1, kVector);
  } else {
    run(plan, copy_kernel<T, 1, false>, 1, 1);
  }
}

} // namespace

template <class W>
void slide_window(const ResamplePlan<W>& plan) {
  const int64_t taps = std::max(plan.tables[1]->width, plan.tables[2]->width);
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    taps <= 2 ? slide<T, 2>(plan) : slide<T, 4>(plan);
  });
}

template void slide_window(const ResamplePlan<float>&);
template void slide_window(const ResamplePlan<double>&);

void copy_elements(const ResamplePlan<float>& plan) {
  switch (c10::elementSize(plan.images.dtype)) {
    case 1:
      return copy<uint8_t>(plan);
    case 2:
      return copy<uint16_t>(plan);
    case 4:
      return copy<uint32_t>(plan);
    default:
      return copy<uint64_t>(plan);
  }
}

} // namespace torch_dnnl::cuda
