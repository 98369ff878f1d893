// Tiles of images, transformed, with channels as lanes.
#pragma once

#include <algorithm>
#include <cstring>

#include "conv/cpu/winograd/tiles.h"
#include "core/cpu/simd.h"
#include "core/math.h"

namespace torch_dnnl {

template <class T>
struct TiledImages {
  const T* data;         // of the first channel
  const int64_t* stride; // N, C, D, H, W
  const int64_t* size;   // D, H, W
  int64_t pad_y, pad_x;  // where the first tile begins
};

namespace winograd_detail {

// Every fourth of kLanes<float> quads as one vector. Through memory, the load would have to wait
// for the stores.
inline Lanes<float> join(const Quad<float>* x) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  const auto low = __builtin_shufflevector(x[0], x[4], 0, 1, 2, 3, 4, 5, 6, 7);
#if defined(CPU_CAPABILITY_AVX512)
  const auto high = __builtin_shufflevector(x[8], x[12], 0, 1, 2, 3, 4, 5, 6, 7);
  return Lanes<float>(
      __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  return Lanes<float>(low);
#endif
#else
  float lanes[kLanes<float>];
  for (int64_t i = 0; i < kLanes<float>; i += 4)
    std::memcpy(lanes + i, x + i, sizeof(Quad<float>));
  return load_lanes<float>(lanes);
#endif
}

// Pixels (y, x), (y, x + 1), ... of a plane, [pixel][lane], and zeros around it. There are at most
// kLanes<float> channels.
template <class T>
void load_line(
    const TiledImages<T>& images,
    const T* plane,
    int64_t channels,
    int64_t y,
    int64_t x,
    int64_t pixels,
    float* to) {
  constexpr int64_t n = kLanes<float>;
  const int64_t* stride = images.stride;
  Range inside = within(x, /*step=*/1, images.size[2], pixels);
  if (y < 0 || y >= images.size[1] || inside.begin >= inside.end)
    inside = {pixels, pixels};
  std::fill(to, to + inside.begin * n, 0.0f);
  std::fill(to + inside.end * n, to + pixels * n, 0.0f);
  const T* row = plane + y * stride[3] + x * stride[4];
  int64_t i = inside.begin;
  if (stride[4] == 1 && stride[1] != 1) {
    for (; i + 4 <= inside.end; i += 4) {
      Quad<float> four[n];
      for (int64_t lane = 0; lane < n; lane++)
        four[lane] = lane < channels ? load_quad<float>(row + lane * stride[1] + i) : Quad<float>{};
      for (int64_t lane = 0; lane < n; lane += 4)
        transpose(four + lane);
      for (int64_t j = 0; j < 4; j++)
        join(four + j).store(to + (i + j) * n);
    }
  }
  for (; i < inside.end; i++) {
    const T* pixel = row + i * stride[4];
    const auto lanes = stride[1] == 1 ? load_up_to<float>(pixel, channels)
                                      : load_strided_lanes<float>(pixel, stride[1], channels);
    lanes.store(to + i * n);
  }
}

} // namespace winograd_detail

// Squares of n x n pixels, transformed: to[tile * tile_step + position * position_step + channel].
//
// Squares overlap, and channels may lie far apart: the lines of neighbouring tiles are first
// brought together, with kLanes<float> channels innermost and zeros around the image.
template <class F, auto transform, int64_t n, int64_t most_tiles, class T>
void transform_tiles(
    const TiledImages<T>& images,
    const Tiles<F>& tiles,
    Range range,
    int64_t channels,
    float* to,
    int64_t tile_step,
    int64_t position_step) {
  constexpr int64_t kTile = F::kTile, overlap = n - kTile;
  float lines[n][(most_tiles * kTile + overlap) * kLanes<float>];
  int64_t neighbours;
  for (int64_t t = range.begin; t < range.end; t += neighbours, to += neighbours * tile_step) {
    const auto at = tiles.place(t);
    neighbours = std::min(range.end - t, tiles.columns - at.x / kTile);
    const T* plane = images.data + at.n * images.stride[0] + at.d * images.stride[2];
    for (int64_t c = 0; c < channels; c += kLanes<float>) {
      for (int64_t i = 0; i < n; i++) {
        winograd_detail::load_line(
            images,
            plane + c * images.stride[1],
            std::min(kLanes<float>, channels - c),
            at.y - images.pad_y + i,
            at.x - images.pad_x,
            neighbours * kTile + overlap,
            lines[i]);
      }
      for (int64_t k = 0; k < neighbours; k++) {
        Lanes<float> d[n][n];
        for (int64_t i = 0; i < n; i++)
          for (int64_t j = 0; j < n; j++)
            d[i][j] = load_lanes<float>(lines[i] + (k * kTile + j) * kLanes<float>);
        store_positions<F, transform>(d, to + k * tile_step + c, position_step);
      }
    }
  }
}

} // namespace torch_dnnl
