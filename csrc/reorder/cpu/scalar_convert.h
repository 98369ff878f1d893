// Loops over conversions of core/numeric.h, without branches where that lets compilers make vector
// code of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/numeric.h"

namespace torch_dnnl::reorder_cpu {

// To the nearest integer, ties to even: adding 2^52 leaves no room for a fraction.
inline double round_even(double x) {
  const double magic = std::copysign(0x1p52, x);
  return std::fabs(x) < 0x1p52 ? (x + magic) - magic : x;
}

// The float32 that is narrowed to T as the float64 would be; see narrow_to_odd() of core/numeric.h.
template <class T>
inline float single_for(double x) {
  const float nearest = static_cast<float>(x);
  if constexpr (is_float8_v<T>) {
    return nearest; // float8 is rounded from float32
  } else {
    const double back = nearest;
    uint32_t bits = std::bit_cast<uint32_t>(nearest);
    bits -= std::fabs(back) > std::fabs(x) ? 1 : 0;
    bits |= back < x || back > x ? 1 : 0;
    return std::bit_cast<float>(bits);
  }
}

// As store() of core/numeric.h, after the NaN that come from arithmetic have become one. Not of
// float64 to bfloat16, float16 and float8, which go through single_for().
template <class T, class C>
inline T narrowed(C x) {
  if constexpr (std::is_floating_point_v<T>) {
    const T value = static_cast<T>(x);
    return value == value ? value : std::numeric_limits<T>::quiet_NaN();
  } else {
    constexpr C low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    C limited = x > high ? high : x;
    limited = limited < low ? low : limited;
    if constexpr (std::is_integral_v<C>) {
      return static_cast<T>(limited);
    } else {
      limited = x == x ? limited : 0;
      // Rounds, and leaves the integer in the lowest bits.
      return static_cast<T>(std::bit_cast<uint64_t>(limited + 0x1.8p52));
    }
  }
}

// As load() of core/numeric.h.
template <class T, class C>
inline void widen_row(const T* __restrict from, int64_t step, C* __restrict to, int64_t n) {
  if (step == 1) {
    for (int64_t i = 0; i < n; i++) {
      to[i] = static_cast<C>(from[i]);
    }
  } else if (step == 0) {
    std::fill_n(to, n, static_cast<C>(*from));
  } else {
    for (int64_t i = 0; i < n; i++) {
      to[i] = static_cast<C>(from[i * step]);
    }
  }
}

template <class C, class T>
inline void narrow_row(const C* __restrict from, T* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    to[i] = narrowed<T>(from[i]);
  }
}

} // namespace torch_dnnl::reorder_cpu
