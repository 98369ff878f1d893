// The activations that a convolution can end with, and their derivatives: one definition for
// numbers, on the CPU and on the GPU, and for vectors of numbers.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/host_device.h"

namespace torch_dnnl {

enum class Activation {
  none,
  relu,
  relu6,
  silu,
  gelu,
  gelu_tanh,
  sigmoid,
  tanh,
  hardswish,
  hardsigmoid,
  mish,
  softplus,
  leaky_relu, // alpha: the slope below 0
  elu,        // alpha: minus the limit at -infinity
  clamp,      // between alpha and beta
  prelu,      // alpha: the slope below 0, of each channel
  last = prelu
};

// The parameters of leaky_relu, elu and clamp.
struct ActivationParameters {
  double alpha = 0, beta = 0;
};

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
  // Of 0 <= x <= 1.
  TORCH_DNNL_HD static V log1p(V x) {
    return std::log1p(x);
  }
  TORCH_DNNL_HD static V sixth(V x) {
    return x / V(6);
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

namespace activation_detail {

template <class V>
TORCH_DNNL_HD inline V sigmoid(const V& x) {
  return V(1) / (V(1) + Elementary<V>::exp(V(0) - x));
}
// exp(x) - 1, without cancellation at x = 0.
template <class V>
TORCH_DNNL_HD inline V expm1(const V& x) {
  const V t = Elementary<V>::tanh(x * V(0.5));
  return (t + t) / (V(1) - t);
}
// tanh(log(1 + e^x)) = p / (p + 2), p = e^x (e^x + 2), for x up to 20. Beyond 20 the value is 1.
template <class V>
TORCH_DNNL_HD inline V tanh_of_softplus(const V& x) {
  const V power = Elementary<V>::exp(Elementary<V>::at_most(x, V(20)));
  const V p = power * (power + V(2));
  return p / (p + V(2));
}
// Twice the argument of tanh in gelu_tanh, and its derivative.
template <class V>
TORCH_DNNL_HD inline V gelu_argument(const V& x) {
  return x * (V(1) + x * x * V(0.044715)) * V(1.59576912160573071176); // 2 sqrt(2 / pi)
}
template <class V>
TORCH_DNNL_HD inline V gelu_argument_derivative(const V& x) {
  return (V(1) + x * x * V(3 * 0.044715)) * V(1.59576912160573071176);
}

} // namespace activation_detail

// `alpha`, `beta`: the parameters, of prelu the slopes of the channels.
template <Activation a, class V>
TORCH_DNNL_HD inline V activate(const V& x, const V& alpha, const V& beta) {
  using E = Elementary<V>;
  if constexpr (a == Activation::relu)
    return E::at_least(x, V(0));
  else if constexpr (a == Activation::relu6)
    return E::at_most(E::at_least(x, V(0)), V(6));
  else if constexpr (a == Activation::silu)
    return x / (V(1) + E::exp(V(0) - x));
  else if constexpr (a == Activation::gelu_tanh)
    return x / (V(1) + E::exp(V(0) - activation_detail::gelu_argument(x)));
  else if constexpr (a == Activation::gelu)
    return x * V(0.5) * (V(1) + E::erf(x * V(0.70710678118654752440))); // 1 / sqrt(2)
  else if constexpr (a == Activation::sigmoid)
    return activation_detail::sigmoid(x);
  else if constexpr (a == Activation::tanh)
    return E::tanh(x);
  else if constexpr (a == Activation::hardswish)
    return x * E::sixth(E::at_most(E::at_least(x + V(3), V(0)), V(6)));
  else if constexpr (a == Activation::hardsigmoid)
    return E::sixth(E::at_most(E::at_least(x + V(3), V(0)), V(6)));
  else if constexpr (a == Activation::mish)
    return E::if_at_most(x, V(20), x * activation_detail::tanh_of_softplus(x), x);
  else if constexpr (a == Activation::softplus)
    return E::if_at_most(
        x, V(20), E::at_least(x, V(0)) + E::log1p(E::exp(E::at_most(x, V(0) - x))), x);
  else if constexpr (a == Activation::leaky_relu || a == Activation::prelu)
    return E::if_at_most(x, V(0), alpha * x, x);
  else if constexpr (a == Activation::elu)
    return E::if_at_most(x, V(0), alpha * activation_detail::expm1(x), x);
  else if constexpr (a == Activation::clamp)
    return E::at_most(E::at_least(x, alpha), beta);
  else
    return x;
}

// grad a'(u), of the value that a' is a function of. As torch has it where a' jumps.
template <Activation a, class V>
TORCH_DNNL_HD inline V
times_derivative(const V& grad, const V& value, const V& alpha, const V& beta) {
  using E = Elementary<V>;
  if constexpr (a == Activation::relu) {
    return E::if_at_most(value, V(0), V(0), grad);
  } else if constexpr (a == Activation::relu6) {
    return E::if_at_most(value, V(0), V(0), E::if_at_most(V(6), value, V(0), grad));
  } else if constexpr (a == Activation::silu) {
    const V s = activation_detail::sigmoid(value);
    return grad * (s * (V(1) + value * (V(1) - s)));
  } else if constexpr (a == Activation::gelu_tanh) {
    const V x = E::at_most(E::at_least(value, V(-30)), V(30)); // beyond, the derivative is 0 or 1
    const V z = activation_detail::gelu_argument(x);
    const V power = E::exp(E::at_most(z, V(0) - z)), rest = V(1) + power;
    const V s =
        E::if_at_most(z, V(0), power, V(1)) / rest; // sigmoid(z); power / rest^2 = s (1 - s)
    const V slope = activation_detail::gelu_argument_derivative(x);
    return grad * (s + x * slope * (power / (rest * rest)));
  } else if constexpr (a == Activation::gelu) {
    const V below = V(0.5) * (V(1) + E::erf(value * V(0.70710678118654752440)));   // 1 / sqrt(2)
    const V density = E::exp(value * value * V(-0.5)) * V(0.39894228040143267794); // 1 / sqrt(2 pi)
    return grad * (below + value * density);
  } else if constexpr (a == Activation::sigmoid) {
    return grad * (value * (V(1) - value));
  } else if constexpr (a == Activation::tanh) {
    return grad * (V(1) - value * value);
  } else if constexpr (a == Activation::hardswish) {
    const V between = grad * (value * V(1.0 / 3) + V(0.5));
    return E::if_at_most(value, V(-3), V(0), E::if_at_most(V(3), value, grad, between));
  } else if constexpr (a == Activation::hardsigmoid) {
    return E::if_at_most(value, V(-3), V(0), E::if_at_most(V(3), value, V(0), grad / V(6)));
  } else if constexpr (a == Activation::mish) {
    // (1 - t^2) sigmoid(x) = 4 e^x (e^x + 1) / (p + 2)^2, with t and p of tanh_of_softplus
    const V power = E::exp(E::at_most(value, V(20)));
    const V p = power * (power + V(2)), more = p + V(2);
    const V slope = V(4) * power * (power + V(1)) / (more * more);
    return E::if_at_most(V(20), value, grad, grad * (p / more + value * slope));
  } else if constexpr (a == Activation::softplus) {
    return E::if_at_most(V(20), value, grad, grad * activation_detail::sigmoid(value));
  } else if constexpr (a == Activation::leaky_relu) {
    return E::if_at_most(value, V(0), alpha * grad, grad);
  } else if constexpr (a == Activation::elu) {
    return E::if_at_most(value, V(0), grad * alpha * E::exp(value), grad);
  } else if constexpr (a == Activation::clamp) {
    return E::if_at_most(alpha, value, E::if_at_most(value, beta, grad, V(0)), V(0));
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
