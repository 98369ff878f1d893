// Integers of one and two bytes, 32 bits each in a register, by instructions of AVX-512 and AVX2.
#pragma once

#include <limits>
#include <type_traits>

#include "core/cpu/stream.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)

using IntegerRegister = __m512i;

template <class T>
inline __m512i load_integers(const T* from) {
  if constexpr (sizeof(T) == 1) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return std::is_signed_v<T> ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
  } else {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return std::is_signed_v<T> ? _mm512_cvtepi16_epi32(words) : _mm512_cvtepu16_epi32(words);
  }
}

inline __m512 as_floats(__m512i integers) {
  return _mm512_cvtepi32_ps(integers);
}

// The nearest integers of U, even ones where two are as near; NaN becomes 0.
template <class U>
inline __m512i round_to(__m512 x) {
  // max gives its second operand, 0, for NaN where 0 is the least value; elsewhere NaN is made 0
  // first.
  constexpr float low = std::numeric_limits<U>::min(), high = std::numeric_limits<U>::max();
  if constexpr (low != 0)
    x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
  x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(low)), _mm512_set1_ps(high));
  return _mm512_cvtps_epi32(x);
}

// The low bytes of each integer.
template <class U>
inline void store_integers(U* to, __m512i integers) {
  if constexpr (sizeof(U) == 1)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(integers));
  else
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(integers));
}

#elif defined(CPU_CAPABILITY_AVX2)

using IntegerRegister = __m256i;

template <class T>
inline __m256i load_integers(const T* from) {
  if constexpr (sizeof(T) == 1) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return std::is_signed_v<T> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
  } else {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return std::is_signed_v<T> ? _mm256_cvtepi16_epi32(words) : _mm256_cvtepu16_epi32(words);
  }
}

inline __m256 as_floats(__m256i integers) {
  return _mm256_cvtepi32_ps(integers);
}

// The nearest integers of U, even ones where two are as near; NaN becomes 0.
template <class U>
inline __m256i round_to(__m256 x) {
  constexpr float low = std::numeric_limits<U>::min(), high = std::numeric_limits<U>::max();
  x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
  x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(low)), _mm256_set1_ps(high));
  return _mm256_cvtps_epi32(x);
}

// The low bytes of each integer: brought together in either half, then the two halves.
template <class U>
inline void store_integers(U* to, __m256i integers) {
  const char skip = static_cast<char>(0x80);
  // clang-format off
  const __m256i bytes = _mm256_setr_epi8(
      0, 4, 8, 12, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip,
      skip, skip, skip, skip, 0, 4, 8, 12, skip, skip, skip, skip, skip, skip, skip, skip);
  const __m256i words = _mm256_setr_epi8(
      0, 1, 4, 5, 8, 9, 12, 13, skip, skip, skip, skip, skip, skip, skip, skip,
      skip, skip, skip, skip, skip, skip, skip, skip, 0, 1, 4, 5, 8, 9, 12, 13);
  // clang-format on
  const __m256i low = _mm256_shuffle_epi8(integers, sizeof(U) == 1 ? bytes : words);
  const __m128i both = _mm_or_si128(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  if constexpr (sizeof(U) == 1)
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), both);
  else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), both);
}

#endif

} // namespace torch_dnnl
