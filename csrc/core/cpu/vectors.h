// The vocabulary of vectors. Types hold a part of a row in a register. Functions compute with these
// types.
//
//   Lanes<E>     ATen's vector. Elements widen as they are loaded and round as they are stored, and
//                all of ATen's functions are there. E is float, double, or an unsigned integer of
//                1 to 8 bytes, which stands for any type of this size.
//   Vector<C>    The same register as a type of the compiler. A loop keeps an array of sums in
//                registers if they are Vectors; an array of Lanes lies in memory.
//   Register<C>  As wide as the processor's registers: a Vector, and without AVX2 half of one.
//   Quad<C>      Four elements, for transposes in squares.
//
// Lanes and Vector convert to each other. load_lanes, load_quad and their stores convert types.
// load_vector, load_register and their stores copy bits.
#pragma once

#include "core/cpu/stream.h" // first: it silences a warning of the compiler's own headers

#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__GNUC__) && !defined(__clang__)
// Vectors wider than registers are passed in memory. All functions here are inline.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include "core/cpu/constants.h"
#include "core/cpu/small_integers.h"
#include "core/numeric.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kRegisters = 32, kRegisterBytes = 64;
#elif defined(CPU_CAPABILITY_AVX2)
inline constexpr int kRegisters = 16, kRegisterBytes = 32;
#else
inline constexpr int kRegisters = 16, kRegisterBytes = 16;
#endif

// ---- Kinds ----

template <class E>
using Lanes = std::conditional_t<
    sizeof(E) == 8,
    at::vec::Vectorized<double>,
    at::vec::Vectorized<float>>; // narrower elements lie in 32 bits each

template <class E>
inline constexpr int64_t kLanes = Lanes<E>::size();

namespace vector_detail {

// An element of Lanes<E> as an integer.
template <class E>
using Bits = std::conditional_t<sizeof(E) == 8, uint64_t, uint32_t>;

template <class T, size_t bytes>
struct CompilersVector {
  typedef T type __attribute__((vector_size(bytes)));
};

} // namespace vector_detail

template <class T, size_t bytes>
using VectorOf = typename vector_detail::CompilersVector<T, bytes>::type;
template <class C>
using Vector = VectorOf<C, sizeof(Lanes<C>)>;
template <class C>
using Register = VectorOf<C, kRegisterBytes>;
template <class C>
using Quad = VectorOf<C, 4 * sizeof(C)>;

namespace vector_detail {

template <class V>
auto lanes_of(const V& vector) {
  if constexpr (std::is_class_v<V>)
    return vector;
  else
    return Lanes<std::remove_cvref_t<decltype(vector[0])>>();
}

} // namespace vector_detail

// The Lanes with the elements of a Vector. For Lanes, the same type.
template <class V>
using lanes_of = decltype(vector_detail::lanes_of(std::declval<V>()));

template <class C>
[[gnu::always_inline]] inline Register<C> load_register(const C* from) {
  Register<C> lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

template <class C>
[[gnu::always_inline]] inline void store_register(C* to, const Register<C>& lanes) {
  std::memcpy(to, &lanes, sizeof(lanes));
}

// The lanes as an array, whichever register they are in.
template <class V>
[[gnu::always_inline]] inline auto elements(V& lanes) {
  using C = typename V::value_type;
  return reinterpret_cast<std::conditional_t<std::is_const_v<V>, const C, C>*>(&lanes);
}

// f of Lanes. Without AVX2, Lanes are an array in two registers. In larger functions the compiler
// would store single elements of the array and load them again together: the load waits for all
// stores. So f takes one Register after the other there.
template <class F, class V, class... Vs>
[[gnu::always_inline]] inline V by_registers(const F& f, const V& first, const Vs&... others) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return f(first, others...);
#else
  using C = typename V::value_type;
  V result;
  for (int64_t i = 0; i < V::size(); i += kRegisterBytes / sizeof(C))
    store_register<C>(
        elements(result) + i,
        f(load_register<C>(elements(first) + i), load_register<C>(elements(others) + i)...));
  return result;
#endif
}

// For the same reason ATen's own functions are left out here.
#if !defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX2)
namespace baseline {

template <class V>
[[gnu::always_inline]] inline V load(const void* from) {
  using C = typename V::value_type;
  const auto* const at = static_cast<const C*>(from);
  V lanes;
  for (int64_t i = 0; i < V::size(); i += kRegisterBytes / sizeof(C))
    store_register(elements(lanes) + i, load_register(at + i));
  return lanes;
}

template <class V>
[[gnu::always_inline]] inline void store(void* to, const V& lanes) {
  using C = typename V::value_type;
  auto* const at = static_cast<C*>(to);
  for (int64_t i = 0; i < V::size(); i += kRegisterBytes / sizeof(C))
    store_register(at + i, load_register(elements(lanes) + i));
}

// n floats as convert() rounds them
template <int64_t n>
[[gnu::always_inline]] inline void store_rounded(c10::BFloat16* to, const float* from) {
  using Bits = VectorOf<uint32_t, kRegisterBytes>;
  using Words = VectorOf<uint16_t, kRegisterBytes / 2>;
  for (int64_t i = 0; i < n; i += kRegisterBytes / sizeof(float)) {
    const Register<float> floats = load_register(from + i);
    const Bits bits = reinterpret_cast<Bits>(floats), nan = Bits{} + 0x7FC0;
    const Bits rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const Bits is_nan = reinterpret_cast<Bits>(floats != floats);
    const Words words = __builtin_convertvector((rounded & ~is_nan) | (nan & is_nan), Words);
    std::memcpy(to + i, &words, sizeof(words));
  }
}

} // namespace baseline
#endif

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
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 2) {
    const auto integers = load_integers(from);
    return std::is_same_v<E, float> ? as_floats(integers) : Vector<float>(integers);
#endif
  } else if constexpr (std::is_unsigned_v<E>) {
    vector_detail::Bits<E> bits[n];
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
  const vector_detail::Bits<E> bits = value;
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
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (sizeof(E) <= 4 && std::is_integral_v<U> && sizeof(U) <= 2) {
    const Vector<float> vector = lanes;
    if constexpr (std::is_same_v<E, float>)
      store_integers(to, round_to<U>(vector));
    else
      store_integers(to, IntegerRegister(vector));
#endif
  } else if constexpr (std::is_unsigned_v<E>) {
    vector_detail::Bits<E> bits[n];
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

// a b + c of any kind: rounded once with AVX2, and twice without.
template <class V>
[[gnu::always_inline]] inline V multiply_add(const V& a, const V& b, const V& c) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  using L = lanes_of<V>;
  return at::vec::fmadd(L(a), L(b), L(c));
#else
  if constexpr (std::is_class_v<V>)
    return by_registers(
        [](auto x, auto y, auto z) __attribute__((always_inline)) { return x * y + z; }, a, b, c);
  else
    return a * b + c;
#endif
}

// Not less than `low` and not more than `high`; NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline V clamp(const V& x, const V& low, const V& high) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  using L = lanes_of<V>;
  return at::vec::clamp_max(at::vec::clamp_min(L(x), L(low)), L(high));
#else
  const V y = low > x ? low : x;
  return high < y ? high : y;
#endif
}

template <class V>
[[gnu::always_inline]] inline V multiply_lanes(const V& a, const V& b) {
  return by_registers([](auto x, auto y) __attribute__((always_inline)) { return x * y; }, a, b);
}

// Keeps the compiler from loading a vector again for each product: to it that is one instruction
// less, but it is loads that bound loops.
template <class V>
[[gnu::always_inline]] inline void keep_in_register([[maybe_unused]] V& vector) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  asm("" : "+v"(vector));
#endif
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

} // namespace torch_dnnl
