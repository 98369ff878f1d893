// The parts of a unit of outputs: what one call of a kernel computes, and its weights.
#pragma once

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
  int64_t plane_weights;     // of all input channels and of a depth of the kernel
  int64_t weights;           // where those of the part are, of all of a group

  // Whether the first of the outputs of a step meets a run; the others do.
  bool meets_first(int64_t run) const {
    return !slides || (outputs - 1) * row->in_step + run < row->taps;
  }
};

// The parts of a unit, and how many weights of a group they have together.
struct Parts {
  std::vector<Part> list;
  int64_t weights = 0;

  explicit Parts(const PixelLanesPlan& plan) {
    const int64_t blocks = ceil_div(plan.out_channels, kPlaneOutputs);
    for (const Phase& row : plan.phases[1]) {
      const bool slides = torch_dnnl::slides(plan, row);
      const int64_t runs = slides ? std::min(row.in_step, row.taps) : row.taps;
      for (const Phase& column : plan.phases[2]) {
        for (int64_t b = 0; b < blocks; b++) {
          const int64_t channel = plan.out_channels * b / blocks;
          const int64_t end = plan.out_channels * (b + 1) / blocks;
          const int64_t outputs = slides ? outputs_of_step(row) : end - channel;
          const int64_t of_plane = plan.in_channels * runs * column.taps * outputs;
          const auto taps = plan.column_taps(column);
          list.push_back({&row, &column, channel, slides, outputs, runs, taps, of_plane, weights});
          weights += plan.p.kernel[0] * of_plane;
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
    const Phase &row = *part.row, &column = *part.column;
    int64_t index = part.weights;
    const auto for_taps = [&](int64_t offset, int64_t run) {
      for (int64_t t = 0; t < column.taps; t++) {
        const int64_t w = column.tap + t * column.tap_step;
        for (int64_t o = 0; o < part.outputs; o++, index++) {
          const int64_t m = part.slides ? (part.outputs - 1 - o) * row.in_step + run : run;
          const int64_t channel = part.slides ? part.channel : part.channel + o;
          const int64_t h = row.tap + m * row.tap_step;
          if (m < row.taps)
            f(offset + channel * plan.weights_out_stride + h * ws[3] + w * ws[4], index);
        }
      }
    };
    for (int64_t d = 0; d < plan.p.kernel[0]; d++) {
      for (int64_t i = 0; i < plan.in_channels; i++)
        for (int64_t run = 0; run < part.runs; run++)
          for_taps(d * ws[2] + i * plan.weights_in_stride, run);
    }
  }
}

} // namespace torch_dnnl
