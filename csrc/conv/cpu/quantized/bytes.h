// From vectors of float32 to bytes: v / scale + zero point, rounded to the nearest integer, ties to
// even, and saturated; 0 of NaN: as convert() has it.
#pragma once

#include <cmath>
#include <limits>

#include "conv/quantized/problem.h"
#include "core/cpu/quotients.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {

using Ints = Vector<int32_t>;

// The lesser and the greater of two numbers; a NaN stays if it is the first. (Of comparisons GCC
// makes two instructions.)
inline Vector<float> at_most(Vector<float> value, Vector<float> bound) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_min_ps(bound, value);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_min_ps(bound, value);
#else
  return value > bound ? bound : value;
#endif
}
inline Vector<float> at_least(Vector<float> value, Vector<float> bound) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_max_ps(bound, value);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_max_ps(bound, value);
#else
  return value < bound ? bound : value;
#endif
}

// The nearest integers to numbers that are no NaN. Those beyond the range of Dst are on the same
// side of it, or are its bound. is_bounded: numbers are below 2^31.
template <class Dst, bool is_bounded = false>
inline Ints nearest(Vector<float> value) {
  constexpr float high = std::numeric_limits<Dst>::max();
#if defined(CPU_CAPABILITY_AVX512)
  return Ints(_mm512_cvtps_epi32(is_bounded ? value : at_most(value, broadcast(high))));
#elif defined(CPU_CAPABILITY_AVX2)
  return Ints(_mm256_cvtps_epi32(is_bounded ? value : at_most(value, broadcast(high))));
#else
  // The addition rounds, and leaves the integer in the lowest bits.
  const Vector<float> low = broadcast(float(std::numeric_limits<Dst>::min()));
  const Vector<float> limited = at_least(at_most(value, broadcast(high)), low);
  return Ints(limited + broadcast(0x1.8p23f)) - 0x4b400000;
#endif
}

#if defined(CPU_CAPABILITY_AVX512)
// Four vectors of integers as bytes that saturate: four each of the vectors 0 to 3, four times.
template <class Dst>
inline __m512i packed_bytes(const Ints (&values)[4]) {
  const auto words = [](Ints a, Ints b) { return _mm512_packs_epi32(__m512i(a), __m512i(b)); };
  const __m512i low = words(values[0], values[1]), high = words(values[2], values[3]);
  return std::is_signed_v<Dst> ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
}
// Those of one vector after those of another.
template <class Dst>
inline __m512i saturated_bytes(const Ints (&values)[4]) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed_bytes<Dst>(values));
}
#endif

// Vectors of integers, as bytes that saturate.
template <int vectors, class Dst>
inline void store_saturated(const Ints (&values)[vectors], Dst* to) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (vectors == 4) {
    _mm512_storeu_si512(to, saturated_bytes<Dst>(values));
    return;
  }
  for (int i = 0; i < vectors; i++) {
    const auto wide = __m512i(values[i]);
    const __m128i bytes = std::is_signed_v<Dst>
        ? _mm512_cvtsepi32_epi8(wide)
        : _mm512_cvtusepi32_epi8(_mm512_max_epi32(wide, _mm512_setzero_si512()));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, bytes);
  }
#elif defined(CPU_CAPABILITY_AVX2)
  static_assert(vectors == 1 || vectors == 4);
  const auto words = [](Ints a, Ints b) { return _mm256_packs_epi32(__m256i(a), __m256i(b)); };
  const auto pack = [](__m256i a, __m256i b) {
    return std::is_signed_v<Dst> ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b);
  };
  if constexpr (vectors == 4) {
    // Packing interleaves lanes of 16 bytes: four bytes each of the vectors 0 to 3, twice.
    const __m256i mixed = pack(words(values[0], values[1]), words(values[2], values[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(mixed, order));
  } else {
    const __m256i four = words(values[0], values[0]), mixed = pack(four, four);
    const __m128i low = _mm256_castsi256_si128(mixed), high = _mm256_extracti128_si256(mixed, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi32(low, high));
  }
#else
  for (int i = 0; i < vectors; i++)
    for (int64_t lane = 0; lane < kLanes<float>; lane++)
      to[i * kLanes<float> + lane] = static_cast<Dst>(values[i][lane]);
#endif
}

// n bytes of what value_at(i) returns, a vector of numbers from the i-th on; beyond the last one it
// may be anything. `round` makes integers of it.
template <class Dst, class Values, class Round>
inline void store_bytes_of(int64_t n, const Values& value_at, const Round& round, Dst* to) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const Ints values[4] = {
        round(value_at(i)),
        round(value_at(i + lanes)),
        round(value_at(i + 2 * lanes)),
        round(value_at(i + 3 * lanes))};
    store_saturated(values, to + i);
  }
  for (; i < n; i += lanes) {
    const Ints values[1] = {round(value_at(i))};
    if (n - i >= lanes) {
      store_saturated(values, to + i);
    } else {
      Dst bytes[lanes];
      store_saturated(values, bytes);
      copy_part<lanes>(to + i, bytes, n - i);
    }
  }
}

// v / scale + zero point as an integer.
template <class Dst>
struct ByDivision {
  Vector<float> scale, zero_point;

  explicit ByDivision(const QuantizedSteps& steps)
      : scale(broadcast(steps.dst_scale)), zero_point(broadcast(steps.dst_zero_point)) {}

  Ints operator()(Vector<float> v) const {
    const Vector<float> quotient = v / scale + zero_point;
    return nearest<Dst>(quotient == quotient ? quotient : Vector<float>{});
  }
};

#if defined(__FMA__)
// The same at a fraction of what a division takes. is_bounded: quotients are finite and below 2^30.
// Else, what saturates anyway is limited first, so that nothing overflows.
template <class Dst, bool is_bounded>
struct ByReciprocal {
  Quotients quotients;
  Vector<float> scale, zero_point, most;

  explicit ByReciprocal(const QuantizedSteps& steps)
      : quotients(steps.dst_scale),
        scale(broadcast(steps.dst_scale)),
        zero_point(broadcast(steps.dst_zero_point)),
        most(broadcast(1024 * std::fabs(steps.dst_scale))) {}

  Ints operator()(Vector<float> v) const {
    if constexpr (!is_bounded) {
      v = at_least(at_most(v, most), -most);
      v = v == v ? v : -zero_point * scale; // 0 in the end
    }
    return nearest<Dst, is_bounded>(quotients(v) + zero_point);
  }
};
#endif

// f(the function object that makes integers of numbers). is_bounded: quotients are finite and below
// 2^30.
template <class Dst, bool is_bounded, class F>
void with_rounding(const QuantizedSteps& steps, const F& f) {
#if defined(__FMA__)
  if (Quotients::can_divide_by(steps.dst_scale))
    return f(ByReciprocal<Dst, is_bounded>(steps));
#endif
  f(ByDivision<Dst>(steps));
}

} // namespace torch_dnnl
