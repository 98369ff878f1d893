// Registers of int32 sums, and of pairs of 16-bit numbers whose products are added up in them.
// Pairs are made of bytes: of a byte of each of two runs, or of 16 bytes in some order; an offset
// is taken from all of them. An order of kUnordered stands for the byte 0.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/cpu/simd.h"

namespace torch_dnnl {

inline constexpr uint8_t kUnordered = 0x80;

#if defined(CPU_CAPABILITY_AVX512)
using IntSums = __m512i;
inline IntSums load_sums(const void* from) {
  return _mm512_loadu_si512(from);
}
inline void store_sums(void* to, IntSums sums) {
  _mm512_storeu_si512(to, sums);
}
inline IntSums repeated(int32_t pair) {
  return _mm512_set1_epi32(pair);
}
inline IntSums add_pairs(IntSums sums, IntSums a, IntSums b) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}
inline IntSums pairs_of_bytes(const uint8_t* first, const uint8_t* second) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
  const __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
  return _mm512_cvtepu8_epi16(pairs);
}
inline IntSums pairs_in_order(const uint8_t* from, const uint8_t* order) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m256i pairs = _mm256_shuffle_epi8(
      _mm256_broadcastsi128_si256(bytes),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(order)));
  return _mm512_cvtepu8_epi16(pairs);
}
#elif defined(CPU_CAPABILITY_AVX2)
using IntSums = __m256i;
inline IntSums load_sums(const void* from) {
  return _mm256_loadu_si256(static_cast<const IntSums*>(from));
}
inline void store_sums(void* to, IntSums sums) {
  _mm256_storeu_si256(static_cast<IntSums*>(to), sums);
}
inline IntSums repeated(int32_t pair) {
  return _mm256_set1_epi32(pair);
}
inline IntSums add_pairs(IntSums sums, IntSums a, IntSums b) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}
inline IntSums pairs_of_bytes(const uint8_t* first, const uint8_t* second) {
  const __m128i a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(first));
  const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(second));
  return _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
}
inline IntSums pairs_in_order(const uint8_t* from, const uint8_t* order) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i pairs =
      _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(order)));
  return _mm256_cvtepu8_epi16(pairs);
}
#elif defined(__SSE2__)
using IntSums = __m128i;
inline IntSums load_sums(const void* from) {
  return _mm_loadu_si128(static_cast<const IntSums*>(from));
}
inline void store_sums(void* to, IntSums sums) {
  _mm_storeu_si128(static_cast<IntSums*>(to), sums);
}
inline IntSums repeated(int32_t pair) {
  return _mm_set1_epi32(pair);
}
inline IntSums add_pairs(IntSums sums, IntSums a, IntSums b) {
  return _mm_add_epi32(sums, _mm_madd_epi16(a, b));
}
inline IntSums pairs_of_bytes(const uint8_t* first, const uint8_t* second) {
  const auto load = [](const uint8_t* from) {
    int32_t bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return _mm_cvtsi32_si128(bytes);
  };
  const __m128i a = load(first), b = load(second);
  return _mm_unpacklo_epi8(_mm_unpacklo_epi8(a, b), _mm_setzero_si128());
}
#else
typedef int32_t IntSums __attribute__((vector_size(16), may_alias));
typedef int16_t Halves __attribute__((vector_size(16)));
inline IntSums load_sums(const void* from) {
  IntSums sums;
  std::memcpy(&sums, from, sizeof(sums));
  return sums;
}
inline void store_sums(void* to, IntSums sums) {
  std::memcpy(to, &sums, sizeof(sums));
}
inline IntSums repeated(int32_t pair) {
  return IntSums{} + pair;
}
inline IntSums add_pairs(IntSums sums, IntSums a, IntSums b) {
  for (int i = 0; i < 4; i++)
    sums[i] += Halves(a)[2 * i] * Halves(b)[2 * i] + Halves(a)[2 * i + 1] * Halves(b)[2 * i + 1];
  return sums;
}
inline IntSums pairs_of_bytes(const uint8_t* first, const uint8_t* second) {
  Halves pairs;
  for (int i = 0; i < 4; i++) {
    pairs[2 * i] = first[i];
    pairs[2 * i + 1] = second[i];
  }
  return IntSums(pairs);
}
#endif

inline constexpr int64_t kIntSums = sizeof(IntSums) / sizeof(int32_t);

// How unsigned bytes become differences from a zero point: those of signed ones are flipped first.
class PairOffsets {
 public:
  PairOffsets(bool is_signed, int zero_point)
      : flips_(is_signed ? 0x80 : 0), offsets_(zero_point + (is_signed ? 0x80 : 0)) {}

  IntSums apply(IntSums pairs) const {
    typedef int16_t Words __attribute__((vector_size(sizeof(IntSums))));
    return IntSums((Words(pairs) ^ flips_) - offsets_);
  }

 private:
  int16_t flips_, offsets_;
};

#if !defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX2)
inline IntSums pairs_in_order(const uint8_t* from, const uint8_t* order) {
  uint8_t first[kIntSums], second[kIntSums];
  const auto at = [&](int64_t i) { return order[i] == kUnordered ? uint8_t(0) : from[order[i]]; };
  for (int64_t i = 0; i < kIntSums; i++) {
    first[i] = at(2 * i);
    second[i] = at(2 * i + 1);
  }
  return pairs_of_bytes(first, second);
}
#endif

} // namespace torch_dnnl
