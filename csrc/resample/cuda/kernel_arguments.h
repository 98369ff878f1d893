// What the fast CUDA kernels share: their argument, where a thread works, how it reads a row, and
// how it makes rows of dst of rows of src.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/cuda/convert.h"
#include "core/cuda/divide.h"
#include "core/dispatch.h"
#include "core/numeric.h"
#include "resample/cuda/tap_table.h"

namespace torch_dnnl::cuda {

// What every kernel is told; see RowImages. Each worker, a thread or a block, takes a column of a
// strip of rows of dst.
template <class W>
struct KernelArguments {
  const void* src;
  void* dst;
  int64_t src_stride[4], dst_stride[4]; // of N, C, D, H
  int32_t height, row, src_row;         // of dst; elements in a row of dst and of src
  int32_t inner;
  int32_t rows_per_strip;
  int32_t elements_per_tile = 0; // where a worker is a block: its part of a row
  uint32_t workers;              // how many have work
  Divisor by_columns, by_strips, by_d, by_c, by_inner;
  bool has_empty_rows = false; // some outputs read nothing: they are `fill`
  uint64_t fill = 0;           // the bits of one element
  TapTables<W> tables;
};

// The argument of a kernel, with room for so many bytes of records where `tables` looks for them:
// neither filled nor copied before the launch.
template <class W, int kTableBytes>
struct ArgumentsWithTables : KernelArguments<W> {
  alignas(TapRecord) unsigned char records[kTableBytes];

  explicit ArgumentsWithTables(const KernelArguments<W>& args) : KernelArguments<W>(args) {
    using Base = KernelArguments<W>;
    static_assert(offsetof(Base, tables) + sizeof(TapTables<W>) == sizeof(Base));
    static_assert(sizeof(ArgumentsWithTables) == sizeof(Base) + kTableBytes);
  }
};

// Where a worker is. Workers that are neighbours in a row have neighbouring numbers.
struct Place {
  int32_t column, begin, end, d; // rows [begin, end) of dst, of plane d
  int64_t src, dst;              // offsets of the first plane of src and of the plane of dst
};

template <class W>
__device__ __forceinline__ Place place(const KernelArguments<W>& args, uint32_t worker) {
  Place p;
  p.column = static_cast<int32_t>(args.by_columns.split(worker));
  const auto strip = static_cast<int32_t>(args.by_strips.split(worker));
  p.begin = strip * args.rows_per_strip;
  p.end = min(p.begin + args.rows_per_strip, args.height);
  p.d = static_cast<int32_t>(args.by_d.split(worker));
  const int64_t c = args.by_c.split(worker), n = worker;
  p.src = n * args.src_stride[0] + c * args.src_stride[1];
  p.dst = n * args.dst_stride[0] + c * args.dst_stride[1] + p.d * args.dst_stride[2];
  return p;
}

// NaN stays NaN, with whatever bits the processor's conversion gives it.
template <class T, class C>
__device__ __forceinline__ T result(C value) {
  if constexpr (std::is_same_v<T, C>)
    return value;
  else if constexpr (std::is_integral_v<T>)
    return convert<T>(value);
  else
    return static_cast<T>(value);
}

template <class T>
__device__ __forceinline__ T fill_value(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Writes `fill` over what reads nothing: all outputs of a vector, or those of some columns.
template <class T, int n, class W, class Columns>
__device__ __forceinline__ void fill_empty(
    const KernelArguments<W>& args,
    const Columns& columns,
    bool all,
    PackedVector<T, n>& out) {
  Vector<T, n> filled = out.get();
#pragma unroll
  for (int v = 0; v < n; v++)
    if (all || columns.is_empty(v))
      filled.at[v] = fill_value<T>(args.fill);
  out.set(filled);
}

// The elements of a vector: 16 bytes, but no more than 8, so that sums stay in registers.
template <class T>
inline constexpr int kLanes = sizeof(T) == 1 ? 8 : static_cast<int>(kWidestAccess / sizeof(T));

// For all elements of a vector (kPixels: they belong to one pixel) what the W axis reads: offsets
// in a row of src, and weights. Of fewer than kTaps taps the last one is read several times, with
// that weight halved each time: exact, and right for infinities too. Of many taps, where more may
// be missing, those are zeros instead.
template <class W, int kTaps, int kVector, bool kPixels>
struct Columns {
  static constexpr int kGroups = kPixels ? 1 : kVector;
  static constexpr bool kHalves = kTaps <= 4 || !kPixels;
  int32_t offset[kGroups][kTaps];
  W weight[kGroups][kTaps];
  uint32_t empty = 0; // a bit for each group that reads nothing
  int32_t count = 0;  // of the last group

  __device__ __forceinline__ Columns(const KernelArguments<W>& args, int32_t column) {
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      uint32_t x = column * kVector + g;
      const auto channel = static_cast<int32_t>(args.by_inner.split(x));
      const Taps<W> taps = args.tables.row(args.tables.w, static_cast<int32_t>(x));
      empty |= static_cast<uint32_t>(taps.count == 0) << g;
      count = taps.count;
      W rest = 0;
#pragma unroll
      for (int k = 0; k < kTaps; k++) {
        const int32_t index = taps.first + min(k, taps.count - 1);
        offset[g][k] = taps.count == 0 ? 0 : index * args.inner + channel;
        if (k < taps.count)
          rest = taps.weights[index & (kTaps - 1)];
        const bool halve = kHalves && k >= taps.count - 1 && k < kTaps - 1;
        weight[g][k] = halve ? rest / 2 : kHalves || k < taps.count ? rest : 0;
        rest -= halve ? rest / 2 : 0;
      }
    }
  }

  // Adds what the row at `line` gives, times `scale`.
  template <class T>
  __device__ __forceinline__ void add(const T* line, W scale, W (&sum)[kVector]) const {
    W part[kVector] = {};
    if constexpr (kPixels) {
#pragma unroll
      for (int k = 0; k < kTaps; k++) {
        PackedVector<T, kVector> loaded;
        if (kHalves || k < count)
          loaded.load(line + offset[0][k]);
        W x[kVector];
        widen(loaded, x);
#pragma unroll
        for (int v = 0; v < kVector; v++)
          part[v] += weight[0][k] * x[v];
      }
    } else {
#pragma unroll
      for (int v = 0; v < kVector; v++) {
#pragma unroll
        for (int k = 0; k < kTaps; k++)
          part[v] += weight[v][k] * static_cast<W>(line[offset[v][k]]);
      }
    }
#pragma unroll
    for (int v = 0; v < kVector; v++)
      sum[v] += scale * part[v];
  }

  __device__ __forceinline__ bool is_empty(int v) const {
    return (empty >> (kPixels ? 0 : v) & 1) != 0;
  }
};

// The running sums of kernels.h, in the registers of a thread.
template <class W, int kSums, int kVector>
class RunningSums {
 public:
  __device__ __forceinline__ RunningSums(const KernelArguments<W>& args, const Place& at)
      : next_(args.tables.row(args.tables.h, at.begin).first),
        rows_(args.tables, args.tables.h, at.begin),
        readers_(args.tables, args.tables.h_transpose, next_) {}

  // Completes row y of dst, the one after the last: adds the rows of src that it reads beside those
  // added before. `weigh(row, sum)` adds a row, weighed along D and W.
  template <class F>
  __device__ __forceinline__ void complete(int32_t y, W (&completed)[kVector], F&& weigh) {
    const int32_t end = rows_.next(y).end();
    for (; next_ < end; next_++) {
      const Taps<W> readers = readers_.next(next_);
      W row[kVector] = {};
      weigh(next_, row);
#pragma unroll
      for (int i = 0; i < kSums; i++) {
        if (y + i < readers.first || y + i >= readers.end())
          continue;
        const W weight = readers.weights[(y + i) & (kSums - 1)];
#pragma unroll
        for (int v = 0; v < kVector; v++)
          sum_[i][v] += weight * row[v];
      }
    }
#pragma unroll
    for (int v = 0; v < kVector; v++) {
      completed[v] = sum_[0][v];
#pragma unroll
      for (int i = 1; i < kSums; i++)
        sum_[i - 1][v] = sum_[i][v];
      sum_[kSums - 1][v] = 0;
    }
  }

 private:
  W sum_[kSums][kVector] = {}; // of the rows of dst from the next one to be complete on
  int32_t next_;               // row of src
  TapRows<W> rows_, readers_;
};

// The kernel of threads that walk down a column of dst: of the sliding window, and of running sums
// of pixels and of windows.
// Columns: what a thread reads in a row of src. Rows: how rows of dst are made of rows of src.
template <class T, int kThreads, int kVector, class Columns, class Rows, int kTableBytes>
__global__ void __launch_bounds__(kThreads)
    column_kernel(const __grid_constant__ ArgumentsWithTables<compute_t<T>, kTableBytes> args) {
  using W = compute_t<T>;
  const uint32_t worker = blockIdx.x * kThreads + threadIdx.x;
  if (worker >= args.workers)
    return;
  const Place at = place(args, worker);
  const Columns columns(args, at.column);
  const TapLoop<W> planes = args.tables.loop(args.tables.d, at.d);
  const T* src = static_cast<const T*>(args.src) + at.src + planes.first * args.src_stride[2];
  T* dst = static_cast<T*>(args.dst) + at.dst + at.begin * args.dst_stride[3] + at.column * kVector;

  Rows rows(args, at);
  for (int32_t y = at.begin; y < at.end; y++) {
    W sum[kVector];
    rows.complete(y, sum, [&](int32_t row, W(&row_sum)[kVector]) {
      const T* line = src + row * args.src_stride[3]; // of the first plane
      planes.for_each([&](int32_t, W weight) {
        columns.add(line, weight, row_sum);
        line += args.src_stride[2];
      });
    });
    PackedVector<T, kVector> out = narrowed<T, /*kCanonical=*/false>(sum);
    if (args.has_empty_rows) {
      const bool all = planes.count == 0 || args.tables.row(args.tables.h, y).count == 0;
      fill_empty(args, columns, all, out);
    }
    out.store(dst);
    dst += args.dst_stride[3];
  }
}

// The types whose sums are kept in W and that kernels are compiled for.
template <class W>
using SummedTypes = std::conditional_t<
    std::is_same_v<W, double>,
    TypeList<double>,
    TypeList<float, c10::BFloat16, c10::Half, uint8_t>>;

} // namespace torch_dnnl::cuda
