// Vectors of float32 and their conversions from and to every type, each lane as load() and store()
// of core/numeric.h. What instruction sets have in common is written with the compilers' vector
// types; a handful of instructions have names of their own.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// GCC's own vector header leaves a register undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "core/numeric.h"
#include "reorder/cpu/streaming.h"

namespace torch_dnnl::reorder_cpu {

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kWidth = 16; // lanes
#elif defined(CPU_CAPABILITY_AVX2)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));

// Of as many elements as a vector has lanes. to_ints() and round_even() go to the nearest integer,
// ties to even; the former of what an integer can hold.
#if defined(CPU_CAPABILITY_AVX512)
inline Ints load_bytes(const uint8_t* from) {
  return Ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline Ints load_words(const uint16_t* from) {
  return Ints(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
inline Floats load_halves(const c10::Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_bytes(Ints x, uint8_t* to, bool streamed) {
  store(_mm512_cvtepi32_epi8(__m512i(x)), to, streamed);
}
inline void store_words(Ints x, uint16_t* to, bool streamed) {
  store(_mm512_cvtepi32_epi16(__m512i(x)), to, streamed);
}
inline void store_halves(Floats x, c10::Half* to, bool streamed) {
  store(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), to, streamed);
}
inline void store_all(Floats x, void* to, bool streamed) {
  store(__m512i(x), to, streamed);
}
inline Ints to_ints(Floats x) {
  return Ints(_mm512_cvtps_epi32(x));
}
inline Floats round_even(Floats x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// min(x, limit) and max(x, limit); NaN stays.
inline Floats at_most(Floats x, Floats limit) {
  return _mm512_min_ps(limit, x);
}
inline Floats at_least(Floats x, Floats limit) {
  return _mm512_max_ps(limit, x);
}
#elif defined(CPU_CAPABILITY_AVX2)
inline Ints load_bytes(const uint8_t* from) {
  return Ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline Ints load_words(const uint16_t* from) {
  return Ints(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline Floats load_halves(const c10::Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m128i words_of(Ints x) {
  const __m256i low = _mm256_and_si256(__m256i(x), _mm256_set1_epi32(0xFFFF));
  return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
inline void store_words(Ints x, uint16_t* to, bool streamed) {
  store(words_of(x), to, streamed);
}
inline void store_bytes(Ints x, uint8_t* to, bool /*streamed*/) {
  const __m128i words = words_of(x & 0xFF);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}
inline void store_halves(Floats x, c10::Half* to, bool streamed) {
  store(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), to, streamed);
}
inline void store_all(Floats x, void* to, bool streamed) {
  store(__m256i(x), to, streamed);
}
inline Ints to_ints(Floats x) {
  return Ints(_mm256_cvtps_epi32(x));
}
inline Floats round_even(Floats x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats at_most(Floats x, Floats limit) {
  return _mm256_min_ps(limit, x);
}
inline Floats at_least(Floats x, Floats limit) {
  return _mm256_max_ps(limit, x);
}
#else
template <class V, class F>
inline V each_lane(const F& f) {
  V x;
  for (int i = 0; i < kWidth; i++) {
    x[i] = f(i);
  }
  return x;
}
inline Ints load_bytes(const uint8_t* from) {
  return each_lane<Ints>([&](int i) { return from[i]; });
}
inline Ints load_words(const uint16_t* from) {
  return each_lane<Ints>([&](int i) { return from[i]; });
}
inline Floats load_halves(const c10::Half* from) {
  return each_lane<Floats>([&](int i) { return static_cast<float>(from[i]); });
}
inline void store_bytes(Ints x, uint8_t* to, bool /*streamed*/) {
  for (int i = 0; i < kWidth; i++) {
    to[i] = static_cast<uint8_t>(x[i]);
  }
}
inline void store_words(Ints x, uint16_t* to, bool /*streamed*/) {
  for (int i = 0; i < kWidth; i++) {
    to[i] = static_cast<uint16_t>(x[i]);
  }
}
inline void store_halves(Floats x, c10::Half* to, bool /*streamed*/) {
  for (int i = 0; i < kWidth; i++) {
    to[i] = static_cast<c10::Half>(x[i]);
  }
}
inline void store_all(Floats x, void* to, bool /*streamed*/) {
  std::memcpy(to, &x, sizeof(x));
}
// Adding 2^23 leaves no room for a fraction; the sign is that of x.
inline Floats round_even(Floats x) {
  const Ints sign = Ints(x) & std::numeric_limits<int32_t>::min();
  const Floats magic = Floats(std::bit_cast<int32_t>(0x1p23f) | sign);
  return Floats(Ints(x) ^ sign) < 0x1p23f ? (x + magic) - magic : x;
}
inline Ints to_ints(Floats x) {
  return __builtin_convertvector(round_even(x), Ints);
}
inline Floats at_most(Floats x, Floats limit) {
  return x > limit ? limit : x;
}
inline Floats at_least(Floats x, Floats limit) {
  return x < limit ? limit : x;
}
#endif

// All lanes.
inline Floats all(float x) {
  return x - Floats{}; // -0 too
}
inline Ints all(int32_t x) {
  return Ints{} + x;
}

template <class V>
inline V load_vector(const void* from) {
  V x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

// Float8 with kBits bits of mantissa and the exponent bias kBias; from `special` on it is NaN or
// infinite.
template <int kBits, int kBias>
inline Floats widen_float8(Ints x, int32_t special) {
  const Ints magnitude = x & 0x7F;
  const Ints bits = (magnitude << (23 - kBits)) + ((127 - kBias) << 23);
  // Without a leading 1: the mantissa times 2^(1 - kBias - kBits).
  constexpr float unit = std::bit_cast<float>((128 - kBias - kBits) << 23);
  const Ints small = Ints(__builtin_convertvector(magnitude, Floats) * unit);
  Ints result = magnitude < 1 << kBits ? small : bits;
  result = magnitude >= special ? bits | 0x7F800000 : result;
  return Floats(result | (x >> 7) << 31);
}

template <int kBits, int kBias>
inline Ints narrow_float8(Floats x, float max) {
  const Floats limited = at_least(at_most(x, all(max)), all(-max));
  const Ints sign = Ints(limited) & std::numeric_limits<int32_t>::min();
  const Ints bits = Ints(limited) ^ sign;
  // Below the normal numbers: an addition that rounds at the last bit of the float8.
  constexpr int32_t magic = (151 - kBias - kBits) << 23;
  const Ints small = Ints(Floats(bits) + std::bit_cast<float>(magic)) - magic;
  constexpr int32_t rebias = ((127 - kBias) << 23) - ((1 << (22 - kBits)) - 1);
  const Ints normal = (bits - rebias + ((bits >> (23 - kBits)) & 1)) >> (23 - kBits);
  const Ints result = (bits < (128 - kBias) << 23 ? small : normal) | ((sign >> 24) & 0x80);
  return x == x ? result : all(0x7F);
}

inline Floats canonical(Floats x) {
  return x == x ? x : all(std::numeric_limits<float>::quiet_NaN());
}

template <class T>
inline Floats widen(const T* from) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  if constexpr (std::is_same_v<T, float>) {
    return load_vector<Floats>(from);
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return __builtin_convertvector(load_vector<Ints>(from), Floats);
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return __builtin_convertvector(load_bytes(from), Floats);
  } else if constexpr (std::is_same_v<T, int8_t>) {
    return __builtin_convertvector(load_bytes(bytes) << 24 >> 24, Floats);
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    return Floats(load_words(reinterpret_cast<const uint16_t*>(from)) << 16);
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    return load_halves(from);
  } else if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>) {
    return widen_float8<3, 7>(load_bytes(bytes), 0x7F);
  } else if constexpr (std::is_same_v<T, c10::Float8_e5m2>) {
    return widen_float8<2, 15>(load_bytes(bytes), 0x7C);
  } else {
    float lanes[kWidth];
    for (int i = 0; i < kWidth; i++) {
      lanes[i] = static_cast<float>(from[i]);
    }
    return load_vector<Floats>(lanes);
  }
}

template <class T>
inline void narrow(Floats x, T* to, bool streamed) {
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  if constexpr (std::is_same_v<T, float>) {
    store_all(canonical(x), to, streamed);
  } else if constexpr (std::is_same_v<T, int32_t>) {
    // What is too small, and NaN, becomes the smallest integer by itself where vectors convert.
    const Floats rounded = round_even(x);
    const Ints inside = rounded >= -0x1p31f && rounded < 0x1p31f;
    Ints result = to_ints(inside ? rounded : Floats{});
    result = rounded >= 0x1p31f ? all(std::numeric_limits<int32_t>::max()) : result;
    result = rounded < -0x1p31f ? all(std::numeric_limits<int32_t>::min()) : result;
    store_all(Floats(result), to, streamed);
  } else if constexpr (std::is_integral_v<T>) {
    constexpr float low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    const Floats limited = at_least(at_most(x, all(high)), all(low));
    store_bytes(to_ints(x == x ? limited : Floats{}), bytes, streamed);
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const Ints bits = Ints(canonical(x));
    // Rounding does not carry out of a canonical NaN.
    store_words(
        (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, reinterpret_cast<uint16_t*>(to), streamed);
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    store_halves(canonical(x), to, streamed);
  } else if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>) {
    store_bytes(narrow_float8<3, 7>(x, 448.0f), bytes, streamed);
  } else if constexpr (std::is_same_v<T, c10::Float8_e5m2>) {
    store_bytes(narrow_float8<2, 15>(x, 57344.0f), bytes, streamed);
  } else {
    static_assert(std::is_same_v<T, double>);
    x = canonical(x);
    for (int i = 0; i < kWidth; i++) {
      to[i] = static_cast<double>(x[i]);
    }
  }
}

} // namespace torch_dnnl::reorder_cpu
