// Winograd's F(2x2, 3x3) in integers: 16 products for four outputs instead of 36 (Lavin and Gray,
// Fast Algorithms for Convolutional Neural Networks, 2015). With twice G, nothing has a fraction,
// and what comes out is four times the sums, exactly:
//
//   4 y = A^T [ (2G g (2G)^T) * (B^T d B) ] A
//
// Differences of bytes from a zero point are below 256 in size, so that elements of B^T d B are
// below 1024, and those of the transformed weights at most 9 x 128: both are of 16 bits.
#pragma once

#include <cstring>

#include "core/cpu/vectors.h"

namespace torch_dnnl {

inline constexpr int kWinogradElements = 16; // of a transformed tile
inline constexpr int64_t kWinogradMostTerms = (int64_t(1) << 29) / (9 * 255 * 128);

namespace winograd_detail {

template <class V, class T>
inline V load_as(const T* from) {
  V value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// f(i, V{}) for all i of [0, n) in steps of a vector, and one by one where there is no whole one.
template <class V, class F>
inline void for_each_vector(int64_t n, const F& f) {
  constexpr int64_t lanes = sizeof(V) / sizeof(int16_t);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    f(i, V{});
  for (; i < n; i++)
    f(i, int16_t{});
}

// B^T of a column or row.
template <class V>
inline void transform_inputs(const V (&d)[4], V (&to)[4]) {
  to[0] = d[0] - d[2];
  to[1] = d[1] + d[2];
  to[2] = d[2] - d[1];
  to[3] = d[1] - d[3];
}

// 2G of a column or row.
template <class V>
inline void transform_weights(const V (&g)[3], V (&to)[4]) {
  to[0] = g[0] + g[0];
  to[1] = g[0] + g[1] + g[2];
  to[2] = g[0] - g[1] + g[2];
  to[3] = g[2] + g[2];
}

} // namespace winograd_detail

// The tiles of `channels` inputs of 4 x 4 pixels; rows[r] is the first pixel of a row. Element t of
// channel i goes to to[t * element_step + i].
inline void transform_input_tile(
    const int16_t* const (&rows)[4],
    int64_t channels,
    int16_t* to,
    int64_t element_step) {
  using namespace winograd_detail;
  for_each_vector<Vector<int16_t>>(channels, [&]<class V>(int64_t i, V) {
    V down[4][4]; // [column][row]
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      V column[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++)
        column[r] = load_as<V>(rows[r] + c * channels + i);
      transform_inputs(column, down[c]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      V across[4];
      transform_inputs({down[0][r], down[1][r], down[2][r], down[3][r]}, across);
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++)
        std::memcpy(to + (4 * r + c) * element_step + i, &across[c], sizeof(V));
    }
  });
}

// The same of `channels` kernels of 3 x 3, of which tap t is at taps + t * channels.
inline void
transform_weights_tile(const int16_t* taps, int64_t channels, int16_t* to, int64_t element_step) {
  using namespace winograd_detail;
  for_each_vector<Vector<int16_t>>(channels, [&]<class V>(int64_t i, V) {
    const auto tap = [&](int r, int c) { return load_as<V>(taps + (3 * r + c) * channels + i); };
    V down[3][4]; // [column][row]
    for (int c = 0; c < 3; c++)
      transform_weights({tap(0, c), tap(1, c), tap(2, c)}, down[c]);
    for (int r = 0; r < 4; r++) {
      V across[4];
      transform_weights({down[0][r], down[1][r], down[2][r]}, across);
      for (int c = 0; c < 4; c++)
        std::memcpy(to + (4 * r + c) * element_step + i, &across[c], sizeof(V));
    }
  });
}

// The 2 x 2 sums of `channels` outputs, a multiple of a vector, of the elements that are
// `element_step` apart: (y, x) to to[y * row_step + x * pixel_step]. Modulo 2^32 until the end.
inline void transform_output_tile(
    const int32_t* elements,
    int64_t element_step,
    int64_t channels,
    int32_t* to,
    int64_t row_step,
    int64_t pixel_step) {
  using Modulo = Vector<uint32_t>;
  using Ints = Vector<int32_t>;
  constexpr int64_t lanes = kLanes<int32_t>;
  for (int64_t i = 0; i < channels; i += lanes) {
    Modulo down[4][2]; // [column][row]
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const auto at = [&](int r) {
        return Modulo(load_vector(elements + (4 * r + c) * element_step + i));
      };
      const Modulo second = at(1), third = at(2);
      down[c][0] = at(0) + second + third;
      down[c][1] = second - third - at(3);
    }
#pragma GCC unroll 2
    for (int r = 0; r < 2; r++) {
      const Ints sums[2] = {
          Ints(down[0][r] + down[1][r] + down[2][r]) >> 2,
          Ints(down[1][r] - down[2][r] - down[3][r]) >> 2};
      for (int x = 0; x < 2; x++)
        store_vector<int32_t>(to + r * row_step + x * pixel_step + i, sums[x]);
    }
  }
}

} // namespace torch_dnnl
