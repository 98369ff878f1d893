// Rows in registers: loads, stores, broadcasts, products and transposes.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "core/cpu/registers.h"
#include "core/cpu/stream.h"
#include "core/numeric.h"

namespace torch_dnnl {

namespace simd_detail {

template <class E>
using Bits = std::conditional_t<sizeof(E) == 8, uint64_t, uint32_t>;

} // namespace simd_detail

// n elements, at most `most`: in two pieces of constant size that may overlap, which is faster than
// a call of memcpy.
template <int64_t most, class T>
inline void copy_part(T* to, const T* from, int64_t n) {
  constexpr int64_t piece = most / 2;
  if constexpr (piece == 0) {
    if (n > 0)
      *to = *from;
  } else if (n >= piece) {
    T first[piece], last[piece];
    std::memcpy(first, from, sizeof(first));
    std::memcpy(last, from + n - piece, sizeof(last));
    std::memcpy(to, first, sizeof(first));
    std::memcpy(to + n - piece, last, sizeof(last));
  } else {
    copy_part<piece>(to, from, n);
  }
}

// ---- Lanes: T or U in memory, E in registers ----

template <class E, class T>
inline Lanes<E> load_lanes(const T* from) {
  constexpr int64_t n = kLanes<E>;
  if constexpr (
      sizeof(T) == sizeof(E) && sizeof(E) >= 4 && (std::is_same_v<T, E> || std::is_unsigned_v<E>)) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
    return Lanes<E>::loadu(from);
#else
    return baseline::load<Lanes<E>>(from);
#endif
  } else if constexpr (std::is_same_v<E, float> && c10::is_reduced_floating_point_v<T>) {
    Lanes<float> wide;
    if constexpr (std::is_same_v<T, c10::BFloat16>)
      at::vec::load_fp32_from_bf16(from, wide);
    else
      at::vec::load_fp32_from_fp16(from, wide);
    return wide;
#if defined(CPU_CAPABILITY_AVX512)
  } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 2) {
    __m512i wide;
    if constexpr (sizeof(T) == 1) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      wide = std::is_signed_v<T> ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
    } else {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      wide = std::is_signed_v<T> ? _mm512_cvtepi16_epi32(words) : _mm512_cvtepu16_epi32(words);
    }
    return std::is_same_v<E, float> ? _mm512_cvtepi32_ps(wide) : _mm512_castsi512_ps(wide);
#elif defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 2) {
    __m256i wide;
    if constexpr (sizeof(T) == 1) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
      wide = std::is_signed_v<T> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
    } else {
      const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      wide = std::is_signed_v<T> ? _mm256_cvtepi16_epi32(words) : _mm256_cvtepu16_epi32(words);
    }
    return std::is_same_v<E, float> ? _mm256_cvtepi32_ps(wide) : _mm256_castsi256_ps(wide);
#endif
  } else if constexpr (std::is_unsigned_v<E>) {
    simd_detail::Bits<E> bits[n];
    for (int64_t i = 0; i < n; i++)
      bits[i] = from[i];
    return Lanes<E>::loadu(bits);
  } else {
    E wide[n];
    for (int64_t i = 0; i < n; i++)
      wide[i] = static_cast<E>(from[i]);
    return Lanes<E>::loadu(wide);
  }
}

// The first n elements; nothing is read beyond them.
template <class E, class T>
inline Lanes<E> load_lanes(const T* from, int64_t n) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, E> && sizeof(E) >= 4)
    return Lanes<E>::loadu(from, n);
  if constexpr (std::is_same_v<E, float> && c10::is_reduced_floating_point_v<T>) {
    const __m256i words = _mm256_maskz_loadu_epi16((1u << n) - 1, from);
    __m512 wide;
    if constexpr (std::is_same_v<T, c10::BFloat16>)
      at::vec::cvtbf16_fp32(words, wide);
    else
      at::vec::cvtfp16_fp32(words, wide);
    return wide;
  }
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, E> && std::is_same_v<E, float>) {
    alignas(32) static constexpr int32_t first[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const auto* mask = reinterpret_cast<const __m256i*>(first + 8 - n);
    return _mm256_maskload_ps(from, _mm256_loadu_si256(mask));
  }
#endif
  alignas(64) T part[kLanes<E>] = {};
  copy_part<kLanes<E>>(part, from, n);
  return load_lanes<E, T>(part);
}

template <class E>
inline Lanes<E> broadcast_lanes(E value) {
  if constexpr (!std::is_unsigned_v<E>)
    return Lanes<E>(value);
  typename Lanes<E>::value_type lane;
  const simd_detail::Bits<E> bits = value;
  std::memcpy(&lane, &bits, sizeof(bits));
  return Lanes<E>(lane);
}

template <class E, class U>
inline void store_lanes(U* to, const Lanes<E>& lanes) {
  constexpr int64_t n = kLanes<E>;
  if constexpr (
      sizeof(U) == sizeof(E) && sizeof(E) >= 4 && (std::is_same_v<U, E> || std::is_unsigned_v<E>)) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
    lanes.store(to);
#else
    baseline::store(to, lanes);
#endif
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (std::is_same_v<E, float> && std::is_same_v<U, c10::BFloat16>) {
    const auto words = at::vec::cvtfp32_bf16(lanes);
    std::memcpy(to, &words, sizeof(words));
  } else if constexpr (std::is_same_v<E, float> && std::is_same_v<U, c10::Half>) {
    const auto words = at::vec::cvtfp32_fp16(lanes);
    std::memcpy(to, &words, sizeof(words));
#else
  } else if constexpr (std::is_same_v<E, float> && std::is_same_v<U, c10::BFloat16>) {
    baseline::store_rounded<n>(to, elements(lanes));
#endif
#if defined(CPU_CAPABILITY_AVX512)
  } else if constexpr (sizeof(E) <= 4 && std::is_integral_v<U> && sizeof(U) <= 2) {
    __m512i integers = _mm512_castps_si512(lanes);
    if constexpr (std::is_same_v<E, float>) {
      // max gives its second operand, 0, for NaN where 0 is the least value; elsewhere NaN is
      // made 0 first. The conversion rounds to nearest even.
      constexpr float low = std::numeric_limits<U>::min(), high = std::numeric_limits<U>::max();
      __m512 x = lanes;
      if constexpr (low != 0)
        x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
      x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(low)), _mm512_set1_ps(high));
      integers = _mm512_cvtps_epi32(x);
    }
    if constexpr (sizeof(U) == 1)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(integers));
    else
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(integers));
#elif defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (sizeof(E) <= 4 && std::is_integral_v<U> && sizeof(U) <= 2) {
    __m256i integers = _mm256_castps_si256(lanes);
    if constexpr (std::is_same_v<E, float>) {
      constexpr float low = std::numeric_limits<U>::min(), high = std::numeric_limits<U>::max();
      const __m256 x = _mm256_and_ps(lanes, _mm256_cmp_ps(lanes, lanes, _CMP_ORD_Q));
      integers = _mm256_cvtps_epi32(
          _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(low)), _mm256_set1_ps(high)));
    }
    // The low bytes of each element, brought together in either half, then the two halves.
    const char skip = static_cast<char>(0x80);
    if constexpr (sizeof(U) == 1) {
      const __m256i order = _mm256_setr_epi8(
          // clang-format off
          0, 4, 8, 12, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip,
          skip, skip, skip, skip, 0, 4, 8, 12, skip, skip, skip, skip, skip, skip, skip, skip);
      // clang-format on
      const __m256i bytes = _mm256_shuffle_epi8(integers, order);
      _mm_storel_epi64(
          reinterpret_cast<__m128i*>(to),
          _mm_or_si128(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
    } else {
      const __m256i order = _mm256_setr_epi8(
          // clang-format off
          0, 1, 4, 5, 8, 9, 12, 13, skip, skip, skip, skip, skip, skip, skip, skip,
          skip, skip, skip, skip, skip, skip, skip, skip, 0, 1, 4, 5, 8, 9, 12, 13);
      // clang-format on
      const __m256i words = _mm256_shuffle_epi8(integers, order);
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(to),
          _mm_or_si128(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
#endif
  } else if constexpr (std::is_unsigned_v<E>) {
    simd_detail::Bits<E> bits[n];
    lanes.store(bits);
    for (int64_t i = 0; i < n; i++)
      to[i] = static_cast<U>(bits[i]);
  } else {
    E wide[n];
    lanes.store(wide);
    for (int64_t i = 0; i < n; i++)
      to[i] = convert<U>(wide[i]);
  }
}

// The first n lanes; nothing is written beyond them.
template <class E, class U>
inline void store_lanes(U* to, const Lanes<E>& lanes, int64_t n) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (sizeof(U) == sizeof(E) && sizeof(E) >= 4 && std::is_same_v<U, E>) {
    if constexpr (std::is_floating_point_v<E>)
      return lanes.store(to, static_cast<int>(n));
  }
  if constexpr (std::is_same_v<E, float> && c10::is_reduced_floating_point_v<U>) {
    __m256i words;
    if constexpr (std::is_same_v<U, c10::BFloat16>)
      words = at::vec::cvtfp32_bf16(lanes);
    else
      words = at::vec::cvtfp32_fp16(lanes);
    return _mm256_mask_storeu_epi16(to, (1u << n) - 1, words);
  }
#endif
  alignas(64) U part[kLanes<E>];
  store_lanes<E, U>(part, lanes);
  copy_part<kLanes<E>>(to, part, n);
}

// A vector, or the first n elements where there are fewer.
template <class E, class T>
inline Lanes<E> load_up_to(const T* from, int64_t n) {
  return n >= kLanes<E> ? load_lanes<E>(from) : load_lanes<E>(from, n);
}

template <class E, class U>
inline void store_up_to(U* to, const Lanes<E>& lanes, int64_t n) {
  if (n >= kLanes<E>)
    store_lanes<E>(to, lanes);
  else
    store_lanes<E>(to, lanes, n);
}

// The first n lanes with any stride, the others 0.
template <class E, class T>
inline Lanes<E> load_strided_lanes(const T* from, int64_t stride, int64_t n) {
  alignas(64) E values[kLanes<E>] = {};
  for (int64_t i = 0; i < n; i++)
    values[i] = static_cast<E>(from[i * stride]);
  return Lanes<E>::loadu(values);
}

// n elements that lie next to each other, in the type that they are computed with.
template <class E, class T>
inline void widen(const T* from, int64_t n, E* to) {
  if constexpr (std::is_same_v<T, E>) {
    std::memcpy(to, from, n * sizeof(E));
  } else {
    if (n < kLanes<E>)
      return load_lanes<E>(from, n).store(to, n);
    for (int64_t i = 0; i < n; i += kLanes<E>) {
      const int64_t at = std::min(i, n - kLanes<E>);
      load_lanes<E>(from + at).store(to + at);
    }
  }
}

// ---- Vector ----

template <class C>
inline Vector<C> load_vector(const C* from) {
  Vector<C> vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <class C>
inline void store_vector(C* to, const Vector<C>& vector) {
  std::memcpy(to, &vector, sizeof(vector));
}

// The same past the caches, where an instruction can; `to` is aligned to a vector.
template <class C>
inline void stream_vector(C* to, const Vector<C>& vector) {
#if defined(CPU_CAPABILITY_AVX512)
  store(reinterpret_cast<__m512i>(vector), to, /*streamed=*/true);
#elif defined(CPU_CAPABILITY_AVX2)
  store(reinterpret_cast<__m256i>(vector), to, /*streamed=*/true);
#else
  store_vector(to, vector);
#endif
}

// The same where `to` is aligned and nothing is rounded; else it is a store as any other.
template <class E, class U>
inline void stream_lanes(U* to, const Lanes<E>& lanes) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if (sizeof(U) == sizeof(E) && sizeof(E) >= 4 &&
      reinterpret_cast<uintptr_t>(to) % sizeof(lanes) == 0) {
    using C = typename Lanes<E>::value_type;
    return stream_vector(reinterpret_cast<C*>(to), Vector<C>(lanes));
  }
#endif
  store_lanes<E>(to, lanes);
}

template <class C>
inline Vector<C> broadcast(C value) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return Lanes<C>(value);
#else
  Vector<C> vector;
  for (int64_t i = 0; i < kLanes<C>; i++)
    vector[i] = value;
  return vector;
#endif
}

// The first n elements; nothing is written beyond them.
template <class C>
inline void store_vector(C* to, const Vector<C>& vector, int64_t n) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  store_lanes<C>(to, Lanes<C>(vector), n);
#else
  std::memcpy(to, &vector, n * sizeof(C));
#endif
}

template <class C, class V>
inline V multiply_add(const V& a, const V& b, const V& c) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return at::vec::fmadd(Lanes<C>(a), Lanes<C>(b), Lanes<C>(c));
#else
  return a * b + c;
#endif
}

// Not less than `low` and not more than `high`; NaN stays NaN.
template <class C, class V>
[[gnu::always_inline]] inline V clamp(const V& x, const V& low, const V& high) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return at::vec::clamp_max(at::vec::clamp_min(Lanes<C>(x), Lanes<C>(low)), Lanes<C>(high));
#else
  const V y = low > x ? low : x;
  return high < y ? high : y;
#endif
}

// multiply_add of Lanes, in functions so large that the compiler would call ATen's.
template <class V>
[[gnu::always_inline]] inline V multiply_add_lanes(const V& a, const V& b, const V& c) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return at::vec::fmadd(a, b, c);
#else
  return by_registers(
      [](auto x, auto y, auto z) __attribute__((always_inline)) { return x * y + z; }, a, b, c);
#endif
}

template <class V>
[[gnu::always_inline]] inline V multiply_lanes(const V& a, const V& b) {
  return by_registers([](auto x, auto y) __attribute__((always_inline)) { return x * y; }, a, b);
}

// The even elements of both and the odd ones.
template <class V>
inline std::pair<V, V> deinterleave_lanes(const V& a, const V& b) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return at::vec::deinterleave2(a, b);
#else
  return baseline::deinterleave(a, b);
#endif
}

// The inverse of that.
template <class V>
inline std::pair<V, V> interleave_lanes(const V& even, const V& odd) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return at::vec::interleave2(even, odd);
#else
  return baseline::interleave(even, odd);
#endif
}

// Keeps the compiler from loading a vector again for each product: to it that is one instruction
// less, but it is loads that bound loops.
template <class V>
[[gnu::always_inline]] inline void keep_in_register([[maybe_unused]] V& vector) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  asm("" : "+v"(vector));
#endif
}

// f(0), ..., f(n - 1), with constants. Vectors are named by constants: of an array that a loop runs
// over the compiler may keep a copy in memory, even if the loop is unrolled.
template <size_t n, class F>
[[gnu::always_inline]] inline void for_constants(const F& f) {
  [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<size_t, i>()), ...);
  }(std::make_index_sequence<n>());
}

// {f(1), ..., f(n)}, with constants: a table of the instances of a template.
template <int n, class F>
constexpr auto table_of(const F& f) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return std::array{f(std::integral_constant<int, i + 1>())...};
  }(std::make_integer_sequence<int, n>());
}

// ---- Quad ----

template <class C, class T>
inline Quad<C> load_quad(const T* from) {
  if constexpr (std::is_same_v<T, C>) {
    Quad<C> quad;
    std::memcpy(&quad, from, sizeof(quad));
    return quad;
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#endif
  } else {
    return Quad<C>{
        static_cast<C>(from[0]),
        static_cast<C>(from[1]),
        static_cast<C>(from[2]),
        static_cast<C>(from[3])};
  }
}

template <class C, class T>
inline void store_quad(T* to, const Quad<C>& quad) {
#if !defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<C, float> && std::is_same_v<T, c10::BFloat16>) {
    baseline::store_rounded<4>(to, reinterpret_cast<const float*>(&quad));
  } else
#endif
  {
    for (int i = 0; i < 4; i++)
      to[i] = convert<T>(quad[i]);
  }
}

// Four rows of four values become four columns.
template <class Q>
inline void transpose(Q* x) {
  const Q a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
  const Q b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
  const Q c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const Q d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  x[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  x[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  x[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  x[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

} // namespace torch_dnnl
