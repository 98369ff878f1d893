// What activations and their derivatives are made of, for vectors of numbers.
#pragma once

#include "conv/activation.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {

namespace activation_detail {

// Of Lanes; and of Register, which is what they are computed in without AVX2.
template <class V>
inline constexpr bool is_lanes = std::is_same_v<V, Lanes<float>>;

template <class V>
inline V all(float value) {
  if constexpr (is_lanes<V>)
    return V(value);
  else
    return value - V{}; // -0 too
}
template <class V>
inline V product_and(const V& a, const V& b, const V& c) {
  if constexpr (is_lanes<V>)
    return at::vec::fmadd(a, b, c);
  else
    return a * b + c;
}
template <class V>
inline V between(const V& x, const V& least, const V& most) {
  if constexpr (is_lanes<V>)
    return at::vec::clamp_max(at::vec::clamp_min(x, least), most);
  else
    return x < least ? least : x > most ? most : x;
}
template <class To, class From>
inline To as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(static_cast<void*>(&to), &from, sizeof(to));
  return to;
}

// exp in registers, where a call would have all of them saved: 2^n exp(r), x = n log(2) + r, by the
// series of exp(r). Within 2 units in the last place; infinity above 88.3 and 0 below -87.7, where
// exp itself is nearly that.
template <class V>
inline V exp_of(const V& argument) {
  using Integers = VectorOf<int32_t, sizeof(V)>;
  const V x = between(argument, all<V>(-88), all<V>(89));
  const V shift = all<V>(12582912); // 1.5 * 2^23: sums have their integer part in the lowest bits
  const V shifted = product_and(x, all<V>(1.44269504088896341f), shift), n = shifted - shift;
  // log(2) in two parts; the products with the first are exact.
  const V r = product_and(n, all<V>(2.12194440e-4f), product_and(n, all<V>(-0.693359375f), x));
  V series = all<V>(1.0f / 5040);
  for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    series = product_and(series, r, all<V>(term));
  return series * as<V>((as<Integers>(shifted) + 127) << 23);
}

// erf within 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
template <class V>
inline V erf_of(const V& x) {
  using Integers = VectorOf<int32_t, sizeof(V)>;
  const auto sign = as<Integers>(all<V>(-0.0f));
  const V size = as<V>(as<Integers>(x) & ~sign);
  const V t = all<V>(1) / product_and(size, all<V>(0.3275911f), all<V>(1));
  V series = all<V>(1.061405429f);
  for (const float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
    series = product_and(series, t, all<V>(term));
  const V rest = all<V>(1) - series * t * exp_of(all<V>(0) - x * x);
  return as<V>((as<Integers>(rest) & ~sign) | (as<Integers>(x) & sign)); // copysign is a call
}

} // namespace activation_detail

template <class C>
struct Elementary<at::vec::Vectorized<C>> {
  using V = at::vec::Vectorized<C>;
  static constexpr bool is_float = std::is_same_v<C, float>;

  static V exp(const V& x) {
    if constexpr (is_float)
      return by_registers([](const auto& part) { return activation_detail::exp_of(part); }, x);
    return x.exp();
  }
  static V erf(const V& x) {
    if constexpr (is_float)
      return by_registers([](const auto& part) { return activation_detail::erf_of(part); }, x);
    return x.erf();
  }
  static V tanh(const V& x) {
    return x.tanh();
  }
  static V log1p(const V& x) {
    return x.log1p();
  }
  // Within a rounding: a division takes as long as ten products.
  static V sixth(const V& x) {
    return x * V(C(1) / 6);
  }
  static V at_least(const V& x, const V& bound) {
    return at::vec::clamp_min(x, bound);
  }
  static V at_most(const V& x, const V& bound) {
    return at::vec::clamp_max(x, bound);
  }
  static V if_at_most(const V& x, const V& bound, const V& yes, const V& no) {
    return V::blendv(no, yes, x <= bound);
  }
};

} // namespace torch_dnnl
