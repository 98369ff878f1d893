// The lines of a plan of quantized depthwise convolution: made when a row of outputs first meets
// them, and kept while the next rows may.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/quantized/depthwise_plan.h"
#include "conv/cpu/shared/image_rows.h"
#include "conv/quantized/problem.h"
#include "core/cpu/dot2.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

inline constexpr int64_t kPairBytes = 2 * kInt32Lanes; // of a vector

// For each pair of a group's channels, where its bytes are among those of a vector's groups.
inline std::vector<uint8_t> pair_orders(const ConvProblem& p) {
  std::vector<uint8_t> order;
  for (int64_t pair = 0; pair < ceil_div(p.ic, 2); pair++) {
    for (int64_t i = 0; i < kPairBytes; i++) {
      const int64_t channel = 2 * pair + i % 2, group = i / 2 / p.oc;
      order.push_back(channel < p.ic ? group * p.ic + channel : kZeroByte);
    }
  }
  return order;
}

class DepthwiseLines {
 public:
  DepthwiseLines(const QuantizedProblem& problem, const DepthwisePlan& plan)
      : p_(problem.conv),
        plan_(plan),
        is_signed_(p_.dtype == c10::kChar),
        zero_point_(static_cast<int>(problem.src_zero_point.get())) {
    std::fill_n(pads_, kInt32Lanes, static_cast<uint8_t>(zero_point_));
  }

  void select_task(const DepthwiseTask& task) {
    task_ = task;
    std::fill(rows_.begin(), rows_.end(), -1);
  }

  // That of row `row` of plane d, [vector of channels][pair of channels][pair]; kd, kh: the taps
  // that meet them.
  const Int32Lanes* line(int64_t kd, int64_t kh, int64_t d, int64_t row) {
    const int64_t slot = kd * plan_.ring + (plan_.are_by_turns ? row % plan_.ring : kh);
    auto* const line = reinterpret_cast<Int32Lanes*>(lines_.data() + slot * plan_.line_size());
    if (rows_[slot] != row) {
      rows_[slot] = row;
      fill(d, row, line);
    }
    return line;
  }

 private:
  void fill(int64_t d, int64_t row, Int32Lanes* line) const {
    const int64_t parts = plan_.are_apart ? plan_.taps : 1;
    const int64_t partner = plan_.partner * plan_.inputs;
    // Whole vectors of channels are read of an image.
    const bool reads_image =
        plan_.pair_taps == 2 && p_.src_stride[1] == 1 && task_.channels.count() % kInt32Lanes == 0;
    for (int64_t part = 0; part < parts; part++, line += plan_.line / parts) {
      const int64_t tap = part * plan_.pair_taps;
      if (reads_image) {
        pair_up_image(d, row, tap, line);
        continue;
      }
      copy(d, row, tap, bytes_.data());
      if (plan_.are_apart && plan_.pair_taps == 2)
        copy(d, row, tap + 1, bytes_.data() + partner);
      for (int64_t c = 0; c < task_.channels.count(); c += kInt32Lanes)
        for (int64_t i = 0; i < plan_.channel_pairs; i++)
          pair_up(c, i, line + (c / kInt32Lanes * plan_.channel_pairs + i) * plan_.line);
    }
  }

  // Pairs of a part of a line.
  int64_t pairs() const {
    return plan_.are_apart ? plan_.width : plan_.line;
  }

  // Of a vector of channels that was copied, and a pair of the channels of its groups.
  void pair_up(int64_t channel, int64_t channel_pair, Int32Lanes* to) const {
    const uint8_t* from = bytes_.data() + channel / p_.oc * p_.ic;
    const int64_t step = plan_.pair_step * plan_.inputs, partner = plan_.partner * plan_.inputs;
    const uint8_t* const order = orders_.data() + channel_pair * kPairBytes;
    const PairOffsets copied{false, source_.padding()};
    if (plan_.pair_taps == 2)
      for (int64_t i = 0; i < pairs(); i++, from += step)
        to[i] = copied.apply(pairs_of_runs(from, from + partner));
    else
      for (int64_t i = 0; i < pairs(); i++, from += step)
        to[i] = copied.apply(pairs_in_order(from, order));
  }

  // Of all vectors of channels, which lie next to each other in the image.
  void pair_up_image(int64_t d, int64_t row, int64_t tap, Int32Lanes* to) const {
    const int64_t pixel = p_.src_stride[4], distance = p_.kernel[2] > 1 ? p_.dilation[2] : 0;
    const int64_t first = first_pixel(tap);
    const int64_t step = plan_.are_apart ? p_.stride[2] : plan_.pair_step;
    const Range both = both_inside(first, step, distance);
    const PairOffsets offsets{is_signed_, zero_point_};
    const uint8_t* image = image_at(d, row);
    for (int64_t c = 0; c < task_.channels.count(); c += kInt32Lanes, image += kInt32Lanes) {
      const auto at = [&](int64_t x) {
        return x >= 0 && x < p_.src_size[2] ? image + x * pixel : pads_;
      };
      const auto pair_at_edge = [&](int64_t i) {
        const int64_t x = first + i * step;
        to[i] = offsets.apply(pairs_of_runs(at(x), at(x + distance)));
      };
      for (int64_t i = 0; i < both.begin; i++)
        pair_at_edge(i);
      const uint8_t* from = image + (first + both.begin * step) * pixel;
      for (int64_t i = both.begin; i < both.end; i++, from += step * pixel)
        to[i] = offsets.apply(pairs_of_runs(from, from + distance * pixel));
      for (int64_t i = both.end; i < pairs(); i++)
        pair_at_edge(i);
      to += plan_.line;
    }
  }

  // The pairs of which both pixels are in the image.
  Range both_inside(int64_t first, int64_t step, int64_t distance) const {
    const Range inside = within(first, step, p_.src_size[2] - distance, pairs());
    const int64_t begin = std::min(inside.begin, pairs());
    return {begin, std::max(begin, inside.end)};
  }

  // That a tap, or the first of a pair of taps, meets for the first output.
  int64_t first_pixel(int64_t tap) const {
    return task_.pixels.begin * p_.stride[2] - p_.pad[2] + tap * p_.dilation[2];
  }

  const uint8_t* image_at(int64_t d, int64_t row) const {
    const int64_t *xs = p_.src_stride, first = task_.channels.begin / p_.oc * p_.ic;
    return static_cast<const uint8_t*>(p_.src) + task_.n * xs[0] + first * xs[1] + d * xs[2] +
        row * xs[3];
  }

  // The pixels of a row from the one on that the first output's tap meets, [pixel][channel].
  void copy(int64_t d, int64_t row, int64_t tap, uint8_t* to) const {
    const ImageRow line{
        image_at(d, row),
        task_.channels.count() / p_.oc * p_.ic,
        p_.src_stride[1],
        first_pixel(tap),
        plan_.pixels,
        plan_.pixel_step,
        p_.src_size[2],
        p_.src_stride[4]};
    source_.copy(line, plan_.inputs, /*bytes=*/nullptr, to);
  }

  const ConvProblem& p_;
  const DepthwisePlan& plan_;
  const bool is_signed_;
  const int zero_point_;
  const IntegerRows<uint8_t> source_{is_signed_, zero_point_};
  uint8_t pads_[kInt32Lanes]; // as the image has them
  const int64_t slots_ = plan_.planes * plan_.ring;
  std::vector<int64_t> rows_ = std::vector<int64_t>(slots_); // which row of the image a line is
  const Scratch<int32_t> lines_{slots_ * plan_.line_size()};
  // Whole vectors are read of the last channels.
  const Scratch<uint8_t> bytes_{
      (plan_.pixels + (plan_.are_apart ? plan_.partner : 0)) * plan_.inputs + kPairBytes};
  const std::vector<uint8_t> orders_ = pair_orders(p_);
  DepthwiseTask task_{};
};

} // namespace torch_dnnl
