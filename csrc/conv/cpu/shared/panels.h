// Matrices that lie in tensors, and the panels that products read of them.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/blocks.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {

// An index of a matrix: several of a tensor as one number, of which the last runs fastest.
struct Axis {
  int64_t size[4], stride[4];

  int64_t count() const {
    return size[0] * size[1] * size[2] * size[3];
  }

  // Where [begin, begin + n) lie.
  void offsets(int64_t begin, int64_t n, int64_t* to) const {
    int64_t digit[4], rest = begin;
    for (int d = 3; d >= 0; d--) {
      digit[d] = rest % size[d];
      rest /= size[d];
    }
    for (int64_t i = 0; i < n; i++) {
      to[i] =
          digit[0] * stride[0] + digit[1] * stride[1] + digit[2] * stride[2] + digit[3] * stride[3];
      for (int d = 3; d >= 0 && ++digit[d] == size[d] && d > 0; d--)
        digit[d] = 0;
    }
  }
};

// How many of offsets[0], ... lie next to each other.
inline int64_t run_length(const int64_t* offsets, int64_t n) {
  int64_t length = 1;
  while (length < n && offsets[length] == offsets[0] + length)
    length++;
  return length;
}

// Whether they are at one distance from each other.
inline bool are_even(const int64_t* offsets, int64_t n) {
  for (int64_t i = 2; i < n; i++) {
    if (offsets[i] - offsets[i - 1] != offsets[1] - offsets[0])
      return false;
  }
  return true;
}

namespace matrices_detail {

// Rows that lie next to each other: read in the order they lie in.
template <int64_t width, class C, class T>
void pack_run(
    const T* from,
    int64_t n,
    const int64_t* columns,
    int64_t depth,
    C* to,
    int64_t step) {
  const int64_t rest = n % width;
  for (int64_t c = 0; c < depth; c++, to += width) {
    const T* row = from + columns[c];
    C* panel = to;
    for (int64_t r = width; r <= n; r += width, row += width, panel += step)
      widen(row, width, panel);
    if (rest > 0) {
      widen(row, rest, panel);
      std::fill(panel + rest, panel + width, C(0));
    }
  }
}

// Part of a panel: to[c * width + r] = from[rows[r] + columns[c]].
template <int64_t width, class C, class T>
void pack_part(
    const T* from,
    const int64_t* rows,
    int64_t n,
    const int64_t* columns,
    int64_t depth,
    C* to) {
  if (n >= 4 && depth >= 4 && run_length(columns, depth) == depth) {
    for (int64_t i = 0; i < n; i += 4) {
      const int64_t r = std::min(i, n - 4);
      for (int64_t j = 0; j < depth; j += 4) {
        const int64_t c = std::min(j, depth - 4);
        Quad<C> square[4];
        for (int64_t k = 0; k < 4; k++)
          square[k] = load_quad<C>(from + rows[r + k] + columns[c]);
        transpose(square);
        for (int64_t k = 0; k < 4; k++)
          std::memcpy(to + (c + k) * width + r, &square[k], sizeof(Quad<C>));
      }
    }
    return;
  }
  if (run_length(rows, n) == n) {
    for (int64_t c = 0; c < depth; c++)
      widen(from + rows[0] + columns[c], n, to + c * width);
    return;
  }
  for (int64_t c = 0; c < depth; c++) {
    for (int64_t r = 0; r < n; r++)
      to[c * width + r] = static_cast<C>(from[rows[r] + columns[c]]);
  }
}

} // namespace matrices_detail

// Panels of `width` rows each, `step` apart: to[c * width + r] = from[rows[r] + columns[c]], and 0
// in rows from n on.
template <int64_t width, class C, class T>
void pack_panels(
    const T* from,
    const int64_t* rows,
    int64_t n,
    const int64_t* columns,
    int64_t depth,
    C* to,
    int64_t step) {
  if (run_length(rows, n) == n)
    return matrices_detail::pack_run<width>(from + rows[0], n, columns, depth, to, step);
  constexpr int64_t at_once = 16; // a cache line
  for (int64_t r = 0; r < n; r += width, to += step) {
    if (n - r < width)
      std::fill(to, to + depth * width, C(0));
    for (int64_t c = 0; c < depth; c += at_once) {
      matrices_detail::pack_part<width>(
          from,
          rows + r,
          std::min(width, n - r),
          columns + c,
          std::min(at_once, depth - c),
          to + c * width);
    }
  }
}

} // namespace torch_dnnl
