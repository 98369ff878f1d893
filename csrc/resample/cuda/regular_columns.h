// Rows whose length doubles, or becomes a half or a quarter: what neighbouring outputs read lies in
// one run of src, the same for every vector of outputs.
#pragma once

#include <algorithm>
#include <bit>

#include "resample/cuda/plan.h"

namespace torch_dnnl::cuda {

// For rows of dst that are kUp / kDown times as long as those of src: each output reads a window of
// kTaps elements, as far as the row has them. So a vector of outputs reads kOwn elements of its own
// and kBeside on either side; beyond the ends of the row these are 0.
template <class W, int kUp, int kDown, int kTaps, int kVector>
struct RegularColumns {
  static_assert((kUp == 2 && kDown == 1) || (kUp == 1 && (kDown == 2 || kDown == 4)));
  static constexpr int kOwn = kVector * kDown / kUp;
  static constexpr int kBeside = kUp == 2 ? kTaps / 2 : (kTaps - kDown) / 2;
  static constexpr int kHalo = std::bit_ceil(static_cast<unsigned>(kBeside)); // 1 if kBeside is 0
  static_assert(kHalo <= kOwn && kTaps % 2 == 0);

  int32_t first; // of the own elements
  bool has_before, has_behind;
  W weight[kVector][kTaps];

  // Where the window of an output begins, counted from kBeside before that of output 0.
  TORCH_DNNL_HD static constexpr int64_t begin(int64_t output) {
    return kUp == 2 ? (output + 1) / 2 : output * kDown;
  }

  __device__ __forceinline__ RegularColumns(const KernelArguments<W>& args, int32_t column)
      : first(column * kOwn), has_before(first > 0), has_behind(first + kOwn < args.src_row) {
#pragma unroll
    for (int v = 0; v < kVector; v++) {
      const Taps<W> taps = args.tables.row(args.tables.w, column * kVector + v);
#pragma unroll
      for (int k = 0; k < kTaps; k++) {
        const int32_t index = first - kBeside + static_cast<int32_t>(begin(v)) + k;
        const bool exists = index >= taps.first && index < taps.end();
        weight[v][k] = exists ? taps.weights[index & (kTaps - 1)] : W(0);
      }
    }
  }

  static bool can_read(const RowImages& m, const HostTable<W>& table) {
    const int64_t element = c10::elementSize(m.dtype);
    if (m.inner != 1 || table.out * kDown != table.in * kUp || !m.stores(kVector) ||
        !m.loads(std::min<int64_t>(kOwn, kWidestAccess / element)))
      return false;
    for (int64_t x = 0; x < table.out; x++) {
      const int64_t from = begin(x) - kBeside, first = std::max<int64_t>(from, 0);
      if (table.start[x] != first ||
          table.count[x] != std::min<int64_t>(from + kTaps, table.in) - first)
        return false;
    }
    return true;
  }

  // Neighbouring elements, in vectors as wide as can be.
  template <class T, int n>
  struct Run {
    static constexpr int kChunk = std::min<int>(n, kWidestAccess / sizeof(T));
    PackedVector<T, kChunk> chunks[n / kChunk];

    __device__ __forceinline__ void load(const T* from) {
#pragma unroll
      for (int i = 0; i < n / kChunk; i++)
        chunks[i].load(from + i * kChunk);
    }
    __device__ __forceinline__ void widen_to(W* elements) const {
#pragma unroll
      for (int i = 0; i < n / kChunk; i++) {
        W chunk[kChunk];
        widen(chunks[i], chunk);
#pragma unroll
        for (int e = 0; e < kChunk; e++)
          elements[i * kChunk + e] = chunk[e];
      }
    }
  };

  // Adds what the row at `line` gives, times `scale`.
  template <class T>
  __device__ __forceinline__ void add(const T* line, W scale, W (&sum)[kVector]) const {
    Run<T, kHalo> before{}, behind{};
    Run<T, kOwn> own;
    if (kBeside > 0 && has_before)
      before.load(line + first - kHalo);
    own.load(line + first);
    if (kBeside > 0 && has_behind)
      behind.load(line + first + kOwn);
    W x[kHalo + kOwn + kHalo];
    before.widen_to(x);
    own.widen_to(x + kHalo);
    behind.widen_to(x + kHalo + kOwn);
#pragma unroll
    for (int v = 0; v < kVector; v++) {
      W part = 0;
#pragma unroll
      for (int k = 0; k < kTaps; k++)
        part += weight[v][k] * x[kHalo - kBeside + begin(v) + k];
      sum[v] += scale * part;
    }
  }

  __device__ __forceinline__ bool is_empty(int) const {
    return false;
  }
};

} // namespace torch_dnnl::cuda
