// Vectors of float32 and their conversions from and to every type, each lane as load() and store()
// of core/numeric.h. What instruction sets have in common is written with the compilers' vector
// types; a handful of instructions have names of their own.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/cpu/stream.h"
#include "core/numeric.h"

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

// All lanes.
inline Floats all(float x) {
  return x - Floats{}; // -0 too
}
inline Ints all(int32_t x) {
  return Ints{} + x;
}

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
inline void store_words(Ints a, Ints b, void* to, bool streamed) {
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  const __m512i words = _mm512_packs_epi32(__m512i(a), __m512i(b));
  store(_mm512_permutexvar_epi64(order, words), to, streamed);
}
template <bool kSigned>
inline void store_bytes(const Ints (&x)[4], void* to, bool streamed) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i low = _mm512_packs_epi32(__m512i(x[0]), __m512i(x[1]));
  const __m512i high = _mm512_packs_epi32(__m512i(x[2]), __m512i(x[3]));
  const __m512i bytes = kSigned ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
  store(_mm512_permutexvar_epi32(order, bytes), to, streamed);
}
inline void store_halves(Floats a, Floats b, void* to, bool streamed) {
  const __m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  const __m256i high = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
  store(_mm512_inserti64x4(low, high, 1), to, streamed);
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
// max(x, 0); 0 for NaN.
inline Floats positive(Floats x) {
  return _mm512_max_ps(x, Floats{});
}
// A bit for each lane of a comparison, from the lowest.
inline uint32_t bits_of(Ints is_true) {
  return _mm512_cmplt_epi32_mask(__m512i(is_true), _mm512_setzero_si512());
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
inline void store_words(Ints a, Ints b, void* to, bool streamed) {
  const __m256i words = _mm256_packs_epi32(__m256i(a), __m256i(b));
  store(_mm256_permute4x64_epi64(words, 0xD8), to, streamed);
}
template <bool kSigned>
inline void store_bytes(const Ints (&x)[4], void* to, bool streamed) {
  const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
  const __m256i low = _mm256_packs_epi32(__m256i(x[0]), __m256i(x[1]));
  const __m256i high = _mm256_packs_epi32(__m256i(x[2]), __m256i(x[3]));
  const __m256i bytes = kSigned ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
  store(_mm256_permutevar8x32_epi32(bytes, order), to, streamed);
}
inline void store_halves(Floats a, Floats b, void* to, bool streamed) {
  const __m256i low = _mm256_castsi128_si256(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  const __m128i high = _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
  store(_mm256_inserti128_si256(low, high, 1), to, streamed);
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
inline Floats positive(Floats x) {
  return _mm256_max_ps(x, Floats{});
}
inline uint32_t bits_of(Ints is_true) {
  return _mm256_movemask_ps(__m256(is_true));
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
inline void store_words(Ints a, Ints b, void* to, bool /*streamed*/) {
  uint16_t words[2 * kWidth];
  for (int i = 0; i < kWidth; i++) {
    words[i] = static_cast<uint16_t>(a[i]);
    words[kWidth + i] = static_cast<uint16_t>(b[i]);
  }
  std::memcpy(to, words, sizeof(words));
}
template <bool kSigned>
inline void store_bytes(const Ints (&x)[4], void* to, bool /*streamed*/) {
  constexpr int32_t low = kSigned ? -128 : 0;
  uint8_t bytes[4 * kWidth];
  for (int k = 0; k < 4; k++) {
    const Ints limited = x[k] < low ? all(low) : x[k];
    for (int i = 0; i < kWidth; i++) {
      bytes[k * kWidth + i] = static_cast<uint8_t>(limited[i]);
    }
  }
  std::memcpy(to, bytes, sizeof(bytes));
}
inline void store_halves(Floats a, Floats b, void* to, bool /*streamed*/) {
  c10::Half halves[2 * kWidth];
  for (int i = 0; i < kWidth; i++) {
    halves[i] = static_cast<c10::Half>(a[i]);
    halves[kWidth + i] = static_cast<c10::Half>(b[i]);
  }
  std::memcpy(to, halves, sizeof(halves));
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
inline Floats positive(Floats x) {
  return x > Floats{} ? x : Floats{};
}
inline uint32_t bits_of(Ints is_true) {
  uint32_t bits = 0;
  for (int i = 0; i < kWidth; i++) {
    bits |= static_cast<uint32_t>(is_true[i] & 1) << i;
  }
  return bits;
}
#endif

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

inline Floats canonical_nan(Floats x) {
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

// What is too large for an integer, or NaN, must not reach an instruction that converts; what is
// too small becomes the smallest int32.
inline Ints to_limited_ints(Floats x, float high) {
  const Floats limited = at_least(at_most(x, all(high)), all(-0x1p31f));
  return to_ints(x == x ? limited : Floats{});
}

// kCount: 2 or, for types of one byte, 4 vectors make whole registers.
template <class T, int kCount>
inline void narrow(const Floats (&x)[kCount], T* to, bool streamed) {
  if constexpr (std::is_same_v<T, float>) {
    for (int k = 0; k < kCount; k++) {
      store_all(canonical_nan(x[k]), to + k * kWidth, streamed);
    }
  } else if constexpr (std::is_same_v<T, double>) {
    for (int i = 0; i < kCount * kWidth; i++) {
      to[i] = static_cast<double>(canonical_nan(x[i / kWidth])[i % kWidth]);
    }
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
      const Ints bits = Ints(canonical_nan(x[k]));
      words[k] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    }
    for (int k = 0; k < kCount; k += 2) {
      store_words(words[k], words[k + 1], to + k * kWidth, streamed);
    }
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    for (int k = 0; k < kCount; k += 2) {
      store_halves(canonical_nan(x[k]), canonical_nan(x[k + 1]), to + k * kWidth, streamed);
    }
  } else {
    static_assert(kCount == 4);
    Ints codes[kCount];
    for (int k = 0; k < kCount; k++) {
      if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>) {
        codes[k] = narrow_float8<3, 7>(x[k], 448.0f);
      } else if constexpr (std::is_same_v<T, c10::Float8_e5m2>) {
        codes[k] = narrow_float8<2, 15>(x[k], 57344.0f);
      } else if constexpr (std::is_same_v<T, uint8_t>) {
        codes[k] = to_ints(at_most(positive(x[k]), all(255.0f)));
      } else {
        codes[k] = to_limited_ints(x[k], std::numeric_limits<T>::max());
      }
    }
    store_bytes<std::is_same_v<T, int8_t>>(codes, to, streamed);
  }
}

} // namespace torch_dnnl::reorder_cpu
