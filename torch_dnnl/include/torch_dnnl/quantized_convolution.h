// Convolution of bytes with exact sums, for inference. docs/quantization.md has the formulas.
#pragma once

#include <torch_dnnl/convolution.h>

namespace torch_dnnl {

// A scale or a zero point is a tensor of one element, weights_scale also [OC]; without a tensor, it
// is the number.
struct QuantizedConvolutionOptions {
  // As of ConvolutionEpilogue; the slope is float32.
  std::optional<at::Tensor> residual = {};
  std::optional<std::string> activation = {};
  std::optional<double> alpha = {}, beta = {};
  std::optional<at::Tensor> slope = {};
  // The type of the result: int8 if there is none, uint8, int32 or a floating type.
  std::optional<at::ScalarType> dtype = {};
  std::optional<at::Tensor> src_scale = {};
  std::optional<at::Tensor> src_zero_point = {};
  std::optional<at::Tensor> weights_scale = {};
  std::optional<at::Tensor> dst_scale = {};
  std::optional<at::Tensor> dst_zero_point = {};
  std::optional<at::Tensor> residual_scale = {};
  std::optional<at::Tensor> residual_zero_point = {};
  double src_scale_value = 1.;
  double src_zero_point_value = 0.;
  double weights_scale_value = 1.;
  double dst_scale_value = 1.;
  double dst_zero_point_value = 0.;
  double residual_scale_value = 1.;
  double residual_zero_point_value = 0.;

  void pass(detail::Call& call) const {
    call("residual", residual)("activation", activation);
    call("alpha", alpha)("beta", beta)("slope", slope)("dtype", dtype);
    call("src_scale", src_scale)("src_zero_point", src_zero_point);
    call("weights_scale", weights_scale);
    call("dst_scale", dst_scale)("dst_zero_point", dst_zero_point);
    call("residual_scale", residual_scale)("residual_zero_point", residual_zero_point);
    call("src_scale_value", src_scale_value)("src_zero_point_value", src_zero_point_value);
    call("weights_scale_value", weights_scale_value);
    call("dst_scale_value", dst_scale_value)("dst_zero_point_value", dst_zero_point_value);
    call("residual_scale_value", residual_scale_value);
    call("residual_zero_point_value", residual_zero_point_value);
  }
};

// int8 or uint8 src by int8 weights. `bias`: float32 [OC].
//
//   quantized_convolution(bytes, weights, bias, {.pads_begin = {1, 1}}, {.dst_scale_value = 0.1})
inline at::Tensor quantized_convolution(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias = {},
    const ConvolutionAttributes& attributes = {},
    const QuantizedConvolutionOptions& options = {}) {
  static const auto op = detail::find("quantized_convolution");
  detail::Call call(op);
  call("src", src)("weights", weights)("bias", bias).with(attributes).with(options);
  return call.tensor();
}

// As convolution_packed, of int8 weights.
inline at::Tensor quantized_convolution_packed(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias = {},
    const ConvolutionAttributes& attributes = {},
    const QuantizedConvolutionOptions& options = {},
    const std::optional<at::Tensor>& packed = {}) {
  static const auto op = detail::find("quantized_convolution_packed");
  detail::Call call(op);
  call("src", src)("weights", weights)("bias", bias).with(attributes).with(options);
  return call("packed", packed).tensor();
}

// As pack_weights, of int8 weights.
inline at::Tensor pack_quantized_weights(
    const at::Tensor& weights,
    const Sizes& src_sizes,
    const ConvolutionAttributes& attributes = {}) {
  static const auto op = detail::find("pack_quantized_weights");
  return detail::Call(op)("weights", weights)("src_sizes", src_sizes).with(attributes).tensor();
}

} // namespace torch_dnnl
