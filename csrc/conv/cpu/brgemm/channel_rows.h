// Image rows with the pixels of a channel adjacent, and such rows as b of a GEMM whose k are
// pixels.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "conv/cpu/igemm/pack_weights.h"
#include "conv/cpu/shared/image_rows.h"
#include "core/cpu/transpose.h"

namespace torch_dnnl {

namespace channel_rows_detail {

// Elements that are `step` apart. With a constant step the compiler vectorizes this.
template <class T, class Step>
void copy_apart(const T* from, Step step, int64_t n, T* to) {
  for (int64_t i = 0; i < n; i++)
    to[i] = from[i * step];
}

// Every second element: the low half of each word. The last words begin one element earlier and
// give their high halves, so that nothing is read beyond the last element.
template <class T>
void copy_every_second(const T* from, int64_t n, T* to) {
  constexpr int64_t lanes = 16;
  typedef uint32_t Words __attribute__((vector_size(4 * lanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * lanes)));
  if (sizeof(T) != 2 || n <= lanes)
    return copy_apart(from, std::integral_constant<int64_t, 2>(), n, to);
  const auto copy = [&](int64_t i, int64_t earlier) {
    Words words;
    std::memcpy(&words, from + 2 * i - earlier, sizeof(words));
    const Halves halves = __builtin_convertvector(words >> 16 * earlier, Halves);
    std::memcpy(to + i, &halves, sizeof(halves));
  };
  for (int64_t i = 0; i < n - lanes; i += lanes)
    copy(i, 0);
  copy(n - lanes, 1);
}

// Pairs of 16-bit numbers, as 32-bit words that the compiler vectorizes.
template <class T>
void interleave_pair(const T* first, const T* second, int64_t n, T* to) {
  static_assert(sizeof(T) == 2);
  const auto* const a = reinterpret_cast<const uint16_t*>(first);
  const auto* const b = reinterpret_cast<const uint16_t*>(second);
  auto* const __restrict pairs = reinterpret_cast<uint32_t*>(to);
  for (int64_t i = 0; i < n; i++)
    pairs[i] = a[i] | static_cast<uint32_t>(b[i]) << 16;
}

// For channels-last images.
template <int64_t vnni, class T>
void interleave_pixels(const ImageRow& row, int64_t columns, T* to) {
  const Range inside = row.inside();
  const int64_t step = row.step * row.pixel_stride, channels = row.channels;
  const auto* image = static_cast<const T*>(row.data) + row.first * row.pixel_stride;
  const auto pixel = [&](int64_t x) {
    return x >= inside.begin && x < inside.end ? image + x * step : nullptr;
  };
  for (int64_t x = 0; x < row.pixels; x += vnni, to += vnni * columns) {
    const T *const first = pixel(x), *const last = pixel(x + vnni - 1);
    const bool are_inside = first != nullptr && last != nullptr;
    if (!are_inside || channels < columns)
      std::fill_n(to, vnni * columns, T(0));
    if constexpr (vnni == 2) {
      if (are_inside) {
        interleave_pair(first, last, channels, to);
        continue;
      }
    }
    for (int64_t i = 0; i < vnni; i++)
      for (int64_t c = 0; c < channels && pixel(x + i) != nullptr; c++)
        to[vnni * c + i] = pixel(x + i)[c];
  }
}

} // namespace channel_rows_detail

// [channel][pixel] with `pitch` elements from a channel to the next. Padding is 0.
template <class T>
void copy_channel_rows(const ImageRow& row, int64_t pitch, T* to) {
  using namespace channel_rows_detail;
  const Range inside = row.inside();
  const int64_t step = row.step * row.pixel_stride;
  const auto* from =
      static_cast<const T*>(row.data) + (row.first + inside.begin * row.step) * row.pixel_stride;
  const bool is_transposed = row.channel_stride == 1 && row.channels > 1;
  for (int64_t c = 0; c < row.channels; c++) {
    T* const own = to + c * pitch;
    std::fill_n(own, inside.begin, T(0));
    std::fill(own + inside.end, own + row.pixels, T(0));
    if (is_transposed)
      continue;
    const T* const channel = from + c * row.channel_stride;
    if (step == 1)
      copy_short(own + inside.begin, channel, inside.count() * sizeof(T));
    else if (step == 2)
      copy_every_second(channel, inside.count(), own + inside.begin);
    else
      copy_apart(channel, step, inside.count(), own + inside.begin);
  }
  if (is_transposed && inside.count() > 0)
    transpose_numbers(from, step, inside.count(), to + inside.begin, pitch, row.channels);
}

// Image rows, `row_stride` apart, as b: [pixel / vnni][column][pixel % vnni]. Columns are channels;
// those that the image lacks are 0. buffer: memory for rows * pixels * columns.
template <int64_t vnni, class T>
void interleave_rows(
    ImageRow row,
    int64_t rows,
    int64_t row_stride,
    int64_t columns,
    T* buffer,
    T* to) {
  const auto* image = static_cast<const T*>(row.data);
  const int64_t pixels = row.pixels, k = rows * pixels;
  for (int64_t i = 0; i < rows; i++, image += row_stride) {
    row.data = image;
    if (row.channel_stride == 1)
      channel_rows_detail::interleave_pixels<vnni>(row, columns, to + i * pixels * columns);
    else
      copy_channel_rows(row, k, buffer + i * pixels);
  }
  if (row.channel_stride == 1)
    return;
  std::fill_n(buffer + row.channels * k, (columns - row.channels) * k, T(0));
  interleave_vnni<vnni>(buffer, k, columns, k, to);
}

} // namespace torch_dnnl
