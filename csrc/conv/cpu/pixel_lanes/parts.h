// The parts of a unit of outputs: what one call of a kernel computes, and its weights.
#pragma once

#include <cmath>
#include <vector>

#include "conv/cpu/pixel_lanes/plan.h"

namespace torch_dnnl {

// What one call of a kernel computes of a unit: outputs of a phase of rows and a phase of columns,
// of some channels of a group.
struct Part {
  const Phase *row, *column;
  int64_t channel; // the first one, of a group's outputs
  bool slides;
  int64_t outputs;           // rows or channels that a pixel is multiplied for
  int64_t runs;              // rows of taps that it meets in a plane
  std::vector<int64_t> taps; // of a row
  int64_t weights;           // where those of the part are, of all of a group

  Part(
      const PixelLanesPlan& plan,
      const Phase& row,
      const Phase& column,
      int64_t channel,
      int64_t end)
      : row(&row), column(&column), channel(channel), taps(plan.column_taps(column)) {
    slides = plan.outer == 1 && can_slide(row);
    outputs = slides ? outputs_of_step(row) : end - channel;
    runs = slides ? std::min(row.in_step, row.taps) : row.taps;
  }

  // Whether the first of the outputs of a step meets a run; the others do.
  bool meets_first(int64_t run) const {
    return !slides || (outputs - 1) * row->in_step + run < row->taps;
  }

  int64_t weights_of_plane(int64_t inner) const {
    return inner * runs * static_cast<int64_t>(taps.size()) * outputs;
  }
};

// The parts of a unit, and how many weights of a group they have together.
struct Parts {
  std::vector<Part> list;
  int64_t weights = 0;

  explicit Parts(const PixelLanesPlan& plan) {
    const int64_t blocks = ceil_div(plan.outer, kPlaneOutputs);
    for (const Phase& row : plan.phases[1]) {
      for (const Phase& column : plan.phases[2]) {
        for (int64_t b = 0; b < blocks; b++) {
          Part part(plan, row, column, plan.outer * b / blocks, plan.outer * (b + 1) / blocks);
          part.weights = weights;
          weights += plan.p.kernel[0] * part.weights_of_plane(plan.inner);
          list.push_back(std::move(part));
        }
      }
    }
  }
};

// f(offset, index) for the weights of a group: where they are in the tensor from the first of the
// group on, and where in its parts: [part][depth][input channel][run][tap][output].
template <class F>
void for_each_weight(const PixelLanesPlan& plan, const Parts& parts, const F& f) {
  const int64_t* ws = plan.p.weights_stride;
  for (const Part& part : parts.list) {
    int64_t index = part.weights;
    const auto for_taps = [&](int64_t offset, int64_t run) {
      for (size_t t = 0; t < part.taps.size(); t++) {
        const int64_t w = part.column->tap + static_cast<int64_t>(t) * part.column->tap_step;
        for (int64_t o = 0; o < part.outputs; o++, index++) {
          const int64_t m = part.slides ? (part.outputs - 1 - o) * part.row->in_step + run : run;
          const int64_t channel = part.slides ? part.channel : part.channel + o;
          if (m < part.row->taps)
            f(offset + channel * plan.outer_stride +
                  (part.row->tap + m * part.row->tap_step) * ws[3] + w * ws[4],
              index);
        }
      }
    };
    for (int64_t d = 0; d < plan.p.kernel[0]; d++) {
      for (int64_t i = 0; i < plan.inner; i++) {
        for (int64_t run = 0; run < part.runs; run++)
          for_taps(d * ws[2] + i * plan.inner_stride, run);
      }
    }
  }
}

// Whether products with the zeros around an image are 0.
template <class C>
bool all_finite(const C* values, int64_t n) {
  return std::all_of(values, values + n, [](C value) { return std::isfinite(value); });
}

} // namespace torch_dnnl
