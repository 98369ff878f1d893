// Convolution, its transpose and all of their derivatives. docs/convolution.md has the formulas.
#pragma once

#include <torch_dnnl/call.h>

#include <tuple>

namespace torch_dnnl {

// The attributes that all operators of convolution have. The defaults are those of oneDNN Graph's
// Convolution. Lists have one entry per spatial dimension.
struct ConvolutionAttributes {
  Sizes strides = {};    // empty: 1
  Sizes pads_begin = {}; // empty: 0
  Sizes pads_end = {};   // empty: as pads_begin
  Sizes dilations = {};  // empty: 1, which is dense
  // none, same_upper, same_lower or valid; all but none take the place of the pads.
  std::string auto_pad = "none";
  int64_t groups = 1;
  // NXC: [N, spatial..., C]; NCX: [N, C, spatial...].
  std::string data_format = "NXC";
  // XIO: [kernel..., IC / groups, OC]; OIX: [OC, IC / groups, kernel...].
  std::string weights_format = "XIO";
  // auto, direct, winograd, or the name of a kernel of the device.
  std::string algorithm = "auto";

  void pass(detail::Call& call) const {
    call("strides", strides)("pads_begin", pads_begin)("pads_end", pads_end);
    call("dilations", dilations)("auto_pad", auto_pad)("groups", groups);
    call("data_format", data_format)("weights_format", weights_format)("algorithm", algorithm);
  }
};

// src by weights, with 1 to 3 spatial dimensions. `bias`: [OC].
//
//   convolution(image, weights, bias, {.strides = {2, 2}, .auto_pad = "same_upper"})
inline at::Tensor convolution(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias = {},
    const ConvolutionAttributes& attributes = {}) {
  static const auto op = detail::find("convolution");
  return detail::Call(op)("src", src)("weights", weights)("bias", bias).with(attributes).tensor();
}

// What follows the sums.
struct ConvolutionEpilogue {
  // Is added before the activation: a tensor of the result's shape, or with 1 in the place of the
  // batch or of spatial sizes.
  std::optional<at::Tensor> residual = {};
  // relu, relu6, silu, gelu, gelu_tanh, sigmoid, tanh, hardswish, hardsigmoid, mish, softplus,
  // leaky_relu, elu, clamp or prelu.
  std::optional<std::string> activation = {};
  // leaky_relu and elu have alpha; clamp has the bounds alpha and beta.
  std::optional<double> alpha = {}, beta = {};
  // The slopes of prelu: one element or [OC].
  std::optional<at::Tensor> slope = {};
  // Whether the second result is what the activation is applied to.
  bool keep_preactivation = false;

  void pass(detail::Call& call) const {
    call("residual", residual)("activation", activation);
    call("alpha", alpha)("beta", beta)("slope", slope);
    call("keep_preactivation", keep_preactivation);
  }
};

// activation(convolution + residual); and what the activation is applied to if that is kept, else a
// tensor of no elements.
inline std::pair<at::Tensor, at::Tensor> convolution_fused(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias = {},
    const ConvolutionAttributes& attributes = {},
    const ConvolutionEpilogue& epilogue = {}) {
  static const auto op = detail::find("convolution_fused");
  detail::Call call(op);
  call("src", src)("weights", weights)("bias", bias).with(attributes).with(epilogue);
  return call.tensors();
}

// As convolution_fused, with the result of pack_weights for these weights and attributes. The
// kernel reads `packed` where it is for the call, else it reads `weights`.
inline std::pair<at::Tensor, at::Tensor> convolution_packed(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias = {},
    const ConvolutionAttributes& attributes = {},
    const ConvolutionEpilogue& epilogue = {},
    const std::optional<at::Tensor>& packed = {}) {
  static const auto op = detail::find("convolution_packed");
  detail::Call call(op);
  call("src", src)("weights", weights)("bias", bias).with(attributes).with(epilogue);
  return call("packed", packed).tensors();
}

// Weights in the layout of the kernel that computes a convolution of images of `src_sizes`: bytes
// for this version of the library and this CPU. No bytes where that kernel reads plain weights.
inline at::Tensor pack_weights(
    const at::Tensor& weights,
    const Sizes& src_sizes,
    const ConvolutionAttributes& attributes = {}) {
  static const auto op = detail::find("pack_weights");
  return detail::Call(op)("weights", weights)("src_sizes", src_sizes).with(attributes).tensor();
}

// The gradient of data of a convolution as an operator of its own, which ends as convolution_fused
// does. The attributes and the format of the weights are those of that convolution: weights are
// [kernel..., channels of the result / groups, channels of src] in XIO. `dst_size`: the spatial
// sizes of the result, without which the call throws: several sizes have the same convolution.
inline std::pair<at::Tensor, at::Tensor> convolution_transpose(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias = {},
    const ConvolutionAttributes& attributes = {},
    const ConvolutionEpilogue& epilogue = {},
    const Sizes& dst_size = {}) {
  static const auto op = detail::find("convolution_transpose");
  detail::Call call(op);
  call("src", src)("weights", weights)("bias", bias).with(attributes).with(epilogue);
  return call("dst_size", dst_size).tensors();
}

// The gradient of convolution's src, given that of its result. `src_size`: the spatial sizes of
// src.
inline at::Tensor convolution_backward_data(
    const at::Tensor& grad,
    const at::Tensor& weights,
    const Sizes& src_size,
    const ConvolutionAttributes& attributes = {}) {
  static const auto op = detail::find("convolution_backward_data");
  detail::Call call(op);
  return call("grad", grad)("weights", weights)("src_size", src_size).with(attributes).tensor();
}

// The gradient of convolution's weights. `kernel_size`: the spatial sizes of the weights.
inline at::Tensor convolution_backward_weights(
    const at::Tensor& grad,
    const at::Tensor& src,
    const Sizes& kernel_size,
    const ConvolutionAttributes& attributes = {}) {
  static const auto op = detail::find("convolution_backward_weights");
  detail::Call call(op);
  return call("grad", grad)("src", src)("kernel_size", kernel_size).with(attributes).tensor();
}

// The gradients of convolution_fused's first result: of src if there are `weights`, of the weights
// if there is `src`, of the bias and of the residual if they are asked for; else tensors of no
// elements. `value`: that result or, of most activations, the second one. `src_size`,
// `kernel_size`: spatial sizes of the gradients.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> convolution_fused_backward(
    const at::Tensor& grad,
    const at::Tensor& value,
    const std::string& activation,
    const std::optional<at::Tensor>& src,
    const std::optional<at::Tensor>& weights,
    const Sizes& src_size,
    const Sizes& kernel_size,
    const ConvolutionAttributes& attributes = {},
    bool bias = false,
    bool residual = false,
    std::optional<double> alpha = {},
    std::optional<double> beta = {}) {
  static const auto op = detail::find("convolution_fused_backward");
  detail::Call call(op);
  call("grad", grad)("value", value)("activation", activation)("src", src)("weights", weights);
  call("src_size", src_size)("kernel_size", kernel_size).with(attributes);
  call("bias", bias)("residual", residual)("alpha", alpha)("beta", beta);
  const auto results = call.run();
  return {
      results[0].toTensor(), results[1].toTensor(), results[2].toTensor(), results[3].toTensor()};
}

} // namespace torch_dnnl
