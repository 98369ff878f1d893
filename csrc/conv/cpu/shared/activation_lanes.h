// What activations and their derivatives are made of, for vectors of numbers.
#pragma once

#include "conv/activation.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {

namespace activation_detail {

// exp in registers, where a call would have all of them saved: 2^n exp(r), x = n log(2) + r, by the
// series of exp(r). Within 2 units in the last place; infinity above 88.3 and 0 below -87.7, where
// exp itself is nearly that.
inline Lanes<float> exp_in_registers(const Lanes<float>& argument) {
  using V = Lanes<float>;
  const V x = at::vec::clamp_max(at::vec::clamp_min(argument, V(-88)), V(89));
  const V shift(12582912); // 1.5 * 2^23: sums have their integer part in the lowest bits
  const V shifted = at::vec::fmadd(x, V(1.44269504088896341f), shift), n = shifted - shift;
  // log(2) in two parts; the products with the first are exact.
  const V r = at::vec::fmadd(n, V(2.12194440e-4f), at::vec::fmadd(n, V(-0.693359375f), x));
  V series(1.0f / 5040);
  for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    series = at::vec::fmadd(series, r, V(term));
  Vector<int32_t> bits;
  shifted.store(&bits);
  bits = (bits + 127) << 23;
  return series * V::loadu(&bits);
}

// erf within 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
inline Lanes<float> erf_in_registers(const Lanes<float>& x) {
  using V = Lanes<float>;
  const V size = x.abs(), t = V(1) / at::vec::fmadd(size, V(0.3275911f), V(1));
  V series(1.061405429f);
  for (const float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
    series = at::vec::fmadd(series, t, V(term));
  const V rest = series * t * exp_in_registers(V(0) - x * x);
  // Vectorized::copysign is a call.
  return (V(1) - rest).abs() | (x & V(-0.0f));
}

} // namespace activation_detail

template <class C>
struct Elementary<at::vec::Vectorized<C>> {
  using V = at::vec::Vectorized<C>;
  static constexpr bool is_float = std::is_same_v<C, float>;

  static V exp(const V& x) {
    if constexpr (is_float)
      return activation_detail::exp_in_registers(x);
    return x.exp();
  }
  static V erf(const V& x) {
    if constexpr (is_float)
      return activation_detail::erf_in_registers(x);
    return x.erf();
  }
  static V tanh(const V& x) {
    return x.tanh();
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
