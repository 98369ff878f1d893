// The activations that a convolution can end with, and their derivatives: one definition for
// numbers, on the CPU and on the GPU, and for vectors of numbers.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/host_device.h"

namespace torch_dnnl {

enum class Activation { none, relu, relu6, silu, gelu, sigmoid, tanh, hardswish, last = hardswish };

// Whether the derivative is a function of the result; else it is one of what the activation is
// applied to.
constexpr bool has_derivative_in_result(Activation a) {
  return a == Activation::relu || a == Activation::relu6 || a == Activation::sigmoid ||
      a == Activation::tanh;
}

// What activations are made of, for a number; kernels specialise it for their vectors. NaN stays
// NaN.
template <class V>
struct Elementary {
  TORCH_DNNL_HD static V exp(V x) {
    return std::exp(x);
  }
  TORCH_DNNL_HD static V erf(V x) {
    return std::erf(x);
  }
  TORCH_DNNL_HD static V tanh(V x) {
    return std::tanh(x);
  }
  TORCH_DNNL_HD static V at_least(V x, V bound) {
    return x < bound ? bound : x;
  }
  TORCH_DNNL_HD static V at_most(V x, V bound) {
    return x > bound ? bound : x;
  }
  TORCH_DNNL_HD static V if_at_most(V x, V bound, V yes, V no) {
    return x <= bound ? yes : no;
  }
};

template <Activation a, class V>
TORCH_DNNL_HD inline V activate(const V& x) {
  using E = Elementary<V>;
  if constexpr (a == Activation::relu)
    return E::at_least(x, V(0));
  else if constexpr (a == Activation::relu6)
    return E::at_most(E::at_least(x, V(0)), V(6));
  else if constexpr (a == Activation::silu)
    return x / (V(1) + E::exp(V(0) - x));
  else if constexpr (a == Activation::gelu)
    return x * V(0.5) * (V(1) + E::erf(x * V(0.70710678118654752440))); // 1 / sqrt(2)
  else if constexpr (a == Activation::sigmoid)
    return V(1) / (V(1) + E::exp(V(0) - x));
  else if constexpr (a == Activation::tanh)
    return E::tanh(x);
  else if constexpr (a == Activation::hardswish)
    return x * (E::at_most(E::at_least(x + V(3), V(0)), V(6)) / V(6));
  else
    return x;
}

// grad a'(u), of the value that a' is a function of. As torch has it where a' jumps.
template <Activation a, class V>
TORCH_DNNL_HD inline V times_derivative(const V& grad, const V& value) {
  using E = Elementary<V>;
  if constexpr (a == Activation::relu) {
    return E::if_at_most(value, V(0), V(0), grad);
  } else if constexpr (a == Activation::relu6) {
    return E::if_at_most(value, V(0), V(0), E::if_at_most(V(6), value, V(0), grad));
  } else if constexpr (a == Activation::silu) {
    const V s = V(1) / (V(1) + E::exp(V(0) - value));
    return grad * (s * (V(1) + value * (V(1) - s)));
  } else if constexpr (a == Activation::gelu) {
    const V below = V(0.5) * (V(1) + E::erf(value * V(0.70710678118654752440)));   // 1 / sqrt(2)
    const V density = E::exp(value * value * V(-0.5)) * V(0.39894228040143267794); // 1 / sqrt(2 pi)
    return grad * (below + value * density);
  } else if constexpr (a == Activation::sigmoid) {
    return grad * (value * (V(1) - value));
  } else if constexpr (a == Activation::tanh) {
    return grad * (V(1) - value * value);
  } else if constexpr (a == Activation::hardswish) {
    const V between = grad * (value / V(3) + V(0.5));
    return E::if_at_most(value, V(-3), V(0), E::if_at_most(V(3), value, grad, between));
  } else {
    return grad;
  }
}

// f(tag) where tag.value is the activation, as a constant.
template <Activation candidate = Activation::none, class F>
TORCH_DNNL_HD inline auto with_activation(Activation a, F&& f) {
  if constexpr (candidate != Activation::last)
    if (a != candidate)
      return with_activation<static_cast<Activation>(static_cast<int>(candidate) + 1)>(a, f);
  return f(std::integral_constant<Activation, candidate>{});
}

} // namespace torch_dnnl
