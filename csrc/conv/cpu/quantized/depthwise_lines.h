// The lines of a plan of quantized depthwise convolution: made when a row of outputs first meets
// them, and kept while the next rows may.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/quantized/depthwise_plan.h"
#include "conv/cpu/shared/products/lines.h"
#include "conv/cpu/shared/products/pair_sums.h"
#include "conv/quantized/problem.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

class DepthwiseLines {
 public:
  DepthwiseLines(const QuantizedProblem& problem, const DepthwisePlan& plan)
      : p_(problem.conv),
        plan_(plan),
        source_{p_.dtype == c10::kChar, static_cast<int>(problem.src_zero_point.get())} {}

  void select_task(const DepthwiseTask& task) {
    task_ = task;
    std::fill(rows_.begin(), rows_.end(), -1);
  }

  // That of row `row` of plane d, [vector of channels][pair of channels][pair]; kd, kh: the taps
  // that meet them.
  const IntSums* line(int64_t kd, int64_t kh, int64_t d, int64_t row) {
    const int64_t slot = kd * plan_.ring + (plan_.are_by_turns ? row % plan_.ring : kh);
    auto* const line = reinterpret_cast<IntSums*>(lines_.data() + slot * plan_.line_size());
    if (rows_[slot] != row) {
      rows_[slot] = row;
      fill(d, row, line);
    }
    return line;
  }

 private:
  void fill(int64_t d, int64_t row, IntSums* line) const {
    const int64_t parts = plan_.are_apart ? plan_.taps : 1;
    const int64_t pairs = plan_.line / parts, partner = plan_.partner * plan_.inputs;
    for (int64_t part = 0; part < parts; part++) {
      const int64_t tap = part * plan_.pair_taps;
      copy(d, row, tap, bytes_.data());
      if (plan_.are_apart && plan_.pair_taps == 2)
        copy(d, row, tap + 1, bytes_.data() + partner);
      for (int64_t c = 0; c < task_.channels.count(); c += kIntSums) {
        const uint8_t* const from = bytes_.data() + c / p_.oc * p_.ic;
        for (int64_t i = 0; i < plan_.channel_pairs; i++) {
          IntSums* const to =
              line + c / kIntSums * plan_.channel_pairs * plan_.line + i * plan_.line;
          pair_up(from, partner, orders_.data() + i * kPairBytes, pairs, to + part * pairs);
        }
      }
    }
  }

  // Of a vector of channels, from the first of its groups on.
  void
  pair_up(const uint8_t* from, int64_t partner, const uint8_t* order, int64_t pairs, IntSums* to)
      const {
    const int64_t step = plan_.pair_step * plan_.inputs;
    if (plan_.pair_taps == 2)
      for (int64_t i = 0; i < pairs; i++, from += step)
        to[i] = pairs_of_bytes(from, from + partner, zero_points_);
    else
      for (int64_t i = 0; i < pairs; i++, from += step)
        to[i] = pairs_in_order(from, order, zero_points_);
  }

  // The pixels of a row from the one on that the first output's tap meets, [pixel][channel].
  void copy(int64_t d, int64_t row, int64_t tap, uint8_t* to) const {
    const int64_t* xs = p_.src_stride;
    const int64_t first = task_.channels.begin / p_.oc * p_.ic;
    const auto* image = static_cast<const uint8_t*>(p_.src) + task_.n * xs[0] + first * xs[1] +
        d * xs[2] + row * xs[3];
    const LineOfImage line{
        image,
        task_.channels.count() / p_.oc * p_.ic,
        xs[1],
        task_.pixels.begin * p_.stride[2] - p_.pad[2] + tap * p_.dilation[2],
        plan_.pixels,
        plan_.pixel_step,
        p_.src_size[2],
        xs[4]};
    source_.copy(line, plan_.inputs, /*bytes=*/nullptr, to);
  }

  // For each pair of channels, where its bytes are among those of a vector's groups.
  std::vector<uint8_t> orders() const {
    std::vector<uint8_t> order;
    for (int64_t pair = 0; pair < plan_.channel_pairs; pair++)
      for (int64_t i = 0; i < kPairBytes; i++) {
        const int64_t channel = 2 * pair + i % 2;
        order.push_back(channel < p_.ic ? i / 2 / p_.oc * p_.ic + channel : kUnordered);
      }
    return order;
  }

  static constexpr int64_t kPairBytes = 2 * kIntSums;

  const ConvProblem& p_;
  const DepthwisePlan& plan_;
  const IntegerLines<uint8_t> source_;
  const IntSums zero_points_ = repeated(source_.pad() * 0x10001);
  const int64_t slots_ = plan_.planes * plan_.ring;
  std::vector<int64_t> rows_ = std::vector<int64_t>(slots_); // which row of the image a line is
  const Scratch<int32_t> lines_{slots_ * plan_.line_size()};
  // Whole vectors are read of the last channels.
  const Scratch<uint8_t> bytes_{
      (plan_.pixels + (plan_.are_apart ? plan_.partner : 0)) * plan_.inputs + kPairBytes};
  const std::vector<uint8_t> orders_ = orders();
  DepthwiseTask task_{};
};

} // namespace torch_dnnl
