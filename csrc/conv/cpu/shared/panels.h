// Matrices that lie in tensors, and the panels that products read of them.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "core/cpu/shuffles.h"
#include "core/cpu/vectors.h"
#include "core/math.h"

namespace torch_dnnl {

using Offsets = std::span<const int64_t>;

// An index of a matrix: several of a tensor as one number, of which the last runs fastest.
struct Axis {
  int64_t size[4], stride[4];

  int64_t count() const {
    return size[0] * size[1] * size[2] * size[3];
  }

  // The first part becomes the one that runs fastest.
  void rotate() {
    std::rotate(size, size + 1, size + 4);
    std::rotate(stride, stride + 1, stride + 4);
  }

  // From one to the next, if that is one distance; 1 if there are no two.
  std::optional<int64_t> step() const {
    int64_t count = 1, first = 1;
    for (int d = 3; d >= 0; d--) {
      if (size[d] == 1)
        continue;
      if (count == 1)
        first = stride[d];
      else if (stride[d] != count * first)
        return std::nullopt;
      count *= size[d];
    }
    return first;
  }

  // Where these lie, written to `to`.
  Offsets offsets(Range range, int64_t* to) const {
    const int64_t n = range.count();
    int64_t digit[4], rest = range.begin;
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
    return {to, size_t(n)};
  }
};

// How many of the first ones lie next to each other.
inline int64_t run_length(Offsets offsets) {
  size_t length = 1;
  while (length < offsets.size() && offsets[length] == offsets[length - 1] + 1)
    length++;
  return static_cast<int64_t>(length);
}
inline bool is_run(Offsets offsets) {
  return run_length(offsets) == std::ssize(offsets);
}

// Whether they are at one distance from each other.
inline bool are_even(Offsets offsets) {
  for (size_t i = 2; i < offsets.size(); i++)
    if (offsets[i] - offsets[i - 1] != offsets[1] - offsets[0])
      return false;
  return true;
}

namespace matrices_detail {

// n rows that lie next to each other: read in the order they lie in. Panels that are narrower than
// a vector are widened as vectors, whose last lanes are overwritten by the next column, or lie
// between panels.
template <int64_t width, class C, class T>
void pack_run(const T* from, int64_t n, Offsets columns, C* to, int64_t step) {
  constexpr bool is_narrow = !std::is_same_v<T, C> && width < kLanes<C>;
  const int64_t rest = n % width;
  const bool may_exceed = is_narrow && step - width * std::ssize(columns) >= kLanes<C> - width;
  for (const int64_t column : columns) {
    const T* row = from + column;
    C* panel = to;
    int64_t r = width;
    for (; may_exceed && r + kLanes<C> - width <= n; r += width, row += width, panel += step)
      load_lanes<C>(row).store(panel);
    for (; r <= n; r += width, row += width, panel += step)
      widen(row, width, panel);
    if (rest > 0) {
      widen(row, rest, panel);
      std::fill(panel + rest, panel + width, C(0));
    }
    to += width;
  }
}

// Part of a panel: to[c * width + r] = from[rows[r] + columns[c]].
template <int64_t width, class C, class T>
void pack_part(const T* from, Offsets rows, Offsets columns, C* to) {
  const int64_t n = std::ssize(rows), depth = std::ssize(columns);
  if (n >= 4 && depth >= 4 && is_run(columns)) {
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
  const bool are_joined = is_run(rows);
  for (int64_t c = 0; c < depth; c++, to += width) {
    if (are_joined) {
      widen(from + rows[0] + columns[c], n, to);
      continue;
    }
    for (int64_t r = 0; r < n; r++)
      to[r] = static_cast<C>(from[rows[r] + columns[c]]);
  }
}

// The columns of a panel that fill squares of vectors, which lie in rows; returns how many. With
// `flatten` ATen's transposes have constant sizes, and are several times as fast.
template <int64_t width>
[[gnu::noinline, gnu::flatten]] int64_t
pack_squares(const float* from, int64_t row_step, int64_t depth, float* to) {
  constexpr int64_t n = kLanes<float>;
  const int64_t end = depth / n * n;
  for (int64_t c = 0; c < end; c += n)
    for (int64_t r = 0; r < width; r += n)
      at::vec::transpose_mxn<float, n, n>(
          from + r * row_step + c, row_step, to + c * width + r, width);
  return end;
}

} // namespace matrices_detail

// Panels of `width` rows each, `step` apart: to[c * width + r] = from[rows[r] + columns[c]], and 0
// in rows behind the last one.
template <int64_t width, class C, class T>
void pack_panels(const T* from, Offsets rows, Offsets columns, C* to, int64_t step) {
  const int64_t n = std::ssize(rows), depth = std::ssize(columns);
  if (is_run(rows))
    return matrices_detail::pack_run<width>(from + rows[0], n, columns, to, step);
  constexpr int64_t at_once = 16; // a cache line
  // Those that ATen transposes in registers.
  constexpr bool has_squares = std::is_same_v<T, float> && std::is_same_v<C, float> &&
      sizeof(Register<C>) == sizeof(Vector<C>) && width % kLanes<C> == 0;
  const bool are_squares = has_squares && is_run(columns) && are_even(rows);
  for (int64_t r = 0; r < n; r += width, to += step) {
    const Offsets some = rows.subspan(r, std::min(width, n - r));
    if (n - r < width)
      std::fill(to, to + depth * width, C(0));
    int64_t c = 0;
    if constexpr (has_squares) {
      if (are_squares && n - r >= width) {
        const T* first = from + some[0] + columns[0];
        c = matrices_detail::pack_squares<width>(first, some[1] - some[0], depth, to);
      }
    }
    for (; c < depth; c += at_once) {
      const Offsets part = columns.subspan(c, std::min(at_once, depth - c));
      matrices_detail::pack_part<width>(from, some, part, to + c * width);
    }
  }
}

} // namespace torch_dnnl
