// Transposing in squares of four by four, in registers.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/cpu/lanes.h"

namespace torch_dnnl {

template <class C>
struct QuadOf {
  typedef C type __attribute__((vector_size(4 * sizeof(C))));
};
template <class C>
using Quad = typename QuadOf<C>::type;

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
