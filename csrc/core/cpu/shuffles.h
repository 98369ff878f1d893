// Shuffles of two vectors, and transposes of four.
#pragma once

#include <utility>

#include "core/cpu/vectors.h"

namespace torch_dnnl {

#if !defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX2)
namespace baseline {

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

} // namespace baseline
#endif

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
