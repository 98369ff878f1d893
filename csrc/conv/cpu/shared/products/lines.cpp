#include "conv/cpu/shared/products/lines.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "conv/cpu/shared/products/channel_lines.h"
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
    return transpose_numbers(from, line.channel_stride, channels, to, pitch, pixels);
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
      std::copy_n(channel, inside.count(), own + inside.begin);
    else
      for (int64_t x = inside.begin; x < inside.end; x++)
        own[x] = channel[(x - inside.begin) * step];
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
