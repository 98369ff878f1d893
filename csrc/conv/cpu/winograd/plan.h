// How forward and backward data by Winograd's filtering are cut into parts.
//
// In each position of a transformed tile there is a matrix product, tiles x input channels by input
// x output channels. The tiles are cut into blocks, the output channels into panels. Threads share
// the blocks or the panels; what is cut the other way is transformed first, in memory that all
// threads read.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/gather.h"
#include "conv/cpu/winograd/tiles.h"
#include "core/math.h"

namespace torch_dnnl {

// The layout of transformed weights, [group][panel][position][input channel][width]. Sizes are
// numbers of floats, unless they are named otherwise.
struct WinogradPanels {
  int64_t positions;                 // of a transformed tile
  int64_t in_channels, out_channels; // of a group
  int64_t width, panels;             // output channels of a panel; panels of a group

  // From the weights of a panel, [input channel][width], in one position to the next position.
  int64_t weights_step(int64_t channels) const {
    return channels * width + kApart;
  }
  int64_t weights_of_panel() const {
    return positions * weights_step(in_channels);
  }
  int64_t weights_of_group() const {
    return panels * weights_of_panel();
  }
  int64_t channels_of(int64_t panel) const {
    return std::min(width, out_channels - panel * width);
  }
};

struct WinogradPlan : WinogradPanels {
  int64_t tiles, block, blocks; // of all images; tiles of a block; blocks
  bool by_panels;               // whether threads share the panels, and not the blocks
  int64_t depth;                // input channels that are multiplied at a time
  int64_t groups_at_once;       // that are transformed first
  int64_t blocks_at_once;       // the same, by_panels

  // Input channels of a tile, as whole vectors.
  int64_t padded_in() const {
    return round_up(in_channels, kLanes<float>);
  }
  // From the inputs of a block, [tile][input channel], in one position to the next position.
  int64_t input_step() const {
    return block * padded_in() + kApart;
  }
  int64_t inputs_of_block() const {
    return positions * input_step();
  }
  // Sums of products of a block and a panel, [position][tile][width].
  int64_t sums_of_block() const {
    return positions * block * width;
  }

  int64_t tiles_of(int64_t index) const {
    return std::min(block, tiles - index * block);
  }
};

namespace winograd_detail {

// Output channels of a panel, the most.
inline constexpr int64_t kPanelWidth = 64;
// Tiles of a block, the most: their transformed inputs stay in the second-level cache.
inline constexpr int64_t most_tiles(int64_t tile) {
  return tile == 2 ? 48 : 24;
}
// Blocks that there are at least, for threads to share.
inline constexpr int64_t kBlocks = 8;
// Input channels whose weights stay in the second-level cache, by blocks and by panels.
inline constexpr int64_t kDepth = 128, kDepthOfPanels = 64;
// Floats of what is transformed first, and of a thread's sums of products with it: 10, 8 and 2 MB.
inline constexpr int64_t kMostWeights = int64_t(5) << 19, kMostInputs = int64_t(2) << 20;
inline constexpr int64_t kMostSums = int64_t(1) << 19;

// How many of n parts fit; one at least.
inline int64_t fitting(int64_t n, int64_t most, int64_t part) {
  return std::clamp<int64_t>(most / part, 1, n);
}

} // namespace winograd_detail

template <class F>
WinogradPanels winograd_panels(const GatherImages& images) {
  const int64_t out = images.out_channels;
  const int64_t width = std::min(winograd_detail::kPanelWidth, round_up(out, kLanes<float>));
  return {F::kPositions, images.in_channels, out, width, ceil_div(out, width)};
}

template <class F>
WinogradPlan plan_winograd(const GatherImages& images, const Tiles<F>& tiles) {
  using namespace winograd_detail;
  WinogradPlan plan{winograd_panels<F>(images)};
  plan.tiles = tiles.count;
  const int64_t most = most_tiles(F::kTile) / (plan.in_channels <= 128 ? 1 : 2);
  plan.block = std::min(
      plan.tiles, std::clamp(ceil_div(plan.tiles, kBlocks), most_tiles(F::kTile) / 4, most));
  plan.blocks = ceil_div(plan.tiles, plan.block);

  // What is transformed first takes less memory by far than the other, and never more than some MB.
  const int64_t groups = images.p.groups, weights = plan.weights_of_group();
  const bool has_many_weights = 2 * plan.tiles <= plan.out_channels || weights > kMostWeights;
  plan.by_panels = has_many_weights && plan.panels > 1;
  if (plan.by_panels) {
    plan.depth = kDepthOfPanels;
    plan.blocks_at_once = std::min(
        fitting(plan.blocks, kMostInputs, plan.inputs_of_block()),
        fitting(plan.blocks, kMostSums, plan.sums_of_block()));
    plan.groups_at_once =
        fitting(groups, kMostInputs, plan.blocks_at_once * plan.inputs_of_block());
  } else {
    plan.depth = kDepth;
    plan.blocks_at_once = plan.blocks;
    plan.groups_at_once = fitting(groups, kMostWeights, weights);
  }
  return plan;
}

} // namespace torch_dnnl
