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

  // That of row `row` of plane d, [vector of channels][pair]; kd, kh: the taps that meet them.
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
    const int64_t channels = task_.channels.count();
    const int64_t parts = plan_.are_apart ? plan_.tap_pairs : 1;
    const int64_t partner = plan_.partner * plan_.block, pairs = plan_.line / parts;
    uint8_t* const bytes = bytes_.data();
    for (int64_t part = 0; part < parts; part++) {
      copy(d, row, 2 * part, bytes);
      if (plan_.are_apart)
        copy(d, row, 2 * part + 1, bytes + partner);
      for (int64_t c = 0; c < channels; c += kIntSums) {
        const uint8_t* from = bytes + c;
        IntSums* to = line + c / kIntSums * plan_.line + part * pairs;
        for (int64_t i = 0; i < pairs; i++, from += plan_.pair_step * plan_.block)
          to[i] = pairs_of_bytes(from, from + partner, zero_points_);
      }
    }
  }

  // The pixels of a row from the one on that the first output's tap meets, [pixel][channel].
  void copy(int64_t d, int64_t row, int64_t tap, uint8_t* to) const {
    const int64_t* xs = p_.src_stride;
    const auto* image = static_cast<const uint8_t*>(p_.src) + task_.n * xs[0] +
        task_.channels.begin * xs[1] + d * xs[2] + row * xs[3];
    const int64_t first = task_.pixels.begin * p_.stride[2] - p_.pad[2] + tap * p_.dilation[2];
    const LineOfImage line{
        image,
        task_.channels.count(),
        xs[1],
        first,
        plan_.pixels,
        plan_.pixel_step,
        p_.src_size[2],
        xs[4]};
    source_.copy(line, plan_.block, /*bytes=*/nullptr, to);
  }

  const ConvProblem& p_;
  const DepthwisePlan& plan_;
  const IntegerLines<uint8_t> source_;
  const IntSums zero_points_ = repeated(source_.pad() * 0x10001);
  const int64_t slots_ = plan_.planes * plan_.ring;
  std::vector<int64_t> rows_ = std::vector<int64_t>(slots_); // which row of the image a line is
  const Scratch<int32_t> lines_{slots_ * plan_.line_size()};
  const Scratch<uint8_t> bytes_{
      (plan_.pixels + (plan_.are_apart ? plan_.partner : 0)) * plan_.block};
  DepthwiseTask task_{};
};

} // namespace torch_dnnl
