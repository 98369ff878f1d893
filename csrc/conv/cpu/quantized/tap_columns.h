// Depthwise convolution by dot products of four bytes (dot4) in each 32-bit lane: the products of a
// column of taps, one tap in each of four kernel rows.
//
// Kernel rows are computed four at a time; missing rows have weight 0. A vector of channels is
// loaded from each of four pixels, one above the other. Interleaving the vectors makes the bytes of
// a channel adjacent. Interleaving stays within 16-byte lanes: lane l of accumulator v has the four
// channels from `16 l + 4 v` on. Accumulators keep this order, and packing to bytes restores the
// order of channels.
//
// In halves: a block with half as many channels has their weights twice. Its vectors compute two
// pixels, `kOutputs` apart, one in each half.
#pragma once

#include <algorithm>

#include "conv/problem.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
struct TapColumns {
  static constexpr int kRows = 4;    // and vectors of sums
  static constexpr int kOutputs = 4; // whose sums are in registers
  static constexpr int64_t kChannels = 64, kHalf = kChannels / 2;
  static constexpr int64_t kTapWeights = kRows * kChannels;

  // Where the sum of a channel is among those of all vectors.
  static int64_t place(int64_t channel) {
    const int64_t in_lane = channel % (4 * kRows);
    return in_lane / 4 * 16 + channel / (4 * kRows) * 4 + in_lane % 4;
  }

  // Some rows of inputs, of which some may be pads.
  struct Rows {
    const uint8_t* row[kRows]; // the pixel of column 0, of the first channel
    int64_t step[kRows];       // from a pixel to the next
    const int8_t* weights;     // [tap][vector][channel][row]
  };

  // Some outputs of a row.
  struct Run {
    const Rows* rows;
    int64_t count;       // of them
    const void* first;   // what sums begin with, in the order of vectors
    __mmask64 channels;  // that there are
    int64_t columns;     // of the image
    const uint8_t* pads; // instead of pixels of other columns
    __m512i flips;       // makes signed bytes unsigned
  };
};

namespace tap_columns_detail {

using Run = TapColumns::Run;

// Written as asm because the library is compiled without the flag of this instruction.
inline __m512i dot4(__m512i sums, __m512i a, const void* b) {
  const auto& weights = *static_cast<const __m512i*>(b);
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "m"(weights));
  return sums;
}

struct Column {
  __m512i words[TapColumns::kRows];
};

// Of a pixel of each row, `at`; in halves, of two.
template <bool in_halves>
inline Column load_column(
    const Run& run,
    const uint8_t* const (&at)[TapColumns::kRows],
    const uint8_t* const (&other)[TapColumns::kRows]) {
  const auto load = [&](int i) {
    if constexpr (in_halves)
      return _mm512_xor_si512(
          _mm512_inserti64x4(
              _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at[i]))),
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(other[i])),
              1),
          run.flips);
    else
      return _mm512_xor_si512(_mm512_maskz_loadu_epi8(run.channels, at[i]), run.flips);
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

using Sums = __m512i[TapColumns::kOutputs][TapColumns::kRows];

// are_inside: all columns are those of the image.
template <int taps, int stride, bool in_halves, bool are_inside>
[[gnu::always_inline]] inline void
add_rows(const Run& run, const TapColumns::Rows& rows, int64_t x, Sums& sums) {
  constexpr int outputs = TapColumns::kOutputs, vectors = TapColumns::kRows;
  constexpr int apart = outputs * stride; // columns, of the pixels of two halves
  const uint8_t* pixels[vectors];
#pragma GCC unroll 4
  for (int i = 0; i < vectors; i++)
    pixels[i] = rows.row[i] + x * rows.step[i];
  const auto is_in_image = [&](int64_t column) {
    return are_inside || (column >= 0 && column < run.columns);
  };
#pragma GCC unroll 32
  for (int column = 0; column < (outputs - 1) * stride + taps; column++) {
    const bool is_inside = is_in_image(x + column), is_other = is_in_image(x + column + apart);
    const uint8_t *at[vectors], *other[vectors];
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) {
      at[i] = is_inside ? pixels[i] : run.pads;
      other[i] = is_other ? pixels[i] + apart * rows.step[i] : run.pads;
      pixels[i] += rows.step[i];
    }
    const Column loaded = load_column<in_halves>(run, at, other);
#pragma GCC unroll 8
    for (int i = 0; i < outputs; i++) {
      const int tap = column - i * stride;
      if (tap < 0 || tap >= taps)
        continue;
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) {
        const auto* const weights =
            rows.weights + tap * TapColumns::kTapWeights + v * TapColumns::kChannels;
        sums[i][v] = dot4(sums[i][v], loaded.words[v], weights);
      }
    }
  }
}

template <int taps, int stride, bool in_halves>
void add_outputs(const Run& run, int64_t x, int32_t* to, int64_t out_step, int64_t count) {
  constexpr int outputs = TapColumns::kOutputs, vectors = TapColumns::kRows;
  Sums sums;
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) {
    sums[0][v] = _mm512_loadu_si512(static_cast<const __m512i*>(run.first) + v);
#pragma GCC unroll 8
    for (int i = 1; i < outputs; i++)
      sums[i][v] = sums[0][v];
  }
  constexpr int reach = ((in_halves ? 2 : 1) * outputs - 1) * stride + taps;
  if (x >= 0 && x + reach <= run.columns)
    for (int64_t i = 0; i < run.count; i++)
      add_rows<taps, stride, in_halves, true>(run, run.rows[i], x, sums);
  else
    for (int64_t i = 0; i < run.count; i++)
      add_rows<taps, stride, in_halves, false>(run, run.rows[i], x, sums);
#pragma GCC unroll 8
  for (int i = 0; i < outputs; i++) {
    if (i < count) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++)
        _mm512_storeu_si512(to + i * out_step + v * 16, sums[i][v]);
    }
  }
}

} // namespace tap_columns_detail

// Sums of bytes in the order of channels: lanes l of the vectors v are a matrix, which is
// transposed.
inline void sort_sums(int32_t* sums, int64_t outputs) {
  for (int32_t* at = sums; at < sums + outputs * 64; at += 64) {
    const auto load = [&](int v) { return _mm512_loadu_si512(at + v * 16); };
    const __m512i a = _mm512_shuffle_i32x4(load(0), load(1), 0x44);
    const __m512i b = _mm512_shuffle_i32x4(load(2), load(3), 0x44);
    const __m512i c = _mm512_shuffle_i32x4(load(0), load(1), 0xee);
    const __m512i d = _mm512_shuffle_i32x4(load(2), load(3), 0xee);
    _mm512_storeu_si512(at, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_storeu_si512(at + 16, _mm512_shuffle_i32x4(a, b, 0xdd));
    _mm512_storeu_si512(at + 32, _mm512_shuffle_i32x4(c, d, 0x88));
    _mm512_storeu_si512(at + 48, _mm512_shuffle_i32x4(c, d, 0xdd));
  }
}

// Sums of up to kOutputs outputs, [output][vector][16]. The first output meets column x with its
// first tap. out_step: from an output to the next. In halves: of up to 2 kOutputs outputs, and the
// vectors of an output hold another output as well.
using AddColumns =
    void (*)(const TapColumns::Run& run, int64_t x, int32_t* to, int64_t out_step, int64_t count);

// Null for taps and strides that there are no instances of.
template <bool in_halves = false>
AddColumns add_columns_of(const ConvProblem& p) {
  using tap_columns_detail::add_outputs;
  const auto of_stride = [&]<int taps>(std::integral_constant<int, taps>) -> AddColumns {
    return p.stride[2] == 1 ? &add_outputs<taps, 1, in_halves>
        : p.stride[2] == 2  ? &add_outputs<taps, 2, in_halves>
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

// The weights of a problem, [block of channels][rows][tap][vector][channel][row], and behind these
// the sum of each channel's weights as an int32.
class ColumnWeights {
 public:
  using Columns = TapColumns;

  explicit ColumnWeights(const ConvProblem& p) : p_(p) {}

  int64_t bytes() const {
    return weights_bytes_ + blocks_ * Columns::kChannels * static_cast<int64_t>(sizeof(int32_t));
  }
  void pack(int8_t* to) const {
    auto* const sums = reinterpret_cast<int32_t*>(to + weights_bytes_);
    const int64_t size = counts_ * size_;
    parallel_ranges(blocks_, 32 * size, [&](int64_t begin, int64_t end) {
      std::fill_n(to + begin * size, (end - begin) * size, int8_t(0));
      for (int64_t c = begin * Columns::kChannels; c < end * Columns::kChannels; c++)
        sums[c] = c < p_.groups ? pack_channel(c, to) : 0;
    });
  }
  int64_t count() const { // of the rows of a block
    return counts_;
  }
  int64_t blocks() const {
    return blocks_;
  }
  // Whether a block has half of the channels, and their weights twice.
  bool is_half(int64_t block) const {
    return p_.groups - block * Columns::kChannels == Columns::kHalf;
  }
  // For each channel, the sum of its packed weights.
  const int32_t* sums(const int8_t* packed) const {
    return reinterpret_cast<const int32_t*>(packed + weights_bytes_);
  }

  // Rows of the image that a row of outputs meets, in plane d and row h. row_at(d, h): where column
  // 0 of one of the image is; step: from a pixel to the next.
  template <class RowAt>
  void select(
      const int8_t* packed,
      int64_t block,
      int64_t out_d,
      int64_t out_h,
      const uint8_t* pads,
      int64_t step,
      const RowAt& row_at,
      Columns::Rows* rows) const {
    constexpr int64_t n = Columns::kRows;
    for (int64_t i = 0; i < counts_ * n; i++) {
      const int64_t kd = i / p_.kernel[1], kh = i % p_.kernel[1];
      const int64_t d = out_d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
      const int64_t h = out_h * p_.stride[1] + kh * p_.dilation[1] - p_.pad[1];
      const bool is_inside =
          kd < p_.kernel[0] && d >= 0 && d < p_.src_size[0] && h >= 0 && h < p_.src_size[1];
      auto& to = rows[i / n];
      to.weights = packed + (block * counts_ + i / n) * size_;
      to.step[i % n] = is_inside ? step : 0;
      to.row[i % n] = is_inside ? row_at(d, h) : pads;
    }
  }

 private:
  int32_t pack_channel(int64_t c, int8_t* to) const {
    const int64_t block = c / Columns::kChannels, channel = c % Columns::kChannels;
    to += block * counts_ * size_;
    if (is_half(block))
      pack_at(c, channel + Columns::kHalf, to);
    return pack_at(c, channel, to);
  }
  // The sum of the weights.
  int32_t pack_at(int64_t c, int64_t channel, int8_t* to) const {
    const int64_t* const ws = p_.weights_stride;
    const auto* const weights = static_cast<const int8_t*>(p_.weights) + c * p_.weights_group;
    constexpr int64_t n = Columns::kRows;
    to += Columns::place(channel) * n;
    int32_t sum = 0;
    for (int64_t i = 0; i < p_.kernel[0] * p_.kernel[1]; i++) {
      for (int64_t tap = 0; tap < p_.kernel[2]; tap++) {
        const int8_t weight =
            weights[i / p_.kernel[1] * ws[2] + i % p_.kernel[1] * ws[3] + tap * ws[4]];
        to[i / n * size_ + tap * Columns::kTapWeights + i % n] = weight;
        sum += weight;
      }
    }
    return sum;
  }

  const ConvProblem& p_;
  const int64_t counts_ = ceil_div(p_.kernel[0] * p_.kernel[1], int64_t(Columns::kRows));
  const int64_t size_ = p_.kernel[2] * Columns::kTapWeights;
  const int64_t blocks_ = ceil_div(p_.groups, Columns::kChannels);
  const int64_t weights_bytes_ = blocks_ * counts_ * size_;
};
#endif

} // namespace torch_dnnl
