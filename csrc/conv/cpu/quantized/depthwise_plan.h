// How quantized depthwise convolution, and that of groups of few channels, is cut into tasks, and
// how the inputs of a task lie in scratch memory.
//
// Neighbouring taps of a row are pairs. Where groups have several channels, their channels are
// pairs instead, and each pair has a line of its own. A line holds, for each channel, the pairs of
// pixels that such taps meet. Here a kernel of 5 taps has stride 1, and the fifth tap a partner of
// weight 0:
//
//     pixels of a channel   a b c d e f g h
//     line                  ab bc cd de ef fg gh
//     output 0              ab    cd    ef
//     output 1                 bc    de    fg
//
// With a stride of 2, every second pair of the line is there. Where taps are far apart, they share
// no pairs: the line has the pairs of all outputs for the first two taps, then for the next two.
#pragma once

#include <algorithm>
#include <numeric>

#include "conv/cpu/igemm/types.h"
#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

struct DepthwisePlan {
  int64_t block, blocks;    // output channels of a task
  int64_t inputs;           // input channels of a task
  int64_t rows, row_blocks; // outputs of a task: rows,
  int64_t width, tiles;     // and pixels of a row

  int64_t pair_taps;             // 2 where taps are pairs, else 1
  int64_t taps;                  // of a row of the kernel, or pairs of them
  int64_t channel_pairs;         // of a group
  bool are_apart;                // taps share no pairs of pixels
  int64_t line;                  // pairs of a line
  int64_t output_step, tap_step; // in pairs: from an output's to the next, from a tap's
  int64_t pixels, pixel_step;    // of the image, that are copied at once
  int64_t pair_step;             // of what is copied, from a pair to the next
  int64_t partner;               // from the first of a pair of taps to the second

  // Lines in memory: of so many planes, so many rows, which are taken by turns or, where taps are
  // far apart, one for each row of the kernel.
  int64_t planes, ring;
  bool are_by_turns;

  int64_t line_size() const { // pairs of all channels
    return line * channel_pairs * block;
  }
  int64_t terms() const { // pairs whose products a sum takes, of a row of the kernel
    return taps * channel_pairs;
  }
  // From a vector of channels, where the pairs of a term are.
  int64_t pairs_at(int64_t tap, int64_t channel_pair) const {
    return channel_pair * line + tap * tap_step;
  }
};

namespace depthwise_detail {

inline constexpr int64_t kMostChannels = 64, kFewChannels = 32;
inline constexpr int64_t kRows = 16, kLeastWidth = 32;
inline constexpr int64_t kMostPairs = 32 * 1024; // in the second-level cache

inline void choose_line(const ConvProblem& p, int64_t tiles, DepthwisePlan& plan) {
  const int64_t stride = p.stride[2], distance = p.kernel[2] > 1 ? p.dilation[2] : 0;
  const int64_t between = plan.pair_taps * distance; // taps, or pairs of them
  plan.width = ceil_div(p.dst_size[2], tiles);
  plan.tiles = ceil_div(p.dst_size[2], plan.width);
  const int64_t step = plan.taps > 1 ? std::gcd(stride, between) : stride;
  const int64_t last = (plan.width - 1) * stride + (plan.taps - 1) * between;
  plan.are_apart = last / step >= plan.taps * plan.width;
  if (plan.are_apart) {
    plan.line = plan.taps * plan.width;
    plan.output_step = 1;
    plan.tap_step = plan.width;
    plan.pixels = plan.width;
    plan.pixel_step = stride;
    plan.pair_step = 1;
    plan.partner = plan.width;
  } else {
    plan.line = last / step + 1;
    plan.output_step = stride / step;
    plan.tap_step = between / step;
    plan.pixels = last + distance + 1;
    plan.pixel_step = 1;
    plan.pair_step = step;
    plan.partner = distance;
  }
}

} // namespace depthwise_detail

inline DepthwisePlan plan_depthwise(const ConvProblem& p, int64_t threads) {
  using namespace depthwise_detail;
  const int64_t channels = p.groups * p.oc;
  DepthwisePlan plan{};
  plan.planes = p.kernel[0];
  plan.pair_taps = p.ic == 1 ? 2 : 1;
  plan.taps = ceil_div(p.kernel[2], plan.pair_taps);
  plan.channel_pairs = ceil_div(p.ic, 2);
  const auto choose_block = [&](int64_t most) {
    plan.block = round_up(ceil_div(channels, ceil_div(channels, most)), kPanelLanes);
    plan.blocks = ceil_div(channels, plan.block);
    plan.inputs = plan.block / p.oc * p.ic;
  };
  const auto pairs = [&] { return plan.planes * p.kernel[1] * plan.line_size(); };
  choose_block(kMostChannels);
  choose_line(p, 1, plan);
  while (pairs() > kMostPairs && plan.width >= 2 * kLeastWidth)
    choose_line(p, 2 * plan.tiles, plan);
  if (pairs() > kMostPairs)
    choose_block(kFewChannels);
  // Tasks make the lines of their first rows anew, but all threads get some tasks.
  const int64_t columns = p.n * plan.blocks * plan.tiles * p.dst_size[0];
  const int64_t most = ceil_div(p.dst_size[1] * columns, 4 * threads);
  plan.rows = std::clamp<int64_t>(most, 1, std::max(kRows, 2 * p.kernel[1]));
  plan.row_blocks = ceil_div(p.dst_size[1], plan.rows);
  const int64_t reach = (p.kernel[1] - 1) * p.dilation[1] + 1;
  plan.are_by_turns = reach <= p.kernel[1] * plan.rows;
  plan.ring = plan.are_by_turns ? reach : p.kernel[1];
  return plan;
}

struct DepthwiseTask {
  int64_t n, d;
  Range channels, rows, pixels; // of outputs
};

inline DepthwiseTask
depthwise_task(const ConvProblem& p, const DepthwisePlan& plan, int64_t index) {
  Digits digits{index};
  DepthwiseTask task{};
  task.channels = nth_range(digits.next(plan.blocks), plan.block, p.groups * p.oc);
  task.pixels = nth_range(digits.next(plan.tiles), plan.width, p.dst_size[2]);
  task.rows = nth_range(digits.next(plan.row_blocks), plan.rows, p.dst_size[1]);
  task.d = digits.next(p.dst_size[0]);
  task.n = digits.rest;
  return task;
}

} // namespace torch_dnnl
