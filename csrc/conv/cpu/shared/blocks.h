// What the products of direct convolution take and give: segments of rows, blocks of channels of
// their pixels, panels of output channels.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/microkernel.h"
#include "conv/cpu/shared/pixels.h"
#include "conv/reference.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/math.h"

namespace torch_dnnl {

// Sizes of the blocks that a matrix product works on: b, kChannels x kPanel<C>, and c,
// kPixels x kPanel<C>, are in the first-level cache together.
inline constexpr int64_t kPixels = 64;
inline constexpr int64_t kChannels = 64;

// The elements of src and dst that meet a tap along one axis: dst, dst + 1, ... and
// src, src + stride, ...
struct Segment {
  int64_t src, dst, count;
};

inline Segment
segment_of_dst(const ConvProblem& p, int axis, int64_t tap, int64_t begin, int64_t end) {
  const int64_t shift = tap * p.dilation[axis] - p.pad[axis];
  const Range range = within(shift, p.stride[axis], p.src_size[axis], p.dst_size[axis]);
  const int64_t first = std::max(begin, range.begin);
  return {first * p.stride[axis] + shift, first, std::min(end, range.end) - first};
}

inline Segment
segment_of_src(const ConvProblem& p, int axis, int64_t tap, int64_t begin, int64_t end) {
  const int64_t shift = tap * p.dilation[axis] - p.pad[axis];
  const auto first_from = [&](int64_t src) {
    return ceil_div(std::max<int64_t>(src - shift, 0), p.stride[axis]);
  };
  const int64_t first = first_from(begin);
  const int64_t last = std::min(first_from(end), p.dst_size[axis]);
  return {first * p.stride[axis] + shift, first, last - first};
}

// `channels` channels of `pixels` pixels as they are computed with, and their strides.
template <class C>
struct Block {
  const C* data;
  int64_t pixel_stride, channel_stride;
};

// Widens a block into `buffer`, in the order it lies in.
template <class T, class C = compute_t<T>>
Block<C> copy_block(
    const T* src,
    int64_t pixels,
    int64_t pixel_stride,
    int64_t channels,
    int64_t channel_stride,
    C* buffer) {
  if (channel_stride == 1) {
    for (int64_t x = 0; x < pixels; x++)
      widen(src + x * pixel_stride, channels, buffer + x * channels);
    return {buffer, channels, 1};
  }
  for (int64_t c = 0; c < channels; c++) {
    const T* line = src + c * channel_stride;
    C* to = buffer + c * pixels;
    if (pixel_stride == 1) {
      widen(line, pixels, to);
    } else {
      for (int64_t x = 0; x < pixels; x++)
        to[x] = static_cast<C>(line[x * pixel_stride]);
    }
  }
  return {buffer, 1, pixels};
}

// The same, but a block stays where it is if it is computed with as it is.
template <class T, class C = compute_t<T>>
Block<C> load_block(
    const T* src,
    int64_t pixels,
    int64_t pixel_stride,
    int64_t channels,
    int64_t channel_stride,
    C* buffer) {
  if constexpr (std::is_same_v<T, C>) {
    return {src, pixel_stride, channel_stride};
  } else {
    return copy_block(src, pixels, pixel_stride, channels, channel_stride, buffer);
  }
}

// Rows of `channels` values, `width` apart, to a tensor of any type and strides. They are read in
// whole vectors.
template <class T, class C = compute_t<T>>
void store_rows(
    const C* rows,
    int64_t width,
    int64_t pixels,
    int64_t channels,
    T* out,
    int64_t pixel_stride,
    int64_t channel_stride) {
  store_pixels(
      LaneRun<const C>{rows, kLanes<C>, width},
      ImageRun<T>{out, channels, pixels, channel_stride, pixel_stride});
}

// How the channels that a product computes are cut into panels of whole vectors.
template <class C>
struct Panels {
  explicit Panels(int64_t channels)
      : channels(channels),
        width(std::min(kPanel<C>, ceil_div(channels, kLanes<C>) * kLanes<C>)),
        count(ceil_div(channels, width)) {}
  int64_t channels, width, count;

  int64_t size(int64_t panel) const {
    return std::min(width, channels - panel * width);
  }
  int64_t vectors(int64_t panel) const {
    return ceil_div(size(panel), kLanes<C>);
  }
};

} // namespace torch_dnnl
