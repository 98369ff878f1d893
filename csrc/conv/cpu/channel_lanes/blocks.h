// How a row of the outputs of a depthwise convolution is cut into blocks, and which runs of taps
// each of them meets.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/channel_lanes/plan.h"
#include "conv/cpu/channel_lanes/tap_kernels.h"
#include "conv/cpu/shared/problems/phases.h"

namespace torch_dnnl {

class RowBlocks {
 public:
  // most: outputs of a block.
  RowBlocks(const ChannelLanesPlan& plan, int64_t most) : plan_(plan), most_(most) {}

  // Lists the blocks of a tile, which are those of all of its rows.
  void select_tile(const ChannelLanesPlan::Unit& unit) {
    if (unit.tile == tile_)
      return;
    tile_ = unit.tile;
    blocks.clear();
    runs.clear();
    for (const Phase& phase : phases_)
      list_blocks(unit, phase);
    // Those of all phases together, as their outputs lie in memory.
    std::ranges::stable_sort(blocks, {}, &PixelBlock::first_out);
  }

  std::vector<PixelBlock> blocks;
  std::vector<TapRun> runs; // of the blocks

 private:
  void list_blocks(const ChannelLanesPlan::Unit& unit, const Phase& phase) {
    const bool begins_at_tile = !plan_.reads_image && !plan_.has_planes; // the row in memory
    const int64_t origin = begins_at_tile ? plan_.first_in(2, unit.first) : 0;
    const int64_t out_step = plan_.uses_outputs ? plan_.out_stride[4] : plan_.lanes;
    const bool has_runs = phase.tap_in_step == 1 && phase.in_step <= kMostRunStride;
    const auto outputs_before = [&](int64_t x) {
      return ceil_div(std::max<int64_t>(x - phase.out, 0), phase.out_step);
    };
    const int64_t end = outputs_before(unit.first + unit.width);
    int64_t count;
    for (int64_t j = outputs_before(unit.first); j < end; j += count) {
      count = outputs_of_block(end - j, most_);
      const int64_t in = phase.in + j * phase.in_step;
      PixelBlock b;
      b.outputs = count;
      b.stride = has_runs ? phase.in_step : 1;
      b.first_pixel = (in - origin) * plan_.in_step;
      b.first = phase.out + j * phase.out_step - unit.first;
      b.first_out = b.first * out_step;
      b.pixel_step = (has_runs ? 1 : phase.in_step) * plan_.in_step;
      b.out_step = phase.out_step * out_step;
      b.weight_step = phase.tap_step * plan_.in_channels * plan_.lanes;
      b.first_run = static_cast<int64_t>(runs.size());
      for (int64_t m = 0, taps; m < phase.taps; m += taps) {
        taps = has_runs ? longest_run(phase.taps - m) : 1;
        list_run(phase, in, count, m, taps);
      }
      b.runs = static_cast<int64_t>(runs.size()) - b.first_run;
      blocks.push_back(b);
    }
  }

  static int64_t longest_run(int64_t most) {
    return *std::find_if(
        std::begin(kRunTaps), std::end(kRunTaps), [&](int64_t taps) { return taps <= most; });
  }

  // Taps m, m + 1, ..., unless all pixels that they meet are outside the image. The first of
  // `outputs` outputs meets tap 0 at `in`.
  void list_run(const Phase& phase, int64_t in, int64_t outputs, int64_t m, int64_t taps) {
    const int64_t shift = m * phase.tap_in_step, tap = phase.tap + m * phase.tap_step;
    const int64_t step = taps == 1 ? phase.in_step : 1;
    const int64_t pixels = taps == 1 ? outputs : (outputs - 1) * phase.in_step + taps;
    const Range met = within(in + shift, step, plan_.in_size[2], pixels);
    for (int64_t i = 0; i < plan_.in_channels && met.begin < met.end; i++) {
      runs.push_back(
          {taps,
           shift * plan_.in_step + i * plan_.block * plan_.lanes,
           (tap * plan_.in_channels + i) * plan_.lanes,
           (1ull << met.end) - (1ull << met.begin)});
    }
  }

  const ChannelLanesPlan& plan_;
  const int64_t most_;
  const std::vector<Phase> phases_ = phases_of(plan_.p, 2);
  int64_t tile_ = -1;
};

} // namespace torch_dnnl
