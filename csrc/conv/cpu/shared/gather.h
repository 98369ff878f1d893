// Convolution in all its passes as outputs that gather inputs: what src is to the one, dst is to
// the other. The "outputs" of backward weights are the gradients.
#pragma once

#include <algorithm>

#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// The inputs and outputs that meet a tap along one axis: where the first ones are, how many there
// are, and the steps from one to the next.
struct Segment {
  int64_t in, out, count, in_step, out_step;
};

struct GatherImages {
  const ConvProblem& p;
  bool backward_data = p.pass == ConvPass::backward_data;
  int64_t in_channels = backward_data ? p.oc : p.ic; // of a group
  int64_t out_channels = backward_data ? p.ic : p.oc;
  const int64_t* in_size = backward_data ? p.dst_size : p.src_size;
  const int64_t* out_size = backward_data ? p.src_size : p.dst_size;
  const int64_t* in_stride = backward_data ? p.dst_stride : p.src_stride;
  const int64_t* out_stride = backward_data ? p.src_stride : p.dst_stride;
  int64_t weights_in_stride = p.weights_stride[backward_data ? 0 : 1];
  int64_t weights_out_stride = p.weights_stride[backward_data ? 1 : 0];

  // The input of an image and a group.
  template <class T>
  const T* input(int64_t n, int64_t group) const {
    return static_cast<const T*>(backward_data ? p.dst : p.src) + n * in_stride[0] +
        group * in_channels * in_stride[1];
  }

  // Among outputs [begin, end) of an axis.
  Segment segment(int axis, int64_t tap, int64_t begin, int64_t end) const {
    const int64_t shift = tap * p.dilation[axis] - p.pad[axis], stride = p.stride[axis];
    if (!backward_data) {
      const Range met = within(shift, stride, p.src_size[axis], p.dst_size[axis]);
      const int64_t first = std::max(begin, met.begin);
      return {first * stride + shift, first, std::min(end, met.end) - first, stride, 1};
    }
    const auto first_from = [&](int64_t src) {
      return ceil_div(std::max<int64_t>(src - shift, 0), stride);
    };
    const int64_t first = first_from(begin), last = std::min(first_from(end), p.dst_size[axis]);
    return {first, first * stride + shift, last - first, 1, stride};
  }
};

} // namespace torch_dnnl
