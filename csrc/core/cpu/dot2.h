// Dot products of int16 pairs in registers of int32, on every CPU. Pairs are loaded from bytes: a
// byte of each of two runs, or 16 bytes in a given order, where kZeroByte stands for the byte 0.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/cpu/vectors.h"

namespace torch_dnnl {

inline constexpr uint8_t kZeroByte = 0x80;

#if defined(CPU_CAPABILITY_AVX512)
using Int32Lanes = __m512i;
inline Int32Lanes load_int32(const void* from) {
  return _mm512_loadu_si512(from);
}
inline void store_int32(void* to, Int32Lanes values) {
  _mm512_storeu_si512(to, values);
}
inline Int32Lanes broadcast_int32(int32_t pair) {
  return _mm512_set1_epi32(pair);
}
inline Int32Lanes dot2(Int32Lanes acc, Int32Lanes a, Int32Lanes b) {
  return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
}
inline Int32Lanes pairs_of_runs(const uint8_t* first, const uint8_t* second) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
  const __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
  return _mm512_cvtepu8_epi16(pairs);
}
inline Int32Lanes pairs_in_order(const uint8_t* from, const uint8_t* order) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m256i pairs = _mm256_shuffle_epi8(
      _mm256_broadcastsi128_si256(bytes),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(order)));
  return _mm512_cvtepu8_epi16(pairs);
}
#elif defined(CPU_CAPABILITY_AVX2)
using Int32Lanes = __m256i;
inline Int32Lanes load_int32(const void* from) {
  return _mm256_loadu_si256(static_cast<const Int32Lanes*>(from));
}
inline void store_int32(void* to, Int32Lanes values) {
  _mm256_storeu_si256(static_cast<Int32Lanes*>(to), values);
}
inline Int32Lanes broadcast_int32(int32_t pair) {
  return _mm256_set1_epi32(pair);
}
inline Int32Lanes dot2(Int32Lanes acc, Int32Lanes a, Int32Lanes b) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
inline Int32Lanes pairs_of_runs(const uint8_t* first, const uint8_t* second) {
  const __m128i a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(first));
  const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(second));
  return _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
}
inline Int32Lanes pairs_in_order(const uint8_t* from, const uint8_t* order) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i pairs =
      _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(order)));
  return _mm256_cvtepu8_epi16(pairs);
}
#elif defined(__SSE2__)
using Int32Lanes = __m128i;
inline Int32Lanes load_int32(const void* from) {
  return _mm_loadu_si128(static_cast<const Int32Lanes*>(from));
}
inline void store_int32(void* to, Int32Lanes values) {
  _mm_storeu_si128(static_cast<Int32Lanes*>(to), values);
}
inline Int32Lanes broadcast_int32(int32_t pair) {
  return _mm_set1_epi32(pair);
}
inline Int32Lanes dot2(Int32Lanes acc, Int32Lanes a, Int32Lanes b) {
  return _mm_add_epi32(acc, _mm_madd_epi16(a, b));
}
inline Int32Lanes pairs_of_runs(const uint8_t* first, const uint8_t* second) {
  const auto load = [](const uint8_t* from) {
    int32_t bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return _mm_cvtsi32_si128(bytes);
  };
  const __m128i a = load(first), b = load(second);
  return _mm_unpacklo_epi8(_mm_unpacklo_epi8(a, b), _mm_setzero_si128());
}
#else
typedef int32_t Int32Lanes __attribute__((vector_size(16), may_alias));
typedef int16_t Int16s __attribute__((vector_size(16)));
inline Int32Lanes load_int32(const void* from) {
  Int32Lanes values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}
inline void store_int32(void* to, Int32Lanes values) {
  std::memcpy(to, &values, sizeof(values));
}
inline Int32Lanes broadcast_int32(int32_t pair) {
  return Int32Lanes{} + pair;
}
inline Int32Lanes dot2(Int32Lanes acc, Int32Lanes a, Int32Lanes b) {
  for (int i = 0; i < 4; i++)
    acc[i] += Int16s(a)[2 * i] * Int16s(b)[2 * i] + Int16s(a)[2 * i + 1] * Int16s(b)[2 * i + 1];
  return acc;
}
inline Int32Lanes pairs_of_runs(const uint8_t* first, const uint8_t* second) {
  Int16s pairs;
  for (int i = 0; i < 4; i++) {
    pairs[2 * i] = first[i];
    pairs[2 * i + 1] = second[i];
  }
  return Int32Lanes(pairs);
}
#endif

inline constexpr int64_t kInt32Lanes = sizeof(Int32Lanes) / sizeof(int32_t);

// Subtracts the zero point from bytes that were loaded as unsigned. int8 bytes are flipped first.
class PairOffsets {
 public:
  PairOffsets(bool is_signed, int zero_point)
      : flips_(is_signed ? 0x80 : 0), offsets_(zero_point + (is_signed ? 0x80 : 0)) {}

  Int32Lanes apply(Int32Lanes pairs) const {
    typedef int16_t Words __attribute__((vector_size(sizeof(Int32Lanes))));
    return Int32Lanes((Words(pairs) ^ flips_) - offsets_);
  }

 private:
  int16_t flips_, offsets_;
};

#if !defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX2)
inline Int32Lanes pairs_in_order(const uint8_t* from, const uint8_t* order) {
  uint8_t first[kInt32Lanes], second[kInt32Lanes];
  const auto at = [&](int64_t i) { return order[i] == kZeroByte ? uint8_t(0) : from[order[i]]; };
  for (int64_t i = 0; i < kInt32Lanes; i++) {
    first[i] = at(2 * i);
    second[i] = at(2 * i + 1);
  }
  return pairs_of_runs(first, second);
}
#endif

} // namespace torch_dnnl
