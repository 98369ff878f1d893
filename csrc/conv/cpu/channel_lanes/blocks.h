// How a row of the outputs of a depthwise convolution is cut into blocks, and which runs of taps
// each of them meets.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/channel_lanes/plan.h"
#include "conv/cpu/channel_lanes/tap_kernels.h"

namespace torch_dnnl {

class RowBlocks {
 public:
  explicit RowBlocks(const ChannelLanesPlan& plan) : plan_(plan), phases_(phases_of(plan.p, 2)) {}

  // Lists the blocks of a tile, which are those of all of its rows.
  void select_tile(const ChannelLanesPlan::Unit& unit) {
    if (unit.tile == tile_)
      return;
    tile_ = unit.tile;
    blocks_.clear();
    runs_.clear();
    for (const Phase& phase : phases_)
      list_blocks(unit, phase);
    // Those of all phases together, as their outputs lie in memory.
    std::ranges::stable_sort(blocks_, {}, &PixelBlock::first_out);
  }

  // f(row, block, first, count) for all vectors of a unit, which ends with the `regular` ones or
  // one that overlaps the last of them. by_pixels: all channels of some pixels, which lie together
  // in a channels-last image, before the next pixels; otherwise the other way around, which reads
  // all weights of a vector while they are in the cache.
  template <class F>
  void for_each(
      const ChannelLanesPlan::Unit& unit,
      int64_t vectors,
      int64_t regular,
      bool by_pixels,
      const F& f) const {
    for (int64_t begin = 0, end; begin < vectors; begin = end) {
      end = by_pixels ? vectors : begin + 1;
      const int64_t count = std::min(end, regular) - begin;
      for (int64_t r = 0; r < unit.rows; r++) {
        for (const PixelBlock& block : blocks_) {
          if (count > 0)
            f(r, block, begin, count);
          if (end > regular)
            f(r, block, end - 1, 1);
        }
      }
    }
  }

  // What the kernels take beside a block; the shifts are those to the channels of a vector.
  template <class C>
  TapOperands<C>
  operands(const std::vector<TapRow<C>>& rows, int64_t pixel_shift, int64_t weight_shift) const {
    return {
        runs_.data(), rows.data(), static_cast<int64_t>(rows.size()), pixel_shift, weight_shift};
  }

 private:
  void list_blocks(const ChannelLanesPlan::Unit& unit, const Phase& phase) {
    const bool begins_at_tile = !plan_.reads_image && !plan_.cache.has_planes; // the row in memory
    const int64_t origin = begins_at_tile ? plan_.first_in(2, unit.first) : 0;
    const int64_t out_step = plan_.uses_outputs ? plan_.out_stride[4] : plan_.lanes;
    const bool has_runs = phase.tap_in_step == 1 && phase.in_step <= kMostRunStride;
    const auto outputs_before = [&](int64_t x) {
      return ceil_div(std::max<int64_t>(x - phase.out, 0), phase.out_step);
    };
    const int64_t end = outputs_before(unit.first + unit.width);
    int64_t count;
    for (int64_t j = outputs_before(unit.first); j < end; j += count) {
      count = ceil_div(end - j, ceil_div(end - j, kBlockPixels)); // blocks of equal size
      const int64_t in = phase.in + j * phase.in_step;
      PixelBlock b;
      b.outputs = count;
      b.stride = has_runs ? phase.in_step : 1;
      b.first_pixel = (in - origin) * plan_.in_step;
      b.first_out = (phase.out + j * phase.out_step - unit.first) * out_step;
      b.pixel_step = (has_runs ? 1 : phase.in_step) * plan_.in_step;
      b.out_step = phase.out_step * out_step;
      b.weight_step = phase.tap_step * plan_.inner * plan_.lanes;
      b.first_run = static_cast<int64_t>(runs_.size());
      for (int64_t m = 0, taps; m < phase.taps; m += taps) {
        taps = has_runs ? longest_run(phase.taps - m) : 1;
        list_run(phase, in, count, m, taps);
      }
      b.runs = static_cast<int64_t>(runs_.size()) - b.first_run;
      blocks_.push_back(b);
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
    for (int64_t i = 0; i < plan_.inner && met.begin < met.end; i++) {
      runs_.push_back(
          {taps,
           shift * plan_.in_step + i * plan_.cache.block * plan_.lanes,
           (tap * plan_.inner + i) * plan_.lanes,
           (1ull << met.end) - (1ull << met.begin)});
    }
  }

  const ChannelLanesPlan& plan_;
  const std::vector<Phase> phases_;
  std::vector<PixelBlock> blocks_;
  std::vector<TapRun> runs_; // of the blocks
  int64_t tile_ = -1;
};

} // namespace torch_dnnl
