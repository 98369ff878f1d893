// Activations of float32 with the same bits everywhere: where torch's functions call the platform's
// mathematical library, these are made of additions, products and quotients of float64 alone, each
// of which IEEE 754 defines to the bit. Their errors are below one unit in the last place of
// float32.
#pragma once

#include <cstdint>
#include <cstring>

#include "conv/activation.h"
#include "core/host_device.h"
#include "core/numeric.h"

namespace torch_dnnl {

// A float64 whose products are rounded before anything is added to them.
struct Portable {
  double x;

  Portable() = default;
  TORCH_DNNL_HD Portable(double x) : x(x) {}
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

template <int n>
TORCH_DNNL_HD inline Portable polynomial(Portable x, const double (&coefficients)[n]) {
  Portable sum = coefficients[n - 1];
  for (int i = n - 2; i >= 0; i--)
    sum = sum * x + coefficients[i];
  return sum;
}

// 2^n for n in (-1022, 1023]: the last bits of `shifted` are n in two's complement.
TORCH_DNNL_HD inline double power_of_two(double shifted) {
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

} // namespace portable_detail

template <>
struct Elementary<Portable> {
  TORCH_DNNL_HD static Portable exp(Portable value) {
    // Beyond these bounds a float32 of the result is infinite or 0.
    const Portable x = at_least(at_most(value, 200), -200);
    // x = n log(2) + r. Numbers from 2^52 to 2^53 have no fraction: the sum is rounded to n.
    const Portable shifted = x * 1.4426950408889634 + 0x1.8p52;
    const Portable n = shifted - 0x1.8p52;
    const Portable r = x - n * 0x1.62e42fefa38p-1 - n * 0x1.ef35793c7673p-45;
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
    return portable_detail::polynomial(r, terms) * portable_detail::power_of_two(shifted.x);
  }
  TORCH_DNNL_HD static Portable erfc(Portable x);
  TORCH_DNNL_HD static Portable tanh(Portable x) {
    const Portable square = x * x;
    if (square.x < 0x1p-12) // the next term is below 2^-29 of the result
      return x * (Portable(1) - square * (Portable(1.0 / 3) - square * (2.0 / 15)));
    return Portable(1) - Portable(2) / (exp(x + x) + 1);
  }
  TORCH_DNNL_HD static Portable at_least(Portable x, Portable bound) {
    return x.x < bound.x ? bound : x;
  }
  TORCH_DNNL_HD static Portable at_most(Portable x, Portable bound) {
    return x.x > bound.x ? bound : x;
  }
};

// erfc(|x|) = t exp(Q(t) - x^2) with t = 1 / (1 + |x| / 2): the form is that of Numerical Recipes
// (Press et al., 6.2). Q interpolates at the 15 Chebyshev nodes of t from 0.06 to 1; its error is
// below 1e-10.
TORCH_DNNL_HD inline Portable Elementary<Portable>::erfc(Portable x) {
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
  const Portable size = x.x < 0 ? Portable(-x.x) : x;
  const Portable t = Portable(1) / (Portable(1) + size * 0.5);
  const Portable tail = t * exp(portable_detail::polynomial(t, q) - size * size);
  return x.x < 0 ? Portable(2) - tail : tail;
}

// activation(x), rounded to float32 once.
template <Activation a>
TORCH_DNNL_HD inline float activate_portably(float x) {
  if constexpr (a == Activation::none || a == Activation::relu || a == Activation::hardswish) {
    return activate<a>(x);
  } else if constexpr (a == Activation::gelu) {
    const Portable v = x;
    // x 0 where erfc underflows; an infinity stays one.
    if (v.x < -40)
      return v.x * 0.0;
    return static_cast<float>(
        (v * 0.5 * Elementary<Portable>::erfc(v * -0.70710678118654752440)).x); // 1 / sqrt(2)
  } else {
    return static_cast<float>(activate<a>(Portable(x)).x);
  }
}

} // namespace torch_dnnl
