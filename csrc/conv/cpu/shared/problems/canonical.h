// The same convolution stated otherwise, of the same memory: with fewer taps and axes, so that all
// kernels see long rows; with its two images exchanged.
#pragma once

#include <algorithm>
#include <utility>

#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

inline void swap_axes(ConvProblem& p, int a, int b) {
  for (int64_t* of_axis : {p.src_size, p.dst_size, p.kernel, p.stride, p.dilation, p.pad})
    std::swap(of_axis[a], of_axis[b]);
  for (int64_t* stride : {p.src_stride, p.dst_stride, p.weights_stride, p.residual_stride})
    std::swap(stride[2 + a], stride[2 + b]);
}

namespace canonical_detail {

// Leaves out the first and the last taps of an axis, if all outputs meet pads there.
inline void drop_taps(ConvProblem& p, int axis) {
  const int64_t dilation = p.dilation[axis], pad = p.pad[axis];
  const int64_t reach = (p.dst_size[axis] - 1) * p.stride[axis];
  const int64_t in_front =
      std::min(ceil_div(std::max<int64_t>(pad - reach, 0), dilation), pad / dilation);
  const int64_t first = std::min(in_front, p.kernel[axis] - 1);
  const int64_t end = std::min(ceil_div(p.src_size[axis] + pad, dilation), p.kernel[axis]);
  const int64_t shift = first * p.weights_stride[2 + axis] * c10::elementSize(p.dtype);
  p.kernel[axis] = std::max<int64_t>(end - first, 1);
  p.pad[axis] -= first * dilation;
  if (p.pass == ConvPass::backward_weights)
    p.out = static_cast<char*>(p.out) + shift;
  else
    p.weights = static_cast<const char*>(p.weights) + shift;
  if (p.kernel[axis] == 1)
    p.dilation[axis] = 1;
}

inline bool is_pixel(const ConvProblem& p, int axis) {
  return p.src_size[axis] == 1 && p.dst_size[axis] == 1 && p.kernel[axis] == 1;
}

// Whether outputs meet pixels of their own position along an axis only.
inline bool is_pointwise(const ConvProblem& p, int axis) {
  return p.kernel[axis] == 1 && p.stride[axis] == 1 && p.pad[axis] == 0 &&
      p.src_size[axis] == p.dst_size[axis];
}

// Whether axis + 1 is too short, continues axis in every tensor, and a tap shifts both as one.
inline bool can_merge(const ConvProblem& p, int axis) {
  constexpr int64_t lanes = 16;
  const int64_t size = p.src_size[axis + 1];
  const bool is_poor = 5 * size < 4 * ceil_div(size, lanes) * lanes;
  const auto is_joined = [&](const int64_t* stride) {
    return stride[2 + axis] == size * stride[3 + axis];
  };
  return is_poor && is_pointwise(p, axis + 1) && p.stride[axis] == 1 && is_joined(p.src_stride) &&
      is_joined(p.dst_stride) && (p.residual == nullptr || is_joined(p.residual_stride));
}

// Axis + 1 becomes both of them, and axis one of a single pixel.
inline void merge(ConvProblem& p, int axis) {
  const int64_t size = p.src_size[axis + 1];
  for (int64_t* of_axis : {p.src_size, p.dst_size, p.dilation, p.pad}) {
    of_axis[axis + 1] = of_axis[axis] * size;
    of_axis[axis] = 1;
  }
  p.pad[axis] = 0;
  std::swap(p.kernel[axis], p.kernel[axis + 1]);
  std::swap(p.weights_stride[2 + axis], p.weights_stride[3 + axis]);
  if (p.kernel[axis + 1] == 1)
    p.dilation[axis + 1] = 1;
}

} // namespace canonical_detail

// Axes of a single pixel come first. The order of the taps stays.
inline ConvProblem with_long_axes(ConvProblem p) {
  using namespace canonical_detail;
  const auto move_pixels_to_front = [&] {
    for (int axis : {1, 2, 1})
      if (is_pixel(p, axis))
        swap_axes(p, axis - 1, axis);
  };
  move_pixels_to_front();
  for (int axis : {1, 0, 1}) { // all three may be one
    if (!is_pixel(p, axis) && can_merge(p, axis)) {
      merge(p, axis);
      move_pixels_to_front();
    }
  }
  return p;
}

// Taps that only meet pads are left out: gradients of weights have to be 0 there already.
inline ConvProblem canonical(ConvProblem p) {
  for (int axis = 0; axis < 3; axis++)
    canonical_detail::drop_taps(p, axis);
  return with_long_axes(p);
}

// Neighbouring axes of which outputs meet pixels of their own position only become one.
inline ConvProblem with_joined_pixels(ConvProblem p) {
  using canonical_detail::is_pointwise;
  for (int a = 1; a >= 0; a--) {
    const auto is_joined = [&](const int64_t* stride) {
      return p.src_size[a] == 1 || stride[2 + a] == p.src_size[2] * stride[4];
    };
    const bool is_mergeable = is_pointwise(p, a) && is_pointwise(p, 2) && is_joined(p.src_stride) &&
        is_joined(p.dst_stride) && (p.residual == nullptr || is_joined(p.residual_stride));
    if (!is_mergeable)
      break;
    p.src_size[2] *= p.src_size[a];
    p.dst_size[2] *= p.dst_size[a];
    p.src_size[a] = p.dst_size[a] = 1;
  }
  return p;
}

// Whether src and dst can take each other's place in a gradient.
inline bool can_exchange(const ConvProblem& p) {
  return product(p.stride) == 1;
}

// The same gradient with src and dst in each other's place, for kernels that prefer few input
// channels: one of data is a convolution of dst with the weights in reverse, and in one of weights
// the two images have one role.
inline ConvProblem exchanged(ConvProblem p) {
  std::swap(p.ic, p.oc);
  std::swap(p.src, p.dst);
  std::swap(p.src_size, p.dst_size);
  std::swap(p.src_stride, p.dst_stride);
  std::swap(p.weights_stride[0], p.weights_stride[1]);
  int64_t last_tap = 0;
  for (int a = 0; a < 3; a++) {
    last_tap += (p.kernel[a] - 1) * p.weights_stride[2 + a];
    p.weights_stride[2 + a] *= -1;
    p.pad[a] = (p.kernel[a] - 1) * p.dilation[a] - p.pad[a];
  }
  last_tap *= c10::elementSize(p.dtype);
  if (p.pass == ConvPass::backward_weights) {
    p.out = static_cast<char*>(p.out) + last_tap;
  } else {
    p.weights = static_cast<const char*>(p.weights) + last_tap;
    p.pass = ConvPass::forward;
  }
  return p;
}

} // namespace torch_dnnl
