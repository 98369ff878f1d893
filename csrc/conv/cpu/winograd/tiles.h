// What the kernels of Winograd's filtering share: the transforms, where the tiles of images lie,
// and how those of inputs are transformed.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/cpu/shuffles.h"
#include "core/cpu/vectors.h"
#include "core/math.h"

namespace torch_dnnl {

// Floats between the matrices of neighbouring positions. Matrices that began a power of two apart
// would share a few places in the cache.
inline constexpr int64_t kApart = 16;

// The transforms of one dimension; transform_both() applies them to columns and then to rows.
// Inputs are transformed by B^T, sums of products by A^T, weights by G. The gradient of the weights
// is the adjoint of that in the weights: gradients of outputs are transformed by A, and sums of
// their products with inputs by G^T.

// F(2x2, 3x3)
struct F2x2 {
  static constexpr int64_t kTile = 2, kInput = 4, kPositions = kInput * kInput;

  static void transform_input(const Lanes<float> (&d)[kInput], Lanes<float> (&to)[kInput]) {
    to[0] = d[0] - d[2];
    to[1] = d[1] + d[2];
    to[2] = d[2] - d[1];
    to[3] = d[1] - d[3];
  }

  static void transform_output(const Lanes<float> (&m)[kInput], Lanes<float> (&to)[kTile]) {
    to[0] = m[0] + (m[1] + m[2]);
    to[1] = (m[1] - m[2]) - m[3];
  }

  static void transform_weights(const Lanes<float> (&g)[3], Lanes<float> (&to)[kInput]) {
    const Lanes<float> half(0.5f), outer = (g[0] + g[2]) * half, middle = g[1] * half;
    to[0] = g[0];
    to[1] = outer + middle;
    to[2] = outer - middle;
    to[3] = g[2];
  }
};

// F(4x4, 3x3): polynomials at 0, +-2/3, +-3/2 and infinity. The product of 2/3 and 3/2 is 1. Errors
// are half as large as at 0, +-1, +-2 and infinity.
struct F4x4 {
  static constexpr int64_t kTile = 4, kInput = 6, kPositions = kInput * kInput;

  static void transform_input(const Lanes<float> (&d)[kInput], Lanes<float> (&to)[kInput]) {
    const Lanes<float> near(2.0f / 3), minus_near(-2.0f / 3), far(3.0f / 2), minus_far(-3.0f / 2);
    const Lanes<float> near2(-4.0f / 9), far2(-9.0f / 4), both(-97.0f / 36);
    const Lanes<float> even = multiply_add(far2, d[2], d[4]), odd = multiply_add(far2, d[1], d[3]);
    const Lanes<float> far_even = multiply_add(near2, d[2], d[4]);
    const Lanes<float> far_odd = multiply_add(near2, d[1], d[3]);
    to[0] = multiply_add(both, d[2], d[0] + d[4]);
    to[1] = multiply_add(near, odd, even);
    to[2] = multiply_add(minus_near, odd, even);
    to[3] = multiply_add(far, far_odd, far_even);
    to[4] = multiply_add(minus_far, far_odd, far_even);
    to[5] = multiply_add(both, d[3], d[1] + d[5]);
  }

  static void transform_output(const Lanes<float> (&m)[kInput], Lanes<float> (&to)[kTile]) {
    const Lanes<float> near(2.0f / 3), near2(4.0f / 9), near3(8.0f / 27);
    const Lanes<float> far(3.0f / 2), far2(9.0f / 4), far3(27.0f / 8);
    const Lanes<float> sum = m[1] + m[2], difference = m[1] - m[2];
    const Lanes<float> far_sum = m[3] + m[4], far_difference = m[3] - m[4];
    to[0] = m[0] + sum + far_sum;
    to[1] = multiply_add(near, difference, far * far_difference);
    to[2] = multiply_add(near2, sum, far2 * far_sum);
    to[3] = multiply_add(near3, difference, multiply_add(far3, far_difference, m[5]));
  }

  static void transform_weights(const Lanes<float> (&g)[3], Lanes<float> (&to)[kInput]) {
    const Lanes<float> first(81.0f / 130), middle(27.0f / 65), last(18.0f / 65);
    const Lanes<float> far_first(8.0f / 65), far_middle(12.0f / 65);
    const Lanes<float> even = multiply_add(first, g[0], last * g[2]), odd = middle * g[1];
    const Lanes<float> far_even = multiply_add(far_first, g[0], last * g[2]);
    const Lanes<float> far_odd = far_middle * g[1], zero(0);
    to[0] = g[0];
    to[1] = zero - (even + odd);
    to[2] = odd - even;
    to[3] = far_even + far_odd;
    to[4] = far_even - far_odd;
    to[5] = g[2];
  }

  static void
  transform_output_gradient(const Lanes<float> (&y)[kTile], Lanes<float> (&to)[kInput]) {
    const Lanes<float> near(2.0f / 3), minus_near(-2.0f / 3), far(3.0f / 2), minus_far(-3.0f / 2);
    const Lanes<float> near2(4.0f / 9), far2(9.0f / 4);
    const Lanes<float> even = multiply_add(near2, y[2], y[0]);
    const Lanes<float> odd = multiply_add(near2, y[3], y[1]);
    const Lanes<float> far_even = multiply_add(far2, y[2], y[0]);
    const Lanes<float> far_odd = multiply_add(far2, y[3], y[1]);
    to[0] = y[0];
    to[1] = multiply_add(near, odd, even);
    to[2] = multiply_add(minus_near, odd, even);
    to[3] = multiply_add(far, far_odd, far_even);
    to[4] = multiply_add(minus_far, far_odd, far_even);
    to[5] = y[3];
  }

  static void transform_weights_gradient(const Lanes<float> (&m)[kInput], Lanes<float> (&to)[3]) {
    const Lanes<float> first(-81.0f / 130), middle(27.0f / 65), last(18.0f / 65);
    const Lanes<float> far_first(8.0f / 65), far_middle(12.0f / 65);
    const Lanes<float> sum = m[1] + m[2], far_sum = m[3] + m[4];
    to[0] = multiply_add(first, sum, multiply_add(far_first, far_sum, m[0]));
    to[1] = multiply_add(middle, m[2] - m[1], far_middle * (m[3] - m[4]));
    to[2] = multiply_add(last, far_sum - sum, m[5]);
  }
};

// transform(transform(from)^T)^T
template <auto transform, int64_t n, int64_t m>
inline void transform_both(const Lanes<float> (&from)[n][n], Lanes<float> (&to)[m][m]) {
  Lanes<float> columns[n][m]; // transposed
  for (int64_t j = 0; j < n; j++) {
    Lanes<float> column[n];
    for (int64_t i = 0; i < n; i++)
      column[i] = from[i][j];
    transform(column, columns[j]);
  }
  for (int64_t i = 0; i < m; i++) {
    Lanes<float> row[n];
    for (int64_t j = 0; j < n; j++)
      row[j] = columns[j][i];
    transform(row, to[i]);
  }
}

// The transform of a square, each of its positions to a matrix of its own, `step` apart.
template <class F, auto transform, int64_t n>
inline void store_positions(const Lanes<float> (&d)[n][n], float* to, int64_t step) {
  Lanes<float> v[F::kInput][F::kInput];
  transform_both<transform>(d, v);
  for (int64_t k = 0; k < F::kPositions; k++)
    v[k / F::kInput][k % F::kInput].store(to + k * step);
}

// The squares of all positions, transformed back.
template <class F, auto transform, int64_t m>
inline void load_positions(const float* from, int64_t step, Lanes<float> (&to)[m][m]) {
  Lanes<float> v[F::kInput][F::kInput];
  for (int64_t k = 0; k < F::kPositions; k++)
    v[k / F::kInput][k % F::kInput] = Lanes<float>::loadu(from + k * step);
  transform_both<transform>(v, to);
}

// Tiles of outputs, which cover each image, or plane of a volume.
template <class F>
struct Tiles {
  Tiles(int64_t n, const int64_t* out_size) // D, H, W
      : planes(out_size[0]),
        rows(ceil_div(out_size[1], F::kTile)),
        columns(ceil_div(out_size[2], F::kTile)),
        count(n * planes * rows * columns) {}

  struct Place {
    int64_t n, d, y, x; // of the first output
  };
  Place place(int64_t tile) const {
    const int64_t row = tile / columns, plane = row / rows;
    return {plane / planes, plane % planes, row % rows * F::kTile, tile % columns * F::kTile};
  }

  int64_t planes, rows, columns, count;
};

// ---- Tiles of images, transformed, with channels as lanes ----

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
