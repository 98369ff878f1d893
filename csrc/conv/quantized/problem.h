// What a kernel knows of a quantized convolution, and the steps from an exact sum to an output:
//
//   v   = float(sum) (src_scale weights_scale[o]) + bias[o]
//   v   = activation(v + residual_scale (residual - residual_zero_point))
//   dst = v, or saturate(round(v / dst_scale + dst_zero_point)) in an integer type
//
// Each step is rounded by itself, in float32, so that every library and device has the same bits.
#pragma once

#include <limits>

#include "conv/problem.h"
#include "conv/quantized/activation.h"
#include "core/math.h"
#include "core/numeric.h"

namespace torch_dnnl {

// A scale or zero point: a number or, on a device whose memory is not read here, a tensor of one
// element.
struct QuantizedScalar {
  float number;
  const void* data = nullptr;
  c10::ScalarType dtype = c10::ScalarType::Float;

  TORCH_DNNL_HD float get() const {
    return data == nullptr ? number : load<float>(data, dtype, 0);
  }
};

struct QuantizedProblem {
  // Forward. dtype is that of src; weights are int8, the bias is float32.
  ConvProblem conv;
  c10::ScalarType dst_dtype, residual_dtype;
  QuantizedScalar src_scale, src_zero_point, dst_scale, dst_zero_point;
  QuantizedScalar residual_scale, residual_zero_point;
  // Of the weights: a number, or float32 for each output channel.
  float weights_scale;
  const float* weights_scales = nullptr;
  int64_t weights_scale_stride = 0;
  bool returns_sums; // int32, without any of the steps
};

// Whether int32 holds the sums, with the zero point taken from the inputs or not.
inline bool has_short_sums(const QuantizedProblem& p) {
  constexpr int64_t most = 255 * 128; // of a product
  return p.conv.ic * product(p.conv.kernel) <= std::numeric_limits<int32_t>::max() / most;
}

// The steps with the numbers that they take.
struct QuantizedSteps {
  float src_scale, dst_scale, dst_zero_point, residual_scale, residual_zero_point;

  TORCH_DNNL_HD explicit QuantizedSteps(const QuantizedProblem& p)
      : src_scale(p.src_scale.get()),
        dst_scale(p.dst_scale.get()),
        dst_zero_point(p.dst_zero_point.get()),
        residual_scale(p.residual_scale.get()),
        residual_zero_point(p.residual_zero_point.get()) {}

  // By which the sums of an output channel, among those of all groups, are multiplied.
  TORCH_DNNL_HD float scale(const QuantizedProblem& p, int64_t channel) const {
    return mul(
        src_scale,
        p.weights_scales == nullptr ? p.weights_scale
                                    : p.weights_scales[channel * p.weights_scale_stride]);
  }
  // -0 changes nothing that it is added to.
  TORCH_DNNL_HD static float bias(const QuantizedProblem& p, int64_t channel) {
    const auto* bias = static_cast<const float*>(p.conv.bias);
    return bias == nullptr ? -0.0f : bias[channel * p.conv.bias_stride];
  }
  TORCH_DNNL_HD static float value(float sum, float scale, float bias) {
    return mul(sum, scale) + bias;
  }
  TORCH_DNNL_HD float with_residual(float v, float residual) const {
    return v + mul(residual_scale, residual - residual_zero_point);
  }
  template <class Dst>
  TORCH_DNNL_HD Dst rounded(float v) const {
    if constexpr (std::is_integral_v<Dst>)
      return convert<Dst>(v / dst_scale + dst_zero_point);
    else
      return convert<Dst>(v);
  }
};

} // namespace torch_dnnl
