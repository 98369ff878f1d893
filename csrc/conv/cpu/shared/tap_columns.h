// Depthwise convolution by dot products of four bytes (dot4) or of two bfloat16 (dot2) in each
// 32-bit lane: the products of a column of taps, one tap in each of four or two kernel rows.
//
// Kernel rows are computed four or two at a time; missing rows have weight 0. A vector of channels
// is loaded from each of four or two pixels, one above the other. Interleaving the vectors makes
// the values of a channel adjacent. Interleaving stays within 16-byte lanes: lane l of accumulator
// v has the four channels from `kRows * 4 l + 4 v` on. Accumulators of bytes keep this order, and
// packing to bytes restores the order of channels.
//
// In halves: a block with half as many channels has their weights twice. Its vectors compute two
// pixels, `kOutputs` apart, one in each half.
#pragma once

#include <algorithm>

#include "conv/problem.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
// T: uint8_t or BFloat16.
template <class T>
struct TapColumns {
  static constexpr int kRows = 4 / sizeof(T); // and vectors of sums
  static constexpr int64_t kChannels = 64 / sizeof(T);
  static constexpr int kOutputs = 16 / kRows; // whose sums are in registers
  static constexpr int64_t kHalf = kChannels / 2;
  static constexpr int64_t kTapWeights = kRows * kChannels;
  using Weight = std::conditional_t<std::is_same_v<T, uint8_t>, int8_t, T>;
  using Out = std::conditional_t<std::is_same_v<T, uint8_t>, int32_t, T>;

  // Where the sum of a channel is among those of all vectors.
  static int64_t place(int64_t channel) {
    const int64_t in_lane = channel % (4 * kRows);
    return in_lane / 4 * 16 + channel / (4 * kRows) * 4 + in_lane % 4;
  }

  // Some rows of inputs, of which some may be pads.
  struct Rows {
    const T* row[kRows];   // the pixel of column 0, of the first channel
    int64_t step[kRows];   // from a pixel to the next
    const Weight* weights; // [tap][vector][channel][row]
  };

  // Some outputs of a row.
  struct Run {
    const Rows* rows;
    int64_t count;     // of them
    const void* first; // what sums begin with, in the order of vectors
    std::conditional_t<sizeof(T) == 1, __mmask64, __mmask32> channels; // that there are
    int64_t columns;                                                   // of the image
    const T* pads; // instead of pixels of other columns
    __m512i flips; // makes signed bytes unsigned
  };
};

namespace tap_columns_detail {

template <class T>
using Run = typename TapColumns<T>::Run;

// Written as asm because the library is compiled without the flags of these instructions.
template <class T>
inline __m512i dot(__m512i sums, __m512i a, const void* b) {
  const auto& weights = *static_cast<const __m512i*>(b);
  if constexpr (std::is_same_v<T, uint8_t>)
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "m"(weights));
  else
    asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "m"(weights));
  return sums;
}

template <class T>
struct Column {
  __m512i words[TapColumns<T>::kRows];
};

// Of a pixel of each row, `at`; in halves, of two.
template <class T, bool in_halves>
inline Column<T> load_column(
    const Run<T>& run,
    const T* const (&at)[TapColumns<T>::kRows],
    const T* const (&other)[TapColumns<T>::kRows]) {
  const auto load = [&](int i) {
    if constexpr (in_halves)
      return _mm512_xor_si512(
          _mm512_inserti64x4(
              _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at[i]))),
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(other[i])),
              1),
          run.flips);
    else if constexpr (sizeof(T) == 1)
      return _mm512_xor_si512(_mm512_maskz_loadu_epi8(run.channels, at[i]), run.flips);
    else
      return _mm512_maskz_loadu_epi16(run.channels, at[i]);
  };
  const __m512i a = load(0), b = load(1);
  if constexpr (sizeof(T) == 2) {
    return {{_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)}};
  } else {
    const __m512i c = load(2), d = load(3);
    const __m512i ab[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
    const __m512i cd[2] = {_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)};
    return {
        {_mm512_unpacklo_epi16(ab[0], cd[0]),
         _mm512_unpackhi_epi16(ab[0], cd[0]),
         _mm512_unpacklo_epi16(ab[1], cd[1]),
         _mm512_unpackhi_epi16(ab[1], cd[1])}};
  }
}

inline void store_sums(const Run<uint8_t>& /*run*/, const __m512i (&sums)[4], int32_t* to) {
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++)
    _mm512_storeu_si512(to + v * 16, sums[v]);
}

// Rounded sums. None is a subnormal number, of which the instruction would make 0: products are
// added by one that never makes any.
inline void store_sums(const Run<c10::BFloat16>& run, const __m512i (&sums)[2], c10::BFloat16* to) {
  __m512i rounded;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(rounded) : "v"(sums[1]), "v"(sums[0]));
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); // fours of channels
  const __m512i in_order = _mm512_permutexvar_epi64(order, rounded);
  if (run.channels == ~__mmask32(0)) // Zen 4 takes many times as long to store with a mask
    _mm512_storeu_si512(to, in_order);
  else
    _mm512_mask_storeu_epi16(to, run.channels, in_order);
}

template <class T>
using Sums = __m512i[TapColumns<T>::kOutputs][TapColumns<T>::kRows];

// are_inside: all columns are those of the image.
template <class T, int taps, int stride, bool in_halves, bool are_inside>
[[gnu::always_inline]] inline void
add_rows(const Run<T>& run, const typename TapColumns<T>::Rows& rows, int64_t x, Sums<T>& sums) {
  using Columns = TapColumns<T>;
  constexpr int outputs = Columns::kOutputs, vectors = Columns::kRows;
  constexpr int apart = outputs * stride; // columns, of the pixels of two halves
  const T* pixels[vectors];
#pragma GCC unroll 4
  for (int i = 0; i < vectors; i++)
    pixels[i] = rows.row[i] + x * rows.step[i];
  const auto is_in_image = [&](int64_t column) {
    return are_inside || (column >= 0 && column < run.columns);
  };
#pragma GCC unroll 32
  for (int column = 0; column < (outputs - 1) * stride + taps; column++) {
    const bool is_inside = is_in_image(x + column), is_other = is_in_image(x + column + apart);
    const T *at[vectors], *other[vectors];
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) {
      at[i] = is_inside ? pixels[i] : run.pads;
      other[i] = is_other ? pixels[i] + apart * rows.step[i] : run.pads;
      pixels[i] += rows.step[i];
    }
    const Column<T> loaded = load_column<T, in_halves>(run, at, other);
#pragma GCC unroll 8
    for (int i = 0; i < outputs; i++) {
      const int tap = column - i * stride;
      if (tap < 0 || tap >= taps)
        continue;
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) {
        const auto* const weights =
            rows.weights + tap * Columns::kTapWeights + v * Columns::kChannels;
        sums[i][v] = dot<T>(sums[i][v], loaded.words[v], weights);
      }
    }
  }
}

template <class T, int taps, int stride, bool in_halves>
void add_outputs(
    const Run<T>& run,
    int64_t x,
    typename TapColumns<T>::Out* to,
    int64_t out_step,
    int64_t count) {
  constexpr int outputs = TapColumns<T>::kOutputs, vectors = TapColumns<T>::kRows;
  Sums<T> sums;
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
      add_rows<T, taps, stride, in_halves, true>(run, run.rows[i], x, sums);
  else
    for (int64_t i = 0; i < run.count; i++)
      add_rows<T, taps, stride, in_halves, false>(run, run.rows[i], x, sums);
#pragma GCC unroll 8
  for (int i = 0; i < outputs; i++)
    if (i < count)
      store_sums(run, sums[i], to + i * out_step);
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

// Of up to kOutputs outputs, of which the first meets column x with its first tap: sums of bytes,
// [output][vector][16], or results of bfloat16, [output][channel]; out_step: from an output to the
// next. In halves: of up to 2 kOutputs, of which the vectors of each have another one as well.
template <class T>
using AddColumns = void (*)(
    const typename TapColumns<T>::Run& run,
    int64_t x,
    typename TapColumns<T>::Out* to,
    int64_t out_step,
    int64_t count);

// Null for taps and strides that there are no instances of.
template <class T, bool in_halves = false>
AddColumns<T> add_columns_of(const ConvProblem& p) {
  using tap_columns_detail::add_outputs;
  const auto of_stride = [&]<int taps>(std::integral_constant<int, taps>) -> AddColumns<T> {
    return p.stride[2] == 1 ? &add_outputs<T, taps, 1, in_halves>
        : p.stride[2] == 2  ? &add_outputs<T, taps, 2, in_halves>
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

// The weights of a problem, [block of channels][rows][tap][vector][channel][row].
template <class T>
class ColumnWeights {
 public:
  using Columns = TapColumns<T>;
  using Weight = typename Columns::Weight;

  explicit ColumnWeights(const ConvProblem& p) : p_(p) {
    parallel_tasks(blocks_, 32 * counts_ * size_, [&](int64_t begin, int64_t end) {
      std::fill_n(
          weights_.data() + begin * counts_ * size_, (end - begin) * counts_ * size_, Weight(0));
      const int64_t last = std::min(end * Columns::kChannels, p_.groups);
      for (int64_t c = begin * Columns::kChannels; c < last; c++)
        pack(c);
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
  const Weight* at(int64_t block, int64_t i) const {
    return weights_.data() + (block * counts_ + i) * size_;
  }

  // Rows of the image that a row of outputs meets, in plane d and row h. row_at(d, h): where column
  // 0 of one of the image is; step: from a pixel to the next.
  template <class RowAt>
  void select(
      int64_t block,
      int64_t out_d,
      int64_t out_h,
      const T* pads,
      int64_t step,
      const RowAt& row_at,
      typename Columns::Rows* rows) const {
    constexpr int64_t n = Columns::kRows;
    for (int64_t i = 0; i < counts_ * n; i++) {
      const int64_t kd = i / p_.kernel[1], kh = i % p_.kernel[1];
      const int64_t d = out_d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
      const int64_t h = out_h * p_.stride[1] + kh * p_.dilation[1] - p_.pad[1];
      const bool is_inside =
          kd < p_.kernel[0] && d >= 0 && d < p_.src_size[0] && h >= 0 && h < p_.src_size[1];
      auto& to = rows[i / n];
      to.weights = at(block, i / n);
      to.step[i % n] = is_inside ? step : 0;
      to.row[i % n] = is_inside ? row_at(d, h) : pads;
    }
  }

 private:
  void pack(int64_t c) const {
    const int64_t block = c / Columns::kChannels, channel = c % Columns::kChannels;
    pack(c, block, channel);
    if (is_half(block))
      pack(c, block, channel + Columns::kHalf);
  }
  void pack(int64_t c, int64_t block, int64_t channel) const {
    const int64_t* const ws = p_.weights_stride;
    const auto* const weights = static_cast<const Weight*>(p_.weights) + c * p_.weights_group;
    constexpr int64_t n = Columns::kRows;
    Weight* const to = weights_.data() + block * counts_ * size_ + Columns::place(channel) * n;
    for (int64_t i = 0; i < p_.kernel[0] * p_.kernel[1]; i++)
      for (int64_t tap = 0; tap < p_.kernel[2]; tap++)
        to[i / n * size_ + tap * Columns::kTapWeights + i % n] =
            weights[i / p_.kernel[1] * ws[2] + i % p_.kernel[1] * ws[3] + tap * ws[4]];
  }

  const ConvProblem& p_;
  const int64_t counts_ = ceil_div(p_.kernel[0] * p_.kernel[1], int64_t(Columns::kRows));
  const int64_t size_ = p_.kernel[2] * Columns::kTapWeights;
  const int64_t blocks_ = ceil_div(p_.groups, Columns::kChannels);
  const Scratch<Weight> weights_{blocks_ * counts_ * size_};
};
#endif

} // namespace torch_dnnl
