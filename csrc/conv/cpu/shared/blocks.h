// What the products of direct convolution take and give: blocks of channels of pixels, panels of
// output channels.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/microkernel.h"
#include "conv/cpu/shared/pixels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/math.h"

namespace torch_dnnl {

// Sizes of the blocks that a matrix product works on: b, kChannels x kPanel<C>, and c,
// kPixels x kPanel<C>, are in the first-level cache together.
inline constexpr int64_t kPixels = 64;
inline constexpr int64_t kChannels = 64;

// Channels of pixels as they are computed with, and their strides.
template <class C>
struct Block {
  const C* data;
  int64_t pixel_stride, channel_stride;
};

// Widens a run into `buffer`, in the order it lies in.
template <class T, class C = compute_t<T>>
Block<C> copy_block(const ImageRun<const T>& from, C* buffer) {
  const auto [data, channels, pixels, channel_stride, pixel_stride] = from;
  if (channel_stride == 1) {
    for (int64_t x = 0; x < pixels; x++)
      widen(data + x * pixel_stride, channels, buffer + x * channels);
    return {buffer, channels, 1};
  }
  for (int64_t c = 0; c < channels; c++) {
    const T* line = data + c * channel_stride;
    C* to = buffer + c * pixels;
    if (pixel_stride == 1)
      widen(line, pixels, to);
    else
      for (int64_t x = 0; x < pixels; x++)
        to[x] = static_cast<C>(line[x * pixel_stride]);
  }
  return {buffer, 1, pixels};
}

// The same, but a run stays where it is if it is computed with as it is.
template <class T, class C = compute_t<T>>
Block<C> load_block(const ImageRun<const T>& from, C* buffer) {
  if constexpr (std::is_same_v<T, C>)
    return {from.data, from.pixel_stride, from.channel_stride};
  else
    return copy_block(from, buffer);
}

// The part `i` of what is cut into parts of this size: [i * size, (i + 1) * size), but not beyond
// the end.
inline Range nth_range(int64_t i, int64_t size, int64_t end) {
  return {i * size, std::min((i + 1) * size, end)};
}

// How the channels that a product computes are cut into panels of whole vectors.
struct Panels {
  int64_t channels, lanes;
  int64_t width = std::min(kGemmVectors * lanes, round_up(channels, lanes));
  int64_t count = ceil_div(channels, width);

  int64_t size(int64_t panel) const {
    return std::min(width, channels - panel * width);
  }
  int64_t vectors(int64_t panel) const {
    return ceil_div(size(panel), lanes);
  }
};

} // namespace torch_dnnl
