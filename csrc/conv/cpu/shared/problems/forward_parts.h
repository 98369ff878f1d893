// Gradients of data as convolutions.
#pragma once

#include <type_traits>
#include <vector>

#include "conv/cpu/shared/problems/canonical.h"
#include "conv/cpu/shared/problems/phases.h"
#include "conv/problem.h"

namespace torch_dnnl {

// Forward problems that compute the outputs of a forward or data gradient together: pixels of src
// whose positions have the same rest by the strides meet the same taps, and their gradients are a
// convolution of dst with these taps, with strides of 1. Without a tap, the outputs are 0 and no
// part has them.
struct ForwardParts {
  std::vector<ConvProblem> parts;
  bool has_zeros = false;
};

namespace forward_parts_detail {

// Along one axis, `p` with the outputs of a phase.
inline void restrict(ConvProblem& p, int axis, const Phase& phase, int64_t element_size) {
  const int64_t out_size = p.dst_size[axis], *const ws = p.weights_stride;
  const auto skip = [&](auto* data, const int64_t* stride) {
    using Byte = std::conditional_t<std::is_same_v<decltype(data), void*>, char, const char>;
    const int64_t bytes = phase.out * stride[2 + axis] * element_size;
    return data == nullptr ? data : static_cast<Byte*>(data) + bytes;
  };
  p.residual = skip(p.residual, p.residual_stride);
  p.preactivation = skip(p.preactivation, p.dst_stride);
  p.out = skip(p.out, p.dst_stride);
  p.residual_stride[2 + axis] *= phase.out_step;
  p.weights = static_cast<const char*>(p.weights) + phase.tap * ws[2 + axis] * element_size;
  p.dst_size[axis] = ceil_div(out_size - phase.out, phase.out_step);
  p.dst_stride[2 + axis] *= phase.out_step;
  p.weights_stride[2 + axis] *= phase.tap_step;
  p.kernel[axis] = phase.taps;
  p.stride[axis] = 1;
  p.dilation[axis] = phase.taps > 1 ? phase.tap_in_step : 1;
  p.pad[axis] = -phase.in;
}

} // namespace forward_parts_detail

inline ForwardParts forward_parts(const ConvProblem& p) {
  if (p.pass == ConvPass::forward)
    return {{p}};
  ConvProblem swapped = p;
  swapped.pass = ConvPass::forward;
  std::swap(swapped.ic, swapped.oc);
  swapped.src = p.dst;
  std::swap(swapped.src_size, swapped.dst_size);
  std::swap(swapped.src_stride, swapped.dst_stride);
  std::swap(swapped.weights_stride[0], swapped.weights_stride[1]);
  ForwardParts all;
  const auto of_axis = [&](int axis) { return phases_of(p, axis); };
  for (const Phase& d : of_axis(0)) {
    for (const Phase& h : of_axis(1)) {
      for (const Phase& w : of_axis(2)) {
        if (d.taps * h.taps * w.taps == 0) {
          all.has_zeros = true;
          continue;
        }
        ConvProblem part = swapped;
        const int64_t size = c10::elementSize(p.dtype);
        forward_parts_detail::restrict(part, 0, d, size);
        forward_parts_detail::restrict(part, 1, h, size);
        forward_parts_detail::restrict(part, 2, w, size);
        all.parts.push_back(part);
      }
    }
  }
  return all;
}

} // namespace torch_dnnl
