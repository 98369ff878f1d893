// Vectors of the inner loops that are written for what registers hold.
#pragma once

#include <cstring>
#include <utility>

#include "core/cpu/lanes.h"
#include "core/cpu/stream.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

// Lanes as the compiler's own type, since an array of a class it keeps in memory.
template <class C>
struct VectorOf {
  typedef C type __attribute__((vector_size(sizeof(Lanes<C>))));
};
template <class C>
using Vector = typename VectorOf<C>::type;

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

// The same past the caches; vectors are lines.
template <class C>
inline void stream_vector(C* to, const Vector<C>& vector) {
#if defined(CPU_CAPABILITY_AVX512)
  store(reinterpret_cast<__m512i>(vector), to, /*streamed=*/true);
#else
  store_vector(to, vector);
#endif
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

template <class C>
inline Vector<C> multiply_add(const Vector<C>& a, const Vector<C>& b, const Vector<C>& c) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return at::vec::fmadd(Lanes<C>(a), Lanes<C>(b), Lanes<C>(c));
#else
  return a * b + c;
#endif
}

// Keeps the compiler from loading a vector again for each product: to it that is one instruction
// less, but it is loads that bound loops.
template <class C>
[[gnu::always_inline]] inline void keep_in_register([[maybe_unused]] Vector<C>& vector) {
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

} // namespace torch_dnnl
