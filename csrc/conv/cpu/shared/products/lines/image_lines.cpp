#include "conv/cpu/shared/products/lines/image_lines.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "conv/cpu/shared/products/lines/channel_lines.h"
#include "core/cpu/transpose.h"

namespace torch_dnnl {
namespace {

// Pixels of a line that lie in the image.
Range inside_of(const LineOfImage& line) {
  const Range inside = within(line.first, line.step, line.size, line.pixels);
  const int64_t begin = std::min(inside.begin, line.pixels);
  return {begin, std::max(begin, inside.end)};
}

// As memcpy does, without a call where there is little to copy.
inline void copy_few(void* to, const void* from, int64_t bytes) {
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

// Elements that are `step` apart. The compiler makes vectors of them, if it knows the step.
template <class T, class Step>
void copy_apart(const T* from, Step step, int64_t n, T* to) {
  for (int64_t i = 0; i < n; i++)
    to[i] = from[i * step];
}

// Every second element. Halves of words are low ones or, at the end, high ones, so that nothing is
// read behind the last element.
template <class T>
void copy_every_second(const T* from, int64_t n, T* to) {
  constexpr int64_t lanes = 16;
  typedef uint32_t Words __attribute__((vector_size(4 * lanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * lanes)));
  if (sizeof(T) != 2 || n <= lanes)
    return copy_apart(from, std::integral_constant<int64_t, 2>(), n, to);
  const auto copy = [&](int64_t i, int64_t in_front) {
    Words words;
    std::memcpy(&words, from + 2 * i - in_front, sizeof(words));
    const Halves halves = __builtin_convertvector(words >> 16 * in_front, Halves);
    std::memcpy(to + i, &halves, sizeof(halves));
  };
  for (int64_t i = 0; i < n - lanes; i += lanes)
    copy(i, 0);
  copy(n - lanes, 1);
}

// Lines of channels become pixels. Lines that compete for the same sets of the first-level cache
// are copied first: a transpose reads each several times.
template <class T>
void transpose_lines(
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
        copy_few(block + i * apart, from + (c + i) * channel_stride + x, count * sizeof(T));
      transpose_numbers(block, apart, lines, to + x * pitch + c, pitch, count);
    }
  }
}

// These pixels, [pixel][channel] with `pitch` elements from a pixel to the next.
template <class T>
void copy_pixels(const LineOfImage& line, Range inside, int64_t pitch, T* to) {
  const int64_t channels = line.channels, step = line.step * line.pixel_stride;
  const int64_t pixels = inside.count();
  const auto* from = static_cast<const T*>(line.data) +
      (line.first + inside.begin * line.step) * line.pixel_stride;
  if (line.channel_stride == 1) {
    if (step == channels && pitch == channels) {
      std::memcpy(to, from, pixels * channels * sizeof(T));
      return;
    }
    for (int64_t x = 0; x < pixels; x++)
      copy_few(to + x * pitch, from + x * step, channels * sizeof(T));
    return;
  }
  if (step == 1 && channels > 1)
    return transpose_lines(from, line.channel_stride, channels, to, pitch, pixels);
  for (int64_t x = 0; x < pixels; x++)
    for (int64_t c = 0; c < channels; c++)
      to[x * pitch + c] = from[x * step + c * line.channel_stride];
}

template <class To>
void convert_bytes(const uint8_t* from, int64_t n, const IntegerLines<To>& lines, To* to) {
  if constexpr (sizeof(To) == 1) {
    if (lines.is_signed)
      for (int64_t i = 0; i < n; i++)
        to[i] = from[i] ^ 0x80;
    return;
  } else {
    // In 16 bits: the result of either is exact.
    const auto offset = static_cast<int16_t>(lines.zero_point + (lines.is_signed ? 128 : 0));
    const auto flip = static_cast<uint8_t>(lines.is_signed ? 0x80 : 0);
    for (int64_t i = 0; i < n; i++)
      to[i] = static_cast<To>(static_cast<int16_t>(
          static_cast<int16_t>(static_cast<uint8_t>(from[i] ^ flip)) - offset));
  }
}

} // namespace

template <class To>
void IntegerLines<To>::copy(const LineOfImage& line, int64_t pitch, uint8_t* bytes, To* to) const {
  const Range inside = inside_of(line);
  To* const first = to + inside.begin * pitch;
  std::fill(to, first, pad());
  const int64_t n = inside.count() * pitch, step = line.step * line.pixel_stride;
  if (n > 0 && sizeof(To) > 1 && line.channel_stride == 1 && step != line.channels) {
    const auto* from = static_cast<const uint8_t*>(line.data) +
        (line.first + inside.begin * line.step) * line.pixel_stride;
    for (int64_t x = 0; x < inside.count(); x++)
      convert_bytes(from + x * step, line.channels, *this, first + x * pitch);
  } else if (n > 0) {
    uint8_t* const own = sizeof(To) == 1 ? reinterpret_cast<uint8_t*>(first) : bytes;
    copy_pixels(line, inside, pitch, own);
    convert_bytes(own, n, *this, first);
  }
  std::fill(first + n, to + line.pixels * pitch, pad());
}

template <class T>
void FloatLines<T>::copy(const LineOfImage& line, int64_t pitch, T* /*elements*/, T* to) const {
  const Range inside = inside_of(line);
  if (pitch != line.channels) // there are zeros between pixels
    std::fill_n(to, line.pixels * pitch, T(0));
  std::fill_n(to, inside.begin * pitch, T(0));
  copy_pixels(line, inside, pitch, to + inside.begin * pitch);
  std::fill(to + inside.end * pitch, to + line.pixels * pitch, T(0));
}

template <class T>
void copy_channel_lines(const LineOfImage& line, int64_t pitch, T* to) {
  const Range inside = inside_of(line);
  const int64_t step = line.step * line.pixel_stride;
  const auto* from = static_cast<const T*>(line.data) +
      (line.first + inside.begin * line.step) * line.pixel_stride;
  const bool is_transposed = line.channel_stride == 1 && line.channels > 1;
  for (int64_t c = 0; c < line.channels; c++) {
    T* const own = to + c * pitch;
    std::fill_n(own, inside.begin, T(0));
    std::fill(own + inside.end, own + line.pixels, T(0));
    if (is_transposed)
      continue;
    const T* const channel = from + c * line.channel_stride;
    if (step == 1)
      copy_few(own + inside.begin, channel, inside.count() * sizeof(T));
    else if (step == 2)
      copy_every_second(channel, inside.count(), own + inside.begin);
    else
      copy_apart(channel, step, inside.count(), own + inside.begin);
  }
  if (is_transposed && inside.count() > 0)
    transpose_numbers(from, step, inside.count(), to + inside.begin, pitch, line.channels);
}

template <class T, int64_t pack>
void interleave_lines(const T* from, int64_t pitch, int64_t lines, int64_t depth, T* to) {
  constexpr size_t size = pack * sizeof(T);
  using Packed = std::conditional_t<size == 4, uint32_t, uint16_t>;
  using Row = std::conditional_t<pack == 1, T, Packed>;
  static_assert(pack * sizeof(T) == sizeof(Row));
  transpose_numbers(
      reinterpret_cast<const Row*>(from),
      pitch / pack,
      lines,
      reinterpret_cast<Row*>(to),
      lines,
      depth / pack);
}

// As pairs, which the compiler makes vectors of.
template <class T>
void interleave_two(const T* first, const T* second, int64_t n, T* to) {
  static_assert(sizeof(T) == 2);
  const auto* const a = reinterpret_cast<const uint16_t*>(first);
  const auto* const b = reinterpret_cast<const uint16_t*>(second);
  auto* const __restrict pairs = reinterpret_cast<uint32_t*>(to);
  for (int64_t i = 0; i < n; i++)
    pairs[i] = a[i] | static_cast<uint32_t>(b[i]) << 16;
}

// The channels of each pixel, which lie next to each other, as rows of products.
template <class T, int64_t pack>
void interleave_pixels(const LineOfImage& line, int64_t columns, T* to) {
  const Range inside = inside_of(line);
  const int64_t step = line.step * line.pixel_stride, channels = line.channels;
  const auto* image = static_cast<const T*>(line.data) + line.first * line.pixel_stride;
  const auto pixel = [&](int64_t x) {
    return x >= inside.begin && x < inside.end ? image + x * step : nullptr;
  };
  for (int64_t x = 0; x < line.pixels; x += pack, to += pack * columns) {
    const T *const first = pixel(x), *const last = pixel(x + pack - 1);
    const bool are_inside = first != nullptr && last != nullptr;
    if (!are_inside || channels < columns)
      std::fill_n(to, pack * columns, T(0));
    if constexpr (pack == 2) {
      if (are_inside) {
        interleave_two(first, last, channels, to);
        continue;
      }
    }
    for (int64_t i = 0; i < pack; i++)
      for (int64_t c = 0; c < channels && pixel(x + i) != nullptr; c++)
        to[pack * c + i] = pixel(x + i)[c];
  }
}

template <class T, int64_t pack>
void interleave_rows(
    LineOfImage line,
    int64_t rows,
    int64_t row_stride,
    int64_t columns,
    T* lines,
    T* to) {
  const auto* image = static_cast<const T*>(line.data);
  const int64_t pixels = line.pixels, depth = rows * pixels;
  for (int64_t row = 0; row < rows; row++, image += row_stride) {
    line.data = image;
    if (line.channel_stride == 1)
      interleave_pixels<T, pack>(line, columns, to + row * pixels * columns);
    else
      copy_channel_lines(line, depth, lines + row * pixels);
  }
  if (line.channel_stride == 1)
    return;
  std::fill_n(lines + line.channels * depth, (columns - line.channels) * depth, T(0));
  interleave_lines<T, pack>(lines, depth, columns, depth, to);
}

template void interleave_rows<float, 1>(LineOfImage, int64_t, int64_t, int64_t, float*, float*);
template void interleave_rows<c10::BFloat16, 2>(
    LineOfImage,
    int64_t,
    int64_t,
    int64_t,
    c10::BFloat16*,
    c10::BFloat16*);
template void
interleave_rows<c10::Half, 2>(LineOfImage, int64_t, int64_t, int64_t, c10::Half*, c10::Half*);
template void copy_channel_lines(const LineOfImage&, int64_t, float*);
template void copy_channel_lines(const LineOfImage&, int64_t, c10::BFloat16*);
template void copy_channel_lines(const LineOfImage&, int64_t, c10::Half*);
template void interleave_lines<float, 1>(const float*, int64_t, int64_t, int64_t, float*);
template void
interleave_lines<c10::BFloat16, 2>(const c10::BFloat16*, int64_t, int64_t, int64_t, c10::BFloat16*);
template void
interleave_lines<c10::Half, 2>(const c10::Half*, int64_t, int64_t, int64_t, c10::Half*);
template void interleave_lines<int16_t, 2>(const int16_t*, int64_t, int64_t, int64_t, int16_t*);
template void interleave_lines<int8_t, 2>(const int8_t*, int64_t, int64_t, int64_t, int8_t*);
template void interleave_lines<int8_t, 4>(const int8_t*, int64_t, int64_t, int64_t, int8_t*);

template struct IntegerLines<uint8_t>;
template struct IntegerLines<int16_t>;
template struct FloatLines<float>;
template struct FloatLines<c10::BFloat16>;
template struct FloatLines<c10::Half>;

} // namespace torch_dnnl
