// Pixels of an image as vectors whose lanes are channels, whatever the image's layout: loads that
// widen and transpose on the way in, stores that transpose and round on the way out.
#pragma once

#include <algorithm>

#include "core/cpu/transpose.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {

// A run of pixels in an image.
template <class T>
struct ImageRun {
  T* data;
  int64_t channels, pixels, channel_stride, pixel_stride;
};

// The same run in float32 or float64: pixel x of vector v, which is channels v * lanes and so on,
// is at data + v * vector_stride + x * pixel_stride. The channels end within the last vector.
template <class C>
struct LaneRun {
  C* data;
  int64_t vector_stride, pixel_stride;
};

namespace pixels_detail {

// A square of vectors. `flatten` here and below inlines ATen's transposes, which are several times
// faster where their sizes are constants.
template <class C>
[[gnu::noinline, gnu::flatten]] void
transpose_square(const C* from, int64_t from_step, C* to, int64_t to_step) {
  at::vec::transpose_mxn<C, kLanes<C>, kLanes<C>>(from, from_step, to, to_step);
}

// Transposes `rows` rows of `columns` elements, at most a square: to(column, row) = from(row,
// column). Columns of `to` that `from` has no rows for, up to `width`, are 0.
template <class C, class T, class U>
[[gnu::noinline, gnu::flatten]] void transpose_part(
    const T* from,
    int64_t from_step,
    int64_t rows,
    int64_t columns,
    U* to,
    int64_t to_step,
    int64_t width) {
  constexpr int64_t n = kLanes<C>;
  const bool is_whole = columns == n && width == n;
  alignas(64) C block[n * n], transposed[n * n];
  const auto transpose_lanes = [&](const C* lines, int64_t step) {
    if constexpr (std::is_same_v<U, C>) {
      if (is_whole)
        return at::vec::transpose_mxn<C, n, n>(lines, step, to, to_step);
    }
    at::vec::transpose_mxn<C, n, n>(lines, step, transposed, n);
    for (int64_t c = 0; c < columns; c++)
      store_up_to<C>(to + c * to_step, Lanes<C>::loadu(transposed + c * n), width);
  };
  if constexpr (std::is_same_v<T, C>) {
    if (is_whole && rows == n)
      return transpose_lanes(from, from_step);
  }
  for (int64_t r = 0; r < rows; r++)
    load_up_to<C>(from + r * from_step, columns).store(block + r * n);
  for (int64_t r = rows; r < width; r++)
    Lanes<C>(0).store(block + r * n);
  transpose_lanes(block, n);
}

// The same, which is mostly a square.
template <class C, class T, class U>
[[gnu::always_inline]] inline void transpose_block(
    const T* from,
    int64_t from_step,
    int64_t rows,
    int64_t columns,
    U* to,
    int64_t to_step,
    int64_t width) {
  constexpr int64_t n = kLanes<C>;
  if constexpr (std::is_same_v<T, C> && std::is_same_v<U, C>) {
    if (rows == n && columns == n && width == n)
      return transpose_square(from, from_step, to, to_step);
  }
  transpose_part<C>(from, from_step, rows, columns, to, to_step, width);
}

// f(x, count) for blocks of n pixels, the last of which overlaps the one before, or one of fewer.
template <class F>
[[gnu::always_inline]] inline void for_each_block(int64_t pixels, int64_t n, const F& f) {
  for (int64_t x = 0; x < pixels; x += n) {
    const int64_t first = std::max<int64_t>(std::min(x, pixels - n), 0);
    f(first, std::min(n, pixels - first));
  }
}

} // namespace pixels_detail

// Lanes without a channel become 0. may_exceed: a whole vector of pixels may be read and written
// where there are fewer pixels, which is faster.
template <class C, class T>
void load_pixels(const ImageRun<const T>& from, const LaneRun<C>& to, bool may_exceed = false) {
  constexpr int64_t n = kLanes<C>;
  if (from.channel_stride == 1) {
    const int64_t whole = from.channels / n, rest = from.channels % n, step = to.vector_stride;
    // Of some channels of each pixel, the machine foresees no next ones.
    const int64_t ahead = 8 * from.pixel_stride;
    for (int64_t x = 0; x < from.pixels; x++) {
      const T* pixel = from.data + x * from.pixel_stride;
      C* lanes = to.data + x * to.pixel_stride;
      for (int64_t v = 0; v < whole; v++, pixel += n, lanes += step) {
        __builtin_prefetch(pixel + ahead);
        load_lanes<C>(pixel).store(lanes);
      }
      if (rest > 0)
        load_lanes<C>(pixel, rest).store(lanes);
    }
    return;
  }
  for (int64_t c = 0; c < from.channels; c += n) {
    const T* line = from.data + c * from.channel_stride;
    C* lanes = to.data + c / n * to.vector_stride;
    const int64_t channels = std::min(n, from.channels - c);
    if (from.pixel_stride == 1) {
      const int64_t pixels = may_exceed ? std::max(from.pixels, n) : from.pixels;
      pixels_detail::for_each_block(pixels, n, [&](int64_t x, int64_t count) {
        C* pixel = lanes + x * to.pixel_stride;
        pixels_detail::transpose_block<C>(
            line + x, from.channel_stride, channels, count, pixel, to.pixel_stride, n);
      });
      continue;
    }
    for (int64_t x = 0; x < from.pixels; x++) {
      C* pixel = lanes + x * to.pixel_stride;
      for (int64_t i = 0; i < n; i++) {
        pixel[i] = i < channels
            ? static_cast<C>(line[i * from.channel_stride + x * from.pixel_stride])
            : C(0);
      }
    }
  }
}

namespace pixels_detail {

// Channels become lines of pixels after they are rounded: of smaller elements more fit into
// registers.
template <class C, class T>
void round_and_transpose(const LaneRun<const C>& from, const ImageRun<T>& to) {
  constexpr int64_t n = kLanes<C>, size = 64;
  alignas(64) T block[size * size];
  for (int64_t c = 0; c < to.channels; c += size) {
    const int64_t channels = std::min(size, to.channels - c);
    for (int64_t x = 0; x < to.pixels; x += size) {
      const int64_t pixels = std::min(size, to.pixels - x);
      for (int64_t i = 0; i < pixels; i++) {
        const C* lanes = from.data + c / n * from.vector_stride + (x + i) * from.pixel_stride;
        for (int64_t at = 0; at < channels; at += n, lanes += from.vector_stride)
          store_lanes<C>(block + i * size + at, Lanes<C>::loadu(lanes));
      }
      T* const line = to.data + c * to.channel_stride + x;
      transpose_numbers(block, size, pixels, line, to.channel_stride, channels);
    }
  }
}

} // namespace pixels_detail

template <class C, class T>
void store_pixels(const LaneRun<const C>& from, const ImageRun<T>& to) {
  constexpr int64_t n = kLanes<C>;
  constexpr int64_t many = 64, some = 8; // channels and pixels; of fewer, blocks are faster
  if constexpr (sizeof(T) < sizeof(C)) {
    if (to.pixel_stride == 1 && to.channels >= many && to.pixels >= some)
      return pixels_detail::round_and_transpose(from, to);
  }
  if (to.channel_stride == 1) {
    const int64_t whole = to.channels / n, rest = to.channels % n, step = from.vector_stride;
    for (int64_t x = 0; x < to.pixels; x++) {
      const C* lanes = from.data + x * from.pixel_stride;
      T* pixel = to.data + x * to.pixel_stride;
      for (int64_t v = 0; v < whole; v++, pixel += n, lanes += step)
        store_lanes<C>(pixel, Lanes<C>::loadu(lanes));
      if (rest > 0)
        store_lanes<C>(pixel, Lanes<C>::loadu(lanes), rest);
    }
    return;
  }
  for (int64_t c = 0; c < to.channels; c += n) {
    const C* lanes = from.data + c / n * from.vector_stride;
    T* line = to.data + c * to.channel_stride;
    const int64_t channels = std::min(n, to.channels - c);
    if (to.pixel_stride == 1) {
      pixels_detail::for_each_block(to.pixels, n, [&](int64_t x, int64_t count) {
        const C* pixel = lanes + x * from.pixel_stride;
        pixels_detail::transpose_block<C>(
            pixel, from.pixel_stride, count, channels, line + x, to.channel_stride, count);
      });
      continue;
    }
    for (int64_t x = 0; x < to.pixels; x++) {
      for (int64_t i = 0; i < channels; i++) {
        line[i * to.channel_stride + x * to.pixel_stride] =
            convert<T>(lanes[x * from.pixel_stride + i]);
      }
    }
  }
}

} // namespace torch_dnnl
