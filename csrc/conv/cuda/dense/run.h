// Runs a dense problem in one type: the tile, the grid, and for the weights gradient the splits and
// their sum.
//
// The rule for splits counts on as many multiprocessors as that for tiles, whatever the GPU at hand
// has: see shared/plan.h.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "conv/cuda/dense/kernels.h"
#include "conv/cuda/shared/plan.h"

namespace torch_dnnl::cuda {

template <class T, class S, bool depth_in_rows, bool tensor_cores>
using SumsOf = std::conditional_t<
    tensor_cores,
    TensorCoreSums<T, S, depth_in_rows>,
    ExactSums<T, S, depth_in_rows>>;

inline int64_t gathered_columns(const DenseProblem& p) {
  return product(p.conv.kernel) * p.padded_channels;
}

// Chunks of elements pass through registers, of which large tiles of two images leave too few.
template <class S>
constexpr bool kWeightsByElements = S::m * S::n <= 64 * 64;

// Splits make work for all multiprocessors; each one's sums are written and read once more.
template <class T, class S, bool tensor_cores>
DensePlan plan_weights(const DenseProblem& p, bool vectors) {
  using Sum = typename SumsOf<T, S, true, tensor_cores>::Sum;
  constexpr int64_t kMostSplits = 512;
  constexpr int64_t kMostPixels = 16384; // sums of more lose too many bits of float32
  constexpr int64_t kFewestBlocks = 2 * kStages;
  DensePlan best{};
  best.row_tiles = ceil_div(gathered_columns(p), S::m);
  best.column_tiles = ceil_div(p.straight.channels, S::n);
  best.cycles = std::numeric_limits<int64_t>::max();
  if (!vectors && !kWeightsByElements<S>)
    return best;
  const int64_t blocks = ceil_div(most_pixels(p), kDepth<T>);
  const int64_t bytes =
      gathered_columns(p) * p.straight.channels * p.conv.groups * int64_t(sizeof(Sum));
  const int64_t most = std::clamp<int64_t>(kMaxGridZ / p.conv.groups, 1, kMostSplits);
  const int64_t fewest = std::min(ceil_div(most_pixels(p), kMostPixels), most);
  for (int64_t splits = fewest; splits <= most; splits++) {
    if (splits > fewest && blocks / splits < kFewestBlocks)
      break;
    const int64_t tiles = best.row_tiles * best.column_tiles * p.conv.groups * splits;
    const int64_t cycles = ceil_div(tiles, kMultiprocessors) * ceil_div(blocks, splits) *
            stage_cycles<T, S, tensor_cores>() +
        2 * splits * bytes / kBytesPerCycle;
    if (cycles < best.cycles) {
      best.cycles = cycles;
      best.splits = splits;
    }
  }
  return best;
}

// Adds up the splits: element (group, oc, tap, channel) of the padded sums.
template <class T, class Sum>
struct ReduceSplits {
  DenseProblem p;

  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ConvProblem& c = p.conv;
    const int64_t taps = product(c.kernel);
    const int64_t channels = p.padded_channels;
    const int64_t ic = position(i, channels, 1);
    if (ic >= c.ic)
      return;
    const int64_t count = c.groups * c.oc * taps * channels;
    const Sum* partial = static_cast<const Sum*>(p.partial) + i;
    Sum sum = 0;
    for (int64_t split = 0; split < p.splits; split++)
      sum += partial[split * count];
    int64_t offset = position(i, c.groups * c.oc, taps * channels) * c.weights_stride[0] +
        ic * c.weights_stride[1];
    int64_t stride = channels;
    for (int a = 2; a >= 0; a--) {
      offset += position(i, c.kernel[a], stride) * c.weights_stride[2 + a];
      stride *= c.kernel[a];
    }
    static_cast<T*>(c.out)[offset] = convert<T>(sum);
  }
};

template <class T, class S, bool tensor_cores>
void run_weights(DenseProblem p, dim3 grid, bool vectors) {
  using Sums = SumsOf<T, S, true, tensor_cores>;
  using Sum = typename Sums::Sum;
  const int64_t sums = p.conv.groups * p.straight.channels * gathered_columns(p);
  const Scratch partial(sums * p.splits * sizeof(Sum));
  p.partial = partial.data();
  p.blocks_per_split = ceil_div(ceil_div(most_pixels(p), kDepth<T>), p.splits);
  launch(
      vectors ? dense_weights_kernel<T, S, Sums, true>
              : dense_weights_kernel<T, S, Sums, !kWeightsByElements<S>>,
      grid,
      dim3(kDenseThreads),
      kWeightsBytes<T, S>,
      p);
  for_each_element(sums, ReduceSplits<T, Sum>{p});
}

// Adds up the splits of the straight image, a chunk of channels a call, and completes them.
template <class T, class Sum>
struct AddSplits {
  DenseProblem p;

  __device__ void operator()(int64_t i) const {
    const int64_t chunks = (p.straight.channels + kChunk<T> - 1) / kChunk<T>;
    const int64_t pixel = position(i, p.partial_pixels, chunks),
                  z = i / (chunks * p.partial_pixels);
    const Geometry g(p, static_cast<int>(z));
    if (pixel >= g.pixels(p))
      return;
    const int channel = static_cast<int>(position(i, chunks, 1)) * kChunk<T>;
    const int channels = min(kChunk<T>, p.straight.channels - channel);
    const Sum* partial = static_cast<const Sum*>(p.partial) +
        (z * p.splits * p.partial_pixels + pixel) * p.straight.channels + channel;
    Sum sums[kChunk<T>] = {};
    for (int64_t split = 0; split < p.splits; split++) {
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++)
        sums[e] += e < channels ? partial[e] : Sum(0);
      partial += p.partial_pixels * p.straight.channels;
    }
    const PixelIndex at = pixel_index(g, pixel);
    const int64_t residual =
        p.conv.residual == nullptr ? 0 : straight_offset(p, g, at, p.conv.residual_stride);
    store_chunk<T>(
        p, g, sums, straight_offset(p, g, at, p.straight.stride), residual, channel, channels);
  }
};

template <class T, class S, bool tensor_cores>
void run_gather(DenseProblem p, const DensePlan& plan, dim3 grid, bool vectors) {
  using Sums = SumsOf<T, S, false, tensor_cores>;
  using Sum = typename Sums::Sum;
  p.blocks_per_split = ceil_div(most_stages<T>(p), plan.splits);
  p.partial_pixels = most_pixels(p);
  const int64_t pixels = p.conv.groups * product(p.residues) * p.partial_pixels;
  std::optional<Scratch> partial;
  if (plan.splits > 1)
    partial.emplace(plan.splits * pixels * p.straight.channels * sizeof(Sum));
  p.partial = partial ? partial->data() : nullptr;
  launch(
      vectors ? dense_gather_kernel<T, S, Sums, true> : dense_gather_kernel<T, S, Sums, false>,
      grid,
      dim3(kDenseThreads),
      kGatherBytes<T, S, Sums>,
      p);
  if (partial)
    for_each_element(pixels * ceil_div(p.straight.channels, kChunk<T>), AddSplits<T, Sum>{p});
}

template <class T, class S, bool tensor_cores>
void run_shape(DenseProblem p, const DensePlan& plan, bool vectors) {
  p.column_tiles = plan.column_tiles;
  p.splits = plan.splits;
  const dim3 grid(
      static_cast<unsigned>(plan.row_tiles * plan.column_tiles),
      1,
      static_cast<unsigned>(p.conv.groups * product(p.residues) * plan.splits));
  if (p.conv.pass == ConvPass::backward_weights)
    return run_weights<T, S, tensor_cores>(p, grid, vectors);
  run_gather<T, S, tensor_cores>(p, plan, grid, vectors);
}

// With the best of the shapes; the first of equals.
template <class T, bool tensor_cores, class... S>
void run_best_shape(const DenseProblem& p, bool vectors) {
  const bool is_gather = p.conv.pass != ConvPass::backward_weights;
  const DensePlan plans[] = {
      is_gather ? plan_gather<T, S, tensor_cores>(
                      p, kMaySplit<S> ? sizeof(typename SumsOf<T, S, false, tensor_cores>::Sum) : 0)
                : plan_weights<T, S, tensor_cores>(p, vectors)...};
  const auto* best = std::min_element(
      std::begin(plans), std::end(plans), [](const DensePlan& a, const DensePlan& b) {
        return a.cycles < b.cycles;
      });
  const DensePlan* of_shape = plans;
  ((of_shape++ == best ? run_shape<T, S, tensor_cores>(p, *best, vectors) : void()), ...);
}

template <class T, bool tensor_cores>
void run_dense_product(const DenseProblem& p, bool vectors) {
  using Largest = Shape<128, 128, 2>;
  using Smallest = Shape<64, 64, 2>;
  if constexpr (sizeof(T) == 2)
    run_best_shape<T, true, Largest, Shape<256, 64, 4>, Smallest>(p, vectors);
  else if constexpr (tensor_cores)
    run_best_shape<T, true, Largest, Smallest>(p, vectors);
  else if constexpr (std::is_same_v<T, float>)
    run_best_shape<T, false, Shape<128, 64, 2>, Smallest>(p, vectors);
  else
    run_best_shape<T, false, Smallest>(p, vectors);
}

} // namespace torch_dnnl::cuda
