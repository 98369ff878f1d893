// The definition of quantized convolution: a function object, one call per element of the output.
#pragma once

#include "conv/quantized/problem.h"
#include "conv/reference.h"
#include "core/dispatch.h"

namespace torch_dnnl {

using QuantizedTypes = TypeList<uint8_t, int8_t>;
using QuantizedResultTypes = TypeList<uint8_t, int8_t, int32_t, float, c10::BFloat16, c10::Half>;

// sum over i, k of (src[n, i, x S + k D - pad] - src_zero_point) weights[o, i, k], exactly
template <class T>
TORCH_DNNL_HD int64_t
quantized_sum(const ConvProblem& p, const ImageIndex& o, int64_t oc, int64_t zero_point) {
  const int64_t *xs = p.src_stride, *ws = p.weights_stride;
  const T* src = static_cast<const T*>(p.src) + o.n * xs[0] + o.group * p.ic * xs[1];
  const int8_t* weights = static_cast<const int8_t*>(p.weights) + oc * ws[0];
  int64_t first[3];
  Range taps[3];
  for (int a = 0; a < 3; a++) {
    first[a] = o.x[a] * p.stride[a] - p.pad[a];
    taps[a] = within(first[a], p.dilation[a], p.src_size[a], p.kernel[a]);
  }
  int64_t sum = 0;
  for (int64_t d = taps[0].begin; d < taps[0].end; d++) {
    for (int64_t h = taps[1].begin; h < taps[1].end; h++) {
      const T* x = src + (first[0] + d * p.dilation[0]) * xs[2] +
          (first[1] + h * p.dilation[1]) * xs[3] + first[2] * xs[4];
      const int8_t* w = weights + d * ws[2] + h * ws[3];
      for (int64_t k = taps[2].begin; k < taps[2].end; k++) {
        const T* xk = x + k * p.dilation[2] * xs[4];
        const int8_t* wk = w + k * ws[4];
        for (int64_t i = 0; i < p.ic; i++)
          sum += (int64_t(xk[i * xs[1]]) - zero_point) * wk[i * ws[1]];
      }
    }
  }
  return sum;
}

template <class T, class Dst>
struct QuantizedForward {
  QuantizedProblem problem;

  TORCH_DNNL_HD void operator()(int64_t offset) const {
    const ConvProblem& p = problem.conv;
    const ImageIndex o = image_index(offset, p.n, p.groups, p.oc, p.dst_size, p.dst_stride);
    const int64_t oc = o.group * p.oc + o.channel;
    const auto zero_point = static_cast<int64_t>(problem.src_zero_point.get());
    const int64_t sum = quantized_sum<T>(p, o, oc, zero_point);
    Dst* const out = static_cast<Dst*>(p.out) + offset;
    if (problem.returns_sums) {
      *out = convert<Dst>(sum);
      return;
    }
    const QuantizedSteps steps(problem);
    float v =
        steps.value(static_cast<float>(sum), steps.scale(problem, oc), steps.bias(problem, oc));
    if (p.residual != nullptr)
      v = steps.with_residual(
          v, load<float>(p.residual, problem.residual_dtype, o.offset(oc, p.residual_stride)));
    const float slope = p.slopes == nullptr ? 0 : static_cast<const float*>(p.slopes)[oc];
    v = with_activation(p.activation, [&](auto tag) {
      return activate_portably<decltype(tag)::value>(v, p.parameters, slope);
    });
    *out = steps.template rounded<Dst>(v);
  }
};

// f(functor) with the function object that computes the problem.
template <class F>
void with_reference(const QuantizedProblem& p, F&& f) {
  dispatch(QuantizedTypes{}, p.conv.dtype, [&]<class T>(std::type_identity<T>) {
    dispatch(QuantizedResultTypes{}, p.dst_dtype, [&]<class Dst>(std::type_identity<Dst>) {
      f(QuantizedForward<T, Dst>{p});
    });
  });
}

} // namespace torch_dnnl
