// Activations of float32 with the same bits everywhere: where torch's functions call the platform's
// mathematical library, these are made of additions, products and quotients of float64 alone, each
// of which IEEE 754 defines to the bit. Their errors are below one unit in the last place of
// float32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "conv/activation.h"
#include "core/host_device.h"
#include "core/numeric.h"

namespace torch_dnnl {

// A float64, or a vector of them, whose products are rounded before anything is added to them.
template <class D = double>
struct Portable {
  D x;

  Portable() = default;
  TORCH_DNNL_HD Portable(D x) : x(x) {}
  TORCH_DNNL_HD Portable(double number)
    requires(!std::is_same_v<D, double>)
      : x(D{} + number) {}
  friend TORCH_DNNL_HD Portable operator+(Portable a, Portable b) {
    return a.x + b.x;
  }
  friend TORCH_DNNL_HD Portable operator-(Portable a, Portable b) {
    return a.x - b.x;
  }
  friend TORCH_DNNL_HD Portable operator*(Portable a, Portable b) {
    return mul(a.x, b.x);
  }
  friend TORCH_DNNL_HD Portable operator/(Portable a, Portable b) {
    return a.x / b.x;
  }
};

namespace portable_detail {

template <class D, int n>
TORCH_DNNL_HD inline Portable<D> polynomial(Portable<D> x, const double (&coefficients)[n]) {
  Portable<D> sum = coefficients[n - 1];
  for (int i = n - 2; i >= 0; i--)
    sum = sum * x + coefficients[i];
  return sum;
}

// Integers of 64 bits, as many as there are numbers.
template <class D>
struct Bits {
  typedef uint64_t type __attribute__((vector_size(sizeof(D))));
};
template <>
struct Bits<double> {
  using type = uint64_t;
};

// 2^n for n in (-1022, 1023]: the last bits of `shifted` are n in two's complement.
template <class D>
TORCH_DNNL_HD inline D power_of_two(D shifted) {
  typename Bits<D>::type bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 1023) << 52;
  D power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

} // namespace portable_detail

template <class D>
struct Elementary<Portable<D>> {
  using P = Portable<D>;

  TORCH_DNNL_HD static P exp(P value) {
    // Beyond these bounds a float32 of the result is infinite or 0.
    const P x = at_least(at_most(value, 200.0), -200.0);
    // x = n log(2) + r. Numbers from 2^52 to 2^53 have no fraction: the sum is rounded to n.
    const P shifted = x * 1.4426950408889634 + 0x1.8p52;
    const P n = shifted - 0x1.8p52;
    const P r = x - n * 0x1.62e42fefa38p-1 - n * 0x1.ef35793c7673p-45;
    // Taylor's series; |r| <= log(2) / 2, and the next term is below 2^-45.
    constexpr double terms[] = {
        1,
        1,
        1.0 / 2,
        1.0 / 6,
        1.0 / 24,
        1.0 / 120,
        1.0 / 720,
        1.0 / 5040,
        1.0 / 40320,
        1.0 / 362880,
        1.0 / 3628800};
    return portable_detail::polynomial(r, terms) * P(portable_detail::power_of_two(shifted.x));
  }
  // erfc(|x|) = t exp(Q(t) - x^2) with t = 1 / (1 + |x| / 2): the form is that of Numerical Recipes
  // (Press et al., 6.2). Q interpolates at the 15 Chebyshev nodes of t from 0.06 to 1; its error is
  // below 1e-10.
  TORCH_DNNL_HD static P erfc(P x) {
    constexpr double q[] = {
        -1.2655122157965415,
        1.0000057647106309,
        0.37484522595786846,
        0.08571006933972064,
        -0.10937944859963389,
        0.014209200580401203,
        -0.8452707626268966,
        2.6220263882675767,
        -6.3318422422732885,
        11.68551627252411,
        -14.40961101609415,
        11.448489409265703,
        -5.6835341485125195,
        1.6167935828334172,
        -0.20244607962534633};
    const P size = x.x < 0 ? D(-x.x) : x.x;
    const P t = P(1.0) / (P(1.0) + size * 0.5);
    const P tail = t * exp(portable_detail::polynomial(t, q) - size * size);
    return x.x < 0 ? (P(2.0) - tail).x : tail.x;
  }
  TORCH_DNNL_HD static P tanh(P x) {
    const P square = x * x;
    const P near_0 = x * (P(1.0) - square * (P(1.0 / 3) - square * (2.0 / 15)));
    const P other = P(1.0) - P(2.0) / (exp(x + x) + 1.0);
    // The next term is below 2^-29 of the result.
    return square.x < 0x1p-12 ? near_0.x : other.x;
  }
  // By the series of 2 artanh(x / (2 + x)); |x / (2 + x)| <= 1/3 and the next term is below 2^-46.
  TORCH_DNNL_HD static P log1p(P x) {
    constexpr double terms[] = {
        2,
        2.0 / 3,
        2.0 / 5,
        2.0 / 7,
        2.0 / 9,
        2.0 / 11,
        2.0 / 13,
        2.0 / 15,
        2.0 / 17,
        2.0 / 19,
        2.0 / 21,
        2.0 / 23,
        2.0 / 25,
        2.0 / 27};
    const P s = x / (x + P(2.0));
    return s * portable_detail::polynomial(s * s, terms);
  }
  TORCH_DNNL_HD static P if_at_most(P x, P bound, P yes, P no) {
    return x.x <= bound.x ? yes.x : no.x;
  }
  TORCH_DNNL_HD static P at_least(P x, P bound) {
    return x.x < bound.x ? bound.x : x.x;
  }
  TORCH_DNNL_HD static P at_most(P x, P bound) {
    return x.x > bound.x ? bound.x : x.x;
  }
};

// activation(x) in float64, of those that are not made of float32 alone.
template <Activation a, class D>
TORCH_DNNL_HD inline D activate_in_float64(D x, const ActivationParameters& parameters) {
  if constexpr (a == Activation::gelu) {
    const Portable<D> v = x;
    const Portable<D> erfc =
        Elementary<Portable<D>>::erfc(v * -0.70710678118654752440); // 1/sqrt(2)
    // x 0 where erfc underflows.
    return x < -40 ? D(x * 0.0) : (v * 0.5 * erfc).x;
  } else {
    using P = Portable<D>;
    const auto alpha = static_cast<double>(static_cast<float>(parameters.alpha));
    return activate<a>(P(x), P(alpha), P(0.0)).x;
  }
}

constexpr bool is_of_float32(Activation a) {
  return a == Activation::none || a == Activation::relu || a == Activation::relu6 ||
      a == Activation::hardswish || a == Activation::hardsigmoid || a == Activation::leaky_relu ||
      a == Activation::clamp || a == Activation::prelu;
}

// activation(x), rounded to float32 once. `slope`: of prelu.
template <Activation a>
TORCH_DNNL_HD inline float
activate_portably(float x, const ActivationParameters& parameters, float slope) {
  if constexpr (a == Activation::prelu)
    return activate<a>(x, slope, 0.0f);
  else if constexpr (is_of_float32(a))
    return activate<a>(
        x, static_cast<float>(parameters.alpha), static_cast<float>(parameters.beta));
  else
    return static_cast<float>(activate_in_float64<a>(static_cast<double>(x), parameters));
}

} // namespace torch_dnnl
