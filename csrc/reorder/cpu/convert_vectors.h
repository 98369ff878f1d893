// Conversions of vectors of float32 from and to every type, each lane as load() and store() of
// core/numeric.h. What instruction sets have in common is written with the compilers' vector types.
#pragma once

#include <c10/macros/Macros.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/cpu/vectors.h"
#include "core/numeric.h"

namespace torch_dnnl::reorder_cpu {

// No wider than registers: compilers take comparisons of wider ones apart.
using Floats = Register<float>;
using Ints = Register<int32_t>;
inline constexpr int kWidth = sizeof(Floats) / sizeof(float); // lanes

// All lanes.
inline Floats all(float x) {
  return x - Floats{}; // -0 too
}
inline Ints all(int32_t x) {
  return Ints{} + x;
}

// at_most() and at_least() leave NaN, positive() is max(x, 0) and makes it 0. round_even() and
// to_ints() go to the nearest integer, ties to even; the latter of what an integer can hold.
// pack_...() bring vectors of such elements together in one register; integers saturate. bits_of():
// a bit for each lane of a comparison, from the lowest.
#if defined(CPU_CAPABILITY_AVX512)
inline Ints to_ints(Floats x) {
  return Ints(_mm512_cvtps_epi32(x));
}
inline uint32_t bits_of(Ints is_true) {
  return _mm512_cmplt_epi32_mask(__m512i(is_true), _mm512_setzero_si512());
}
inline __m512i pack_words(Ints a, Ints b) {
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  return _mm512_permutexvar_epi64(order, _mm512_packs_epi32(__m512i(a), __m512i(b)));
}
template <bool kSigned>
inline __m512i pack_bytes(const Ints (&x)[4]) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i low = _mm512_packs_epi32(__m512i(x[0]), __m512i(x[1]));
  const __m512i high = _mm512_packs_epi32(__m512i(x[2]), __m512i(x[3]));
  return _mm512_permutexvar_epi32(
      order, kSigned ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high));
}
#elif defined(CPU_CAPABILITY_AVX2)
inline Ints to_ints(Floats x) {
  return Ints(_mm256_cvtps_epi32(x));
}
inline uint32_t bits_of(Ints is_true) {
  return _mm256_movemask_ps(__m256(is_true));
}
inline __m256i pack_words(Ints a, Ints b) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(__m256i(a), __m256i(b)), 0xD8);
}
template <bool kSigned>
inline __m256i pack_bytes(const Ints (&x)[4]) {
  const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
  const __m256i low = _mm256_packs_epi32(__m256i(x[0]), __m256i(x[1]));
  const __m256i high = _mm256_packs_epi32(__m256i(x[2]), __m256i(x[3]));
  return _mm256_permutevar8x32_epi32(
      kSigned ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high), order);
}
#endif

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
inline auto pack_halves(Floats a, Floats b) {
  return at::vec::cvtfp32_fp16(a, b);
}
inline void store_all(Floats x, void* to, bool streamed) {
  float* floats = static_cast<float*>(to);
  streamed ? stream_vector(floats, x) : store_vector(floats, x);
}
inline Floats at_most(Floats x, Floats limit) {
  return at::vec::clamp_max<float>(x, limit);
}
inline Floats at_least(Floats x, Floats limit) {
  return at::vec::clamp_min<float>(x, limit);
}
inline Floats positive(Floats x) {
  return at::vec::clamp_min<float>(Floats{}, x);
}
inline Floats round_even(Floats x) {
  return Lanes<float>(x).round();
}
template <class T>
inline Floats load_floats(const T* from) {
  return load_lanes<float>(from);
}
inline Ints load_bytes(const uint8_t* from) {
  return Ints(Floats(load_lanes<uint32_t>(from)));
}
#else
inline Floats at_most(Floats x, Floats limit) {
  return x > limit ? limit : x;
}
inline Floats at_least(Floats x, Floats limit) {
  return x < limit ? limit : x;
}
inline Floats positive(Floats x) {
  return x > Floats{} ? x : Floats{};
}
// Adding 2^23 leaves no room for a fraction; the sign is that of x.
inline Floats round_even(Floats x) {
  const Ints sign = Ints(x) & std::numeric_limits<int32_t>::min();
  const Floats magic = Floats(std::bit_cast<int32_t>(0x1p23f) | sign);
  return Floats(Ints(x) ^ sign) < 0x1p23f ? (x + magic) - magic : x;
}
template <class T>
inline Floats load_floats(const T* from) {
  return load_quad<float>(from);
}
inline Ints load_bytes(const uint8_t* from) {
  return load_quad<int32_t>(from);
}
inline Ints to_ints(Floats x) {
  return __builtin_convertvector(round_even(x), Ints);
}
inline uint32_t bits_of(Ints is_true) {
  uint32_t bits = 0;
  for (int i = 0; i < kWidth; i++)
    bits |= static_cast<uint32_t>(is_true[i] & 1) << i;
  return bits;
}
template <class T, class V, int n>
inline Ints pack(const V (&x)[n]) {
  T elements[n * kWidth];
  for (int i = 0; i < n * kWidth; i++)
    elements[i] = static_cast<T>(x[i / kWidth][i % kWidth]);
  return std::bit_cast<Ints>(elements);
}
inline Ints pack_words(Ints a, Ints b) {
  return pack<uint16_t>({a, b});
}
template <bool kSigned>
inline Ints pack_bytes(const Ints (&x)[4]) {
  Ints limited[4];
  for (int k = 0; k < 4; k++)
    limited[k] = x[k] < -128 ? all(-128) : x[k];
  return pack<uint8_t>(limited);
}
inline Ints pack_halves(Floats a, Floats b) {
  return pack<c10::Half>({a, b});
}
inline void store(Ints x, void* to, bool /*streamed*/) {
  std::memcpy(to, &x, sizeof(x));
}
inline void store_all(Floats x, void* to, bool /*streamed*/) {
  std::memcpy(to, &x, sizeof(x));
}
#endif

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

inline Floats canonical_nan(Floats x) {
  return x == x ? x : all(std::numeric_limits<float>::quiet_NaN());
}

template <class T>
C10_ALWAYS_INLINE Floats widen(const T* from) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>) {
    return widen_float8<3, 7>(load_bytes(bytes), 0x7F);
  } else if constexpr (std::is_same_v<T, c10::Float8_e5m2>) {
    return widen_float8<2, 15>(load_bytes(bytes), 0x7C);
  } else if constexpr (std::is_same_v<T, int32_t>) {
    Ints ints;
    std::memcpy(&ints, from, sizeof(ints));
    return __builtin_convertvector(ints, Floats);
  } else {
    return load_floats(from);
  }
}

// What is too large for an integer, or NaN, must not reach an instruction that converts; what is
// too small becomes the smallest int32.
inline Ints to_limited_ints(Floats x, float high) {
  const Floats limited = at_least(at_most(x, all(high)), all(-0x1p31f));
  return to_ints(x == x ? limited : Floats{});
}

// What is known of floats before they are stored. kIntegers: their bits are those of integers,
// which saturate when they are packed into bytes.
enum class Known { kNothing, kNotNan, kIntegers };

// kCount: 2 or, for types of one byte, 4 vectors make whole registers. kIntegers is for bytes, with
// AVX2 and AVX-512.
template <Known kKnown = Known::kNothing, class T, int kCount>
C10_ALWAYS_INLINE void narrow(const Floats (&x)[kCount], T* to, bool streamed) {
  const auto canonical = [](Floats v) __attribute__((always_inline)) {
    return kKnown == Known::kNotNan ? v : canonical_nan(v);
  };
  if constexpr (std::is_same_v<T, float>) {
    for (int k = 0; k < kCount; k++)
      store_all(canonical(x[k]), to + k * kWidth, streamed);
  } else if constexpr (std::is_same_v<T, double>) {
    for (int i = 0; i < kCount * kWidth; i++)
      to[i] = static_cast<double>(canonical(x[i / kWidth])[i % kWidth]);
  } else if constexpr (std::is_same_v<T, int32_t>) {
    for (int k = 0; k < kCount; k++) {
      const Ints ints = to_limited_ints(x[k], 0x1.fffffep30f);
      const Ints result = x[k] >= 0x1p31f ? all(std::numeric_limits<int32_t>::max()) : ints;
      store_all(Floats(result), to + k * kWidth, streamed);
    }
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    Ints words[kCount];
    for (int k = 0; k < kCount; k++) {
      // Rounding does not carry out of a canonical NaN.
      const Ints bits = Ints(canonical(x[k]));
      words[k] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    }
    for (int k = 0; k < kCount; k += 2)
      store(pack_words(words[k], words[k + 1]), to + k * kWidth, streamed);
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    for (int k = 0; k < kCount; k += 2) {
      const auto halves = pack_halves(canonical(x[k]), canonical(x[k + 1]));
      store(halves, to + k * kWidth, streamed);
    }
  } else {
    static_assert(kCount == 4);
    Ints codes[kCount];
    for (int k = 0; k < kCount; k++)
      if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>)
        codes[k] = narrow_float8<3, 7>(x[k], 448.0f);
      else if constexpr (std::is_same_v<T, c10::Float8_e5m2>)
        codes[k] = narrow_float8<2, 15>(x[k], 57344.0f);
      else if constexpr (kKnown == Known::kIntegers)
        codes[k] = Ints(x[k]);
      else if constexpr (std::is_same_v<T, uint8_t>)
        codes[k] = to_ints(at_most(positive(x[k]), all(255.0f)));
      else
        codes[k] = to_limited_ints(x[k], std::numeric_limits<T>::max());
    store(pack_bytes<std::is_same_v<T, int8_t>>(codes), to, streamed);
  }
}

} // namespace torch_dnnl::reorder_cpu
