// How the product of gathered pixels with weights is cut into tiles.
#pragma once

#include <algorithm>
#include <limits>

#include "conv/cuda/shared/tile.h"
#include "core/math.h"

namespace torch_dnnl::cuda {

constexpr int64_t kBytesPerCycle = 2800; // of the whole memory
#ifdef TORCH_DNNL_CUDA_ON_HOST
constexpr int64_t kLaunchCycles = 0; // so that small problems have several launches
#else
constexpr int64_t kLaunchCycles = 4000;
#endif

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

// The stages of the longest sum.
template <class T>
int64_t most_stages(const DenseProblem& p) {
  int64_t taps = 1;
  for (int a = 0; a < 3; a++)
    taps *= ceil_div(p.conv.kernel[a], p.tap_step[a]);
  return ceil_div(taps * p.padded_channels, kDepth<T>);
}

// Where half of the multiprocessors would have no tile, as of one small image, sums are split: the
// parts are written, read and added up by one launch more. `sum_bytes`: of a sum; 0: they must not
// be split.
template <class T, class S, bool tensor_cores>
DensePlan plan_gather(const DenseProblem& p, int64_t sum_bytes) {
  constexpr int64_t kMostSplits = 32, kFewestStages = 2 * kStages;
  DensePlan best{};
  best.row_tiles = ceil_div(most_pixels(p), S::m);
  best.column_tiles = ceil_div(p.straight.channels, S::n);
  best.cycles = std::numeric_limits<int64_t>::max();
  const int64_t problems = p.conv.groups * product(p.residues), stages = most_stages<T>(p);
  const int64_t tiles = best.row_tiles * best.column_tiles * problems;
  const int64_t bytes = most_pixels(p) * problems * p.straight.channels * sum_bytes;
  const bool may_split = sum_bytes > 0 && 2 * tiles <= kMultiprocessors;
  const int64_t possible = std::min(stages / kFewestStages, kMaxGridZ / problems);
  const int64_t most = may_split ? std::clamp<int64_t>(possible, 1, kMostSplits) : 1;
  for (int64_t splits = 1; splits <= most; splits++) {
    int64_t cycles = ceil_div(tiles * splits, kMultiprocessors) * ceil_div(stages, splits) *
        stage_cycles<T, S, tensor_cores>();
    if (splits > 1)
      cycles += 2 * splits * bytes / kBytesPerCycle + kLaunchCycles;
    if (cycles < best.cycles) {
      best.cycles = cycles;
      best.splits = splits;
    }
  }
  return best;
}

} // namespace torch_dnnl::cuda
