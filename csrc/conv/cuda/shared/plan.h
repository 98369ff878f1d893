// How the product of gathered pixels with weights is cut into tiles.
//
// The rule counts on a GPU of 132 multiprocessors, as an H200 has. They are not asked of the GPU at
// hand, so that every GPU computes the same bits.
#pragma once

#include <algorithm>

#include "conv/cuda/shared/tile.h"
#include "core/math.h"

namespace torch_dnnl::cuda {

constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kBytesPerCycle = 2800; // of the whole memory

// What a tile of one stage costs a multiprocessor in cycles: the products, or what shared memory
// takes in and gives to the warps, 128 bytes a cycle. Products a cycle: mma.sync reaches some 5/8
// of the tensor cores of Hopper.
template <class T, class S, bool tensor_cores>
constexpr int64_t stage_cycles() {
  constexpr int64_t kRate = tensor_cores ? 1280 * 2 / sizeof(T) : 128 * 4 / sizeof(T);
  constexpr int64_t kProducts = int64_t(S::m) * S::n * kDepth<T> / kRate;
  constexpr int64_t kWarps = kDenseThreads / 32;
  constexpr int64_t kRows = S::m + S::n + kWarps * (S::warp_m + S::warp_n);
  return std::max(kProducts, kRows * kDepth<T> * int64_t(sizeof(T)) / 128);
}

// How the work of a problem is cut up.
struct DensePlan {
  int64_t row_tiles, column_tiles, splits;
  int64_t cycles; // of the multiprocessor that has most to do
};

// The pixels of the largest problem among those of all remainders.
inline int64_t most_pixels(const DenseProblem& p) {
  int64_t pixels = p.conv.n;
  for (int a = 0; a < 3; a++)
    pixels *= ceil_div(p.straight.size[a], p.residues[a]);
  return pixels;
}

template <class T, class S, bool tensor_cores>
DensePlan plan_gather(const DenseProblem& p) {
  DensePlan plan{};
  plan.row_tiles = ceil_div(most_pixels(p), S::m);
  plan.column_tiles = ceil_div(p.straight.channels, S::n);
  plan.splits = 1;
  const int64_t tiles = plan.row_tiles * plan.column_tiles * p.conv.groups * product(p.residues);
  plan.cycles = ceil_div(tiles, kMultiprocessors) * stage_cycles<T, S, tensor_cores>();
  return plan;
}

} // namespace torch_dnnl::cuda
