// Copies of image rows as [pixel][channel], with padding inserted, in the type of a GEMM's input.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/cpu/transpose.h"
#include "core/math.h"

namespace torch_dnnl {

// Pixels of one image row: `pixels` from `first` on, `step` apart. Those outside are padding.
struct ImageRow {
  const void* data; // of the first channel and of pixel 0
  int64_t channels, channel_stride;
  int64_t first, pixels, step;
  int64_t size, pixel_stride; // of the image

  // The pixels that are not padding.
  Range inside() const {
    const Range range = within(first, step, size, pixels);
    const int64_t begin = std::min(range.begin, pixels);
    return {begin, std::max(begin, range.end)};
  }
};

// memcpy without a call for few bytes.
inline void copy_short(void* to, const void* from, int64_t bytes) {
  constexpr int64_t piece = 16, few = 128;
  if (bytes < piece || bytes > few) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (int64_t i = 0; i < bytes; i += piece) { // the last piece overlaps the one before
    const int64_t at = std::min(i, bytes - piece);
    std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, piece);
  }
}

namespace image_rows_detail {

// Transposes rows of channels into pixels. Channels whose distance makes them compete for the same
// sets of the first-level cache are copied first, because a transpose reads each several times.
template <class T>
void transpose_channels(
    const T* from,
    int64_t channel_stride,
    int64_t channels,
    T* to,
    int64_t pitch,
    int64_t pixels) {
  constexpr int64_t aliased = 2048; // bytes
  constexpr int64_t rows = 32, columns = 128, apart = columns + 16;
  if (channel_stride * int64_t(sizeof(T)) % aliased != 0 || channels < rows / 2)
    return transpose_numbers(from, channel_stride, channels, to, pitch, pixels);
  alignas(64) T block[rows * apart];
  for (int64_t c = 0; c < channels; c += rows) {
    const int64_t lines = std::min(rows, channels - c);
    for (int64_t x = 0; x < pixels; x += columns) {
      const int64_t count = std::min(columns, pixels - x);
      for (int64_t i = 0; i < lines; i++)
        copy_short(block + i * apart, from + (c + i) * channel_stride + x, count * sizeof(T));
      transpose_numbers(block, apart, lines, to + x * pitch + c, pitch, count);
    }
  }
}

// [pixel][channel], with `pitch` elements from a pixel to the next.
template <class T>
void copy_pixels(const ImageRow& row, Range pixels, int64_t pitch, T* to) {
  const int64_t channels = row.channels, step = row.step * row.pixel_stride;
  const int64_t count = pixels.count();
  const auto* from =
      static_cast<const T*>(row.data) + (row.first + pixels.begin * row.step) * row.pixel_stride;
  if (row.channel_stride == 1) {
    if (step == channels && pitch == channels) {
      std::memcpy(to, from, count * channels * sizeof(T));
      return;
    }
    for (int64_t x = 0; x < count; x++)
      copy_short(to + x * pitch, from + x * step, channels * sizeof(T));
    return;
  }
  if (step == 1 && channels > 1)
    return transpose_channels(from, row.channel_stride, channels, to, pitch, count);
  for (int64_t x = 0; x < count; x++)
    for (int64_t c = 0; c < channels; c++)
      to[x * pitch + c] = from[x * step + c * row.channel_stride];
}

template <class A>
void convert_bytes(const uint8_t* from, int64_t n, bool is_signed, int zero_point, A* to) {
  if constexpr (sizeof(A) == 1) {
    if (is_signed)
      for (int64_t i = 0; i < n; i++)
        to[i] = from[i] ^ 0x80;
  } else {
    // int16 arithmetic is exact here, and vectorizes.
    const auto offset = static_cast<int16_t>(zero_point + (is_signed ? 128 : 0));
    const auto flip = static_cast<uint8_t>(is_signed ? 0x80 : 0);
    for (int64_t i = 0; i < n; i++)
      to[i] = static_cast<A>(static_cast<int16_t>(
          static_cast<int16_t>(static_cast<uint8_t>(from[i] ^ flip)) - offset));
  }
}

} // namespace image_rows_detail

// Rows of int8 or uint8. A = uint8_t: int8 is shifted by 128. A = int16_t: input - zero point.
template <class A>
struct IntegerRows {
  using Element = uint8_t;
  bool is_signed;
  int zero_point;

  // Whether copies equal the image.
  bool is_identity() const {
    return sizeof(A) == 1 && !is_signed;
  }
  A padding() const {
    return sizeof(A) == 1 ? static_cast<A>(zero_point + (is_signed ? 128 : 0)) : A(0);
  }
  // Pixels of `to` are `pitch` apart. elements: memory for pixels * pitch.
  void copy(const ImageRow& row, int64_t pitch, uint8_t* elements, A* to) const;
};

template <class T>
struct FloatRows {
  using Element = T;

  bool is_identity() const {
    return true;
  }
  T padding() const {
    return T(0);
  }
  void copy(const ImageRow& row, int64_t pitch, T* elements, T* to) const;
};

template <class A>
void IntegerRows<A>::copy(const ImageRow& row, int64_t pitch, uint8_t* elements, A* to) const {
  const Range inside = row.inside();
  A* const first = to + inside.begin * pitch;
  std::fill(to, first, padding());
  const int64_t n = inside.count() * pitch, step = row.step * row.pixel_stride;
  if (n > 0 && sizeof(A) > 1 && row.channel_stride == 1 && step != row.channels) {
    const auto* from = static_cast<const uint8_t*>(row.data) +
        (row.first + inside.begin * row.step) * row.pixel_stride;
    for (int64_t x = 0; x < inside.count(); x++)
      image_rows_detail::convert_bytes(
          from + x * step, row.channels, is_signed, zero_point, first + x * pitch);
  } else if (n > 0) {
    uint8_t* const bytes = sizeof(A) == 1 ? reinterpret_cast<uint8_t*>(first) : elements;
    image_rows_detail::copy_pixels(row, inside, pitch, bytes);
    image_rows_detail::convert_bytes(bytes, n, is_signed, zero_point, first);
  }
  std::fill(first + n, to + row.pixels * pitch, padding());
}

template <class T>
void FloatRows<T>::copy(const ImageRow& row, int64_t pitch, T* /*elements*/, T* to) const {
  const Range inside = row.inside();
  if (pitch != row.channels) // zeros between pixels
    std::fill_n(to, row.pixels * pitch, T(0));
  std::fill_n(to, inside.begin * pitch, T(0));
  image_rows_detail::copy_pixels(row, inside, pitch, to + inside.begin * pitch);
  std::fill(to + inside.end * pitch, to + row.pixels * pitch, T(0));
}

} // namespace torch_dnnl
