// How a convolution becomes a problem of gathered pixels, and how its weights become chunks.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "conv/cuda/shared/pixels.h"
#include "conv/cuda/shared/problem.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {

inline ImageView
make_image(const void* data, const int64_t* stride, const int64_t* size, int64_t channels) {
  ImageView image{data, {}, {}, static_cast<int>(channels)};
  std::copy_n(stride, 5, image.stride);
  std::transform(size, size + 3, image.size, [](int64_t s) { return static_cast<int>(s); });
  return image;
}

inline bool is_data(const ConvProblem& p) {
  return p.pass == ConvPass::backward_data;
}

// Whether positions, taps and channels are numbers of 32 bits and the grid is within its limits.
inline bool fits(const ConvProblem& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  int64_t taps = 1, problems = p.groups, pixels = p.n;
  for (int a = 0; a < 3; a++) {
    if (p.src_size[a] > kLimit || p.kernel[a] > kLimit || p.stride[a] > kLimit ||
        p.dilation[a] > kLimit ||
        (p.dst_size[a] - 1) * p.stride[a] + (p.kernel[a] - 1) * p.dilation[a] + p.pad[a] > kLimit) {
      return false;
    }
    taps *= p.kernel[a];
    problems *= is_data(p) ? std::min(p.stride[a], p.src_size[a]) : 1;
    pixels *= is_data(p) ? p.src_size[a] : p.dst_size[a];
    if (taps > kLimit || problems > kMaxGridZ)
      return false;
  }
  constexpr int64_t kSmallestTile = 64;
  const int64_t rows = p.pass == ConvPass::backward_weights ? taps * (p.ic + 16) : pixels;
  const int64_t columns = is_data(p) ? p.ic : p.oc;
  return std::max(p.ic, p.oc) <= kLimit && taps * (p.ic + 16) <= kLimit &&
      ceil_div(rows, kSmallestTile) * ceil_div(columns, kSmallestTile) <= kMaxGridX;
}

template <class T>
DenseProblem make_problem(const ConvProblem& p) {
  DenseProblem d{};
  d.conv = p;
  const ImageView src =
      make_image(p.pass == ConvPass::backward_data ? p.out : p.src, p.src_stride, p.src_size, p.ic);
  const ImageView dst =
      make_image(p.pass == ConvPass::forward ? p.out : p.dst, p.dst_stride, p.dst_size, p.oc);
  d.gathered = is_data(p) ? dst : src;
  d.straight = is_data(p) ? src : dst;
  d.padded_channels = static_cast<int>(round_up(d.gathered.channels, kChunk<T>));
  // All taps of a few channels after one another: most of their pixels are then in the L1 cache.
  const bool by_blocks = p.pass != ConvPass::backward_weights && d.padded_channels % kDepth<T> == 0;
  d.block_channels = by_blocks ? kDepth<T> : d.padded_channels;
  for (int a = 0; a < 3; a++) {
    const int64_t step = p.stride[a] / std::gcd(p.stride[a], p.dilation[a]);
    d.residues[a] = is_data(p) ? static_cast<int>(std::min(p.stride[a], p.src_size[a])) : 1;
    d.tap_step[a] = is_data(p) ? static_cast<int>(step) : 1;
  }
  return d;
}

// Weights whose gathered channels are not chunks, made so: [group][straight channel][tap][padded
// gathered channel]. One call per chunk.
template <class T>
struct PackWeights {
  DenseProblem p;
  int64_t channel_stride, row_stride; // in the weights as they are: gathered, straight channel
  T* packed;

  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ConvProblem& c = p.conv;
    const int64_t chunks = p.padded_channels / kChunk<T>;
    const int64_t taps = product(c.kernel);
    const int64_t rows = p.straight.channels;
    // Neighbouring threads read what is close in memory: chunks of a row, or rows.
    const bool rows_innermost = row_stride < channel_stride;
    const int64_t chunk = position(i, chunks, rows_innermost ? rows : 1);
    const int64_t row = position(i, rows, rows_innermost ? 1 : chunks * taps);
    const int64_t tap = position(i, taps, rows_innermost ? chunks * rows : chunks);
    const int64_t group = position(i, c.groups, chunks * rows * taps);
    const int64_t first = chunk * kChunk<T>;
    // Groups are blocks of output channels.
    const T* from = static_cast<const T*>(c.weights) + group * c.weights_group + row * row_stride +
        first * channel_stride;
    int64_t stride = 1;
    for (int a = 2; a >= 0; a--) {
      from += position(tap, c.kernel[a], stride) * c.weights_stride[2 + a];
      stride *= c.kernel[a];
    }
    T* to = packed + ((group * rows + row) * taps + tap) * p.padded_channels + first;
    for (int e = 0; e < kChunk<T>; e++)
      to[e] = first + e < p.gathered.channels ? from[e * channel_stride] : T(0);
  }
};

// Sets where `d` has its weights: as they lie, or packed into the scratch that is returned.
template <class T>
std::optional<Scratch> place_weights(DenseProblem& d) {
  const ConvProblem& p = d.conv;
  const int64_t* stride = p.weights_stride;
  const int64_t channel_stride = stride[is_data(p) ? 0 : 1],
                row_stride = stride[is_data(p) ? 1 : 0];
  const auto is_whole = [&](int64_t size, int64_t stride) {
    return size == 1 || stride % kChunk<T> == 0;
  };
  const bool as_they_lie = channel_stride == 1 && d.padded_channels == d.gathered.channels &&
      is_whole(d.straight.channels, row_stride) && is_whole(p.groups, p.oc * stride[0]) &&
      is_whole(p.kernel[0], stride[2]) && is_whole(p.kernel[1], stride[3]) &&
      is_whole(p.kernel[2], stride[4]) && is_aligned(p.weights, kWidestAccess);
  if (as_they_lie) {
    d.weights = p.weights;
    d.weights_group_stride = p.oc * stride[0];
    d.weights_channel_stride = row_stride;
    std::copy_n(stride + 2, 3, d.weights_tap_stride);
    return std::nullopt;
  }
  const int64_t taps = product(p.kernel);
  d.weights_tap_stride[2] = d.padded_channels;
  d.weights_tap_stride[1] = d.weights_tap_stride[2] * p.kernel[2];
  d.weights_tap_stride[0] = d.weights_tap_stride[1] * p.kernel[1];
  d.weights_channel_stride = taps * d.padded_channels;
  d.weights_group_stride = d.weights_channel_stride * d.straight.channels;
  const int64_t elements = d.weights_group_stride * p.groups;
  Scratch packed(elements * sizeof(T));
  d.weights = packed.data();
  for_each_element(
      elements / kChunk<T>,
      PackWeights<T>{d, channel_stride, row_stride, static_cast<T*>(packed.data())});
  return packed;
}

} // namespace torch_dnnl::cuda
