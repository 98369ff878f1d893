// Conversions of core/numeric.h without branches, so that compilers turn loops over them into
// vector code for every instruction set. Each gives the bits that the definition there gives.
// (Loaded NaN may differ in their payload: what is stored is canonical.)
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/numeric.h"

namespace torch_dnnl::reorder_cpu {

// To the nearest integer, ties to even: adding 2^(digits - 1) leaves no room for a fraction.
template <class C>
inline C round_even(C x) {
  constexpr C unit = std::is_same_v<C, float> ? C(0x1p23) : C(0x1p52);
  const C magic = std::copysign(unit, x);
  return std::fabs(x) < unit ? (x + magic) - magic : x;
}

// A float8 with kBits bits of mantissa and the exponent bias kBias.
template <int kBits, int kBias>
inline float widen_float8(uint8_t x, uint32_t special) {
  const uint32_t magnitude = x & 0x7F;
  const uint32_t bits = (magnitude << (23 - kBits)) + (uint32_t(127 - kBias) << 23);
  // 2^(1 - kBias - kBits) times the mantissa, for numbers without a leading 1.
  constexpr float unit = std::bit_cast<float>(uint32_t(127 + 1 - kBias - kBits) << 23);
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * unit;
  uint32_t result = magnitude >> kBits == 0 ? std::bit_cast<uint32_t>(small) : bits;
  result = magnitude >= special ? bits | 0x7F800000u : result;
  return std::bit_cast<float>(result | (uint32_t(x & 0x80) << 24));
}

template <int kBits, int kBias>
inline uint8_t narrow_float8(float x, float max) {
  const float limited = x > max ? max : x < -max ? -max : x;
  const uint32_t all = std::bit_cast<uint32_t>(limited);
  const uint32_t sign = all & 0x80000000u, bits = all ^ sign;
  // Below the normal numbers: an addition that rounds at the last bit of the float8.
  constexpr uint32_t magic = uint32_t(127 + 1 - kBias + 23 - kBits) << 23;
  const float sum = std::bit_cast<float>(bits) + std::bit_cast<float>(magic);
  const uint32_t small = std::bit_cast<uint32_t>(sum) - magic;
  const uint32_t rounded = bits - (uint32_t(127 - kBias) << 23) + ((1u << (22 - kBits)) - 1) +
      ((bits >> (23 - kBits)) & 1);
  const uint32_t normal = rounded >> (23 - kBits);
  const uint32_t result = (bits < (uint32_t(128 - kBias) << 23) ? small : normal) | sign >> 24;
  return static_cast<uint8_t>(x == x ? result : 0x7F);
}

// As load() of core/numeric.h.
template <class C, class T>
inline C widened(T x) {
  if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>) {
    return widen_float8<3, 7>(x.x, 0x7F);
  } else if constexpr (std::is_same_v<T, c10::Float8_e5m2>) {
    return widen_float8<2, 15>(x.x, 0x7C);
  } else {
    return static_cast<C>(x);
  }
}

// As store() of core/numeric.h, after the NaN that come from arithmetic have become one.
template <class T, class C>
inline T narrowed(C x) {
  constexpr bool is_single = std::is_same_v<C, float>;
  if constexpr (std::is_integral_v<C>) {
    constexpr C low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    return static_cast<T>(x < low ? low : x > high ? high : x);
  } else if constexpr (std::is_same_v<T, int32_t>) {
    constexpr C low = static_cast<C>(-0x1p31), above = static_cast<C>(0x1p31);
    const C rounded = round_even(x);
    const bool inside = rounded >= low && rounded < above;
    const int32_t value = static_cast<int32_t>(inside ? rounded : 0);
    const int32_t limit = rounded >= above ? std::numeric_limits<int32_t>::max()
        : rounded < low                    ? std::numeric_limits<int32_t>::min()
                                           : 0;
    return inside ? value : limit;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr C low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    C limited = x > high ? high : x;
    limited = limited < low ? low : limited;
    limited = x == x ? limited : 0;
    // Rounds, and leaves the integer in the lowest bits.
    constexpr C magic = is_single ? C(0x1.8p23) : C(0x1.8p52);
    using Bits = std::conditional_t<is_single, uint32_t, uint64_t>;
    return static_cast<T>(std::bit_cast<Bits>(limited + magic));
  } else if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>) {
    return T(narrow_float8<3, 7>(static_cast<float>(x), 448.0f), T::from_bits());
  } else if constexpr (std::is_same_v<T, c10::Float8_e5m2>) {
    return T(narrow_float8<2, 15>(static_cast<float>(x), 57344.0f), T::from_bits());
  } else if constexpr (std::is_same_v<T, c10::BFloat16> && is_single) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return T(static_cast<uint16_t>(x == x ? rounded : 0x7FC0), T::from_bits());
  } else if constexpr (std::is_floating_point_v<T>) {
    return x == x ? static_cast<T>(x) : std::numeric_limits<T>::quiet_NaN();
  } else {
    return convert<T>(x);
  }
}

template <class T, class C>
inline void widen_row(const T* __restrict from, C* __restrict to, int64_t n) {
  if constexpr (std::is_same_v<T, c10::Half> && std::is_same_v<C, float>) {
    at::vec::convert(from, to, n);
  } else {
    for (int64_t i = 0; i < n; i++) {
      to[i] = widened<C>(from[i]);
    }
  }
}

template <class C, class T>
inline void narrow_row(const C* __restrict from, T* __restrict to, int64_t n) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, c10::Half> && std::is_same_v<C, float>) {
    using at::vec::Vectorized;
    constexpr int64_t width = Vectorized<float>::size();
    const Vectorized<float> nan(std::numeric_limits<float>::quiet_NaN());
    const auto canonical = [&](const float* x) {
      const auto value = Vectorized<float>::loadu(x);
      return Vectorized<float>::blendv(value, nan, value.isnan());
    };
    for (; i + 2 * width <= n; i += 2 * width) {
      const auto first = canonical(from + i), second = canonical(from + i + width);
      at::vec::convert_from_float<T>(first, second).store(to + i);
    }
  }
  for (; i < n; i++) {
    to[i] = narrowed<T>(from[i]);
  }
}

} // namespace torch_dnnl::reorder_cpu
