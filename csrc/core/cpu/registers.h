// The processor's registers: how many there are, how wide, and what of a row they hold.
//
// Lanes<E> is ATen's vector: it widens as it is loaded, rounds as it is stored, and has all of
// ATen's functions. Vector<C> is the same register as the compiler's own type, for loops that keep
// an array of them: an array of a class the compiler keeps in memory. Each converts to the other.
// Register<C> is as wide as the processor's registers, which is half of that without AVX2.
// Quad<C> has four elements, for transposes in squares.
#pragma once

#include "core/cpu/stream.h" // first: it silences a warning of the compiler's own headers

#include <ATen/cpu/vec/vec.h>

#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__GNUC__) && !defined(__clang__)
// Vectors wider than registers are passed in memory. All functions here are inline.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kRegisters = 32, kRegisterBytes = 64;
#elif defined(CPU_CAPABILITY_AVX2)
inline constexpr int kRegisters = 16, kRegisterBytes = 32;
#else
inline constexpr int kRegisters = 16, kRegisterBytes = 16;
#endif

// The elements of a row as they are held in registers: float and double to compute with, or
// unsigned integers of 1 to 8 bytes to move whatever they stand for.
template <class E>
using Lanes = std::conditional_t<
    sizeof(E) == 8,
    at::vec::Vectorized<double>,
    at::vec::Vectorized<float>>; // narrower elements lie in 32 bits each

template <class E>
inline constexpr int64_t kLanes = Lanes<E>::size();

namespace simd_detail {

template <class T, size_t bytes>
struct CompilersVector {
  typedef T type __attribute__((vector_size(bytes)));
};

} // namespace simd_detail

template <class T, size_t bytes>
using VectorOf = typename simd_detail::CompilersVector<T, bytes>::type;
template <class C>
using Vector = VectorOf<C, sizeof(Lanes<C>)>;
template <class C>
using Register = VectorOf<C, kRegisterBytes>;
template <class C>
using Quad = VectorOf<C, 4 * sizeof(C)>;

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

// f of Lanes. Without AVX2 they are arrays that take two registers, of which the compiler would in
// larger functions store single elements and load them again together, which waits for all of the
// stores: there f is of one Register after the other.
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

// The elements i of two registers, one after the other, at Index{}(0), Index{}(1), ...
template <class Index, class R>
[[gnu::always_inline]] inline R shuffle(const R& x, const R& y, Index) {
  constexpr size_t n = kRegisterBytes / sizeof(x[0]);
  return [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(x, y, Index{}(i)...);
  }(std::make_index_sequence<n>());
}

// Two rows of lanes, one after the other: where element j of both is.
template <class V>
[[gnu::always_inline]] inline auto* element_of(V& a, V& b, int64_t j) {
  return j < V::size() ? elements(a) + j : elements(b) + (j - V::size());
}

template <class V>
[[gnu::always_inline]] inline std::pair<V, V> deinterleave(const V& a, const V& b) {
  using C = typename V::value_type;
  constexpr int64_t n = V::size(), step = kRegisterBytes / sizeof(C);
  V even, odd;
  for (int64_t i = 0; i < n; i += step) {
    const auto x = load_register(element_of(a, b, 2 * i));
    const auto y = load_register(element_of(a, b, 2 * i + step));
    store_register<C>(elements(even) + i, shuffle(x, y, [](size_t i) { return 2 * i; }));
    store_register<C>(elements(odd) + i, shuffle(x, y, [](size_t i) { return 2 * i + 1; }));
  }
  return {even, odd};
}

template <class V>
[[gnu::always_inline]] inline std::pair<V, V> interleave(const V& even, const V& odd) {
  using C = typename V::value_type;
  constexpr int64_t n = V::size(), step = kRegisterBytes / sizeof(C);
  V a, b;
  for (int64_t i = 0; i < n; i += step) {
    const auto x = load_register(elements(even) + i), y = load_register(elements(odd) + i);
    store_register<C>(
        element_of(a, b, 2 * i), shuffle(x, y, [](size_t i) { return i / 2 + i % 2 * step; }));
    store_register<C>(element_of(a, b, 2 * i + step), shuffle(x, y, [](size_t i) {
                        return (step + i) / 2 + i % 2 * step;
                      }));
  }
  return {a, b};
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

} // namespace torch_dnnl
