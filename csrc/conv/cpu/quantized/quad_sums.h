// The sums of depthwise convolution on machines that add up products of four bytes at once: those
// of a column of four taps.
//
// Rows of the kernel are taken four at a time, the last ones with rows of weight 0. Of 64 channels
// of four pixels, one above the other, two steps of interleaving make the four bytes of each
// channel neighbours. Interleaving stays within the 16 bytes of a lane: vector v of four then has
// channels 16 l + 4 v to 16 l + 4 v + 3 in lane l.
#pragma once

#include "conv/problem.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int64_t kQuadChannels = 64;  // at once
inline constexpr int kQuadVectors = 4;        // of their sums
inline constexpr int kQuadOutputs = 4;        // whose sums are in registers
inline constexpr int64_t kQuadTapBytes = 256; // of the weights of a tap of four rows

// Four rows of inputs, of which some may be pads.
struct RowQuad {
  const uint8_t* rows[4]; // the pixel of column 0, of the first channel
  int64_t step[4];        // from a pixel to the next
  const int8_t* weights;  // [tap][vector][byte]
};

// Some outputs of a row, of up to 64 channels.
struct QuadRun {
  const RowQuad* quads;
  int64_t count;       // of quads
  __mmask64 channels;  // that there are
  int64_t columns;     // of the image
  const uint8_t* pads; // instead of pixels of other columns
  __m512i flips;       // makes signed bytes unsigned
};

namespace quad_sums_detail {

// Products of unsigned bytes by signed ones, whose instruction this library's flags do not include.
inline __m512i add_quads(__m512i sums, __m512i a, const int8_t* b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "m"(*reinterpret_cast<const __m512i*>(b)));
  return sums;
}

struct Column {
  __m512i quads[kQuadVectors];
};

inline Column load_column(const QuadRun& run, const RowQuad& quad, int64_t x) {
  const bool is_inside = x >= 0 && x < run.columns;
  const auto load = [&](int row) {
    const uint8_t* const at = is_inside ? quad.rows[row] + x * quad.step[row] : run.pads;
    return _mm512_xor_si512(_mm512_maskz_loadu_epi8(run.channels, at), run.flips);
  };
  const __m512i a = load(0), b = load(1), c = load(2), d = load(3);
  const __m512i ab[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
  const __m512i cd[2] = {_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)};
  return {
      {_mm512_unpacklo_epi16(ab[0], cd[0]),
       _mm512_unpackhi_epi16(ab[0], cd[0]),
       _mm512_unpacklo_epi16(ab[1], cd[1]),
       _mm512_unpackhi_epi16(ab[1], cd[1])}};
}

// In the order of channels: lanes l of the vectors v are a matrix, which is transposed.
inline void store_in_order(const __m512i (&sums)[kQuadVectors], int32_t* to) {
  const __m512i a = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44);
  const __m512i b = _mm512_shuffle_i32x4(sums[2], sums[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(sums[0], sums[1], 0xee);
  const __m512i d = _mm512_shuffle_i32x4(sums[2], sums[3], 0xee);
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(a, b, 0x88));
  _mm512_storeu_si512(to + 16, _mm512_shuffle_i32x4(a, b, 0xdd));
  _mm512_storeu_si512(to + 32, _mm512_shuffle_i32x4(c, d, 0x88));
  _mm512_storeu_si512(to + 48, _mm512_shuffle_i32x4(c, d, 0xdd));
}

// The first output meets column x with its first tap.
template <int taps, int stride>
void add_outputs(const QuadRun& run, int64_t x, int32_t* to) {
  constexpr int columns = (kQuadOutputs - 1) * stride + taps;
  __m512i sums[kQuadOutputs][kQuadVectors] = {};
  for (int64_t q = 0; q < run.count; q++) {
    const RowQuad& quad = run.quads[q];
#pragma GCC unroll 16
    for (int column = 0; column < columns; column++) {
      const Column loaded = load_column(run, quad, x + column);
#pragma GCC unroll 4
      for (int i = 0; i < kQuadOutputs; i++) {
        const int tap = column - i * stride;
        if (tap < 0 || tap >= taps)
          continue;
        const int8_t* const weights = quad.weights + tap * kQuadVectors * sizeof(__m512i);
#pragma GCC unroll 4
        for (int v = 0; v < kQuadVectors; v++)
          sums[i][v] = add_quads(sums[i][v], loaded.quads[v], weights + v * sizeof(__m512i));
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kQuadOutputs; i++)
    store_in_order(sums[i], to + i * kQuadChannels);
}

} // namespace quad_sums_detail

// The sums of kQuadOutputs outputs, [output][channel], of which the first meets column x with its
// first tap.
using AddOutputs = void (*)(const QuadRun& run, int64_t x, int32_t* to);

// Null for taps and strides that there are no instances of.
inline AddOutputs add_outputs_of(const ConvProblem& p) {
  const auto of_stride = [&]<int taps>(std::integral_constant<int, taps>) -> AddOutputs {
    return p.stride[2] == 1 ? &quad_sums_detail::add_outputs<taps, 1>
        : p.stride[2] == 2  ? &quad_sums_detail::add_outputs<taps, 2>
                            : nullptr;
  };
  if (p.dilation[2] != 1)
    return nullptr;
  switch (p.kernel[2]) {
    case 3:
      return of_stride(std::integral_constant<int, 3>());
    case 5:
      return of_stride(std::integral_constant<int, 5>());
    case 7:
      return of_stride(std::integral_constant<int, 7>());
    default:
      return nullptr;
  }
}
#endif

} // namespace torch_dnnl
