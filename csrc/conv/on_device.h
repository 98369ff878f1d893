// The operators of convolution on a device, made of what the device can compute.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "conv/conv.h"
#include "conv/fused_backward.h"

namespace torch_dnnl {

// What a device registers: check, allocate, and Device::compute a problem that is not empty, by the
// algorithm that is asked for.
template <class Device>
struct ConvOnDevice {
  static at::Tensor forward(
      const at::Tensor& src,
      const at::Tensor& weights,
      const std::optional<at::Tensor>& bias,
      const ConvOptions& options) {
    const at::Tensor dst = convolution_output(src, weights, bias, options);
    return fill(dst, ConvPass::forward, src, weights, dst, bias, options);
  }

  static std::tuple<at::Tensor, at::Tensor> fused(
      const at::Tensor& src,
      const at::Tensor& weights,
      const std::optional<at::Tensor>& bias,
      const ConvOptions& options,
      const ConvEpilogue& epilogue) {
    auto outputs = convolution_fused_outputs(src, weights, bias, options, epilogue);
    const auto& [dst, preactivation] = outputs;
    const c10::DeviceGuard guard(dst.device());
    if (dst.numel() > 0) {
      auto p = conv_problem(ConvPass::forward, src, weights, dst, bias, options);
      const conv_detail::Call call("convolution", src, "src", options);
      p.activation = call.activation_of(epilogue.activation);
      if (epilogue.residual.has_value()) {
        int64_t sizes[3];
        conv_detail::copy_layout(*epilogue.residual, call.image_at, sizes, p.residual_stride);
        p.residual = epilogue.residual->const_data_ptr();
      }
      if (epilogue.keep_preactivation)
        p.preactivation = preactivation.mutable_data_ptr();
      Device::compute(p, options.algorithm);
    }
    return outputs;
  }

  static at::Tensor backward_data(
      const at::Tensor& grad,
      const at::Tensor& weights,
      c10::SymIntArrayRef src_size,
      const ConvOptions& options) {
    const at::Tensor src = convolution_backward_data_output(grad, weights, src_size, options);
    return fill(src, ConvPass::backward_data, src, weights, grad, std::nullopt, options);
  }

  static at::Tensor backward_weights(
      const at::Tensor& grad,
      const at::Tensor& src,
      c10::SymIntArrayRef kernel_size,
      const ConvOptions& options) {
    const at::Tensor weights = convolution_backward_weights_output(grad, src, kernel_size, options);
    return fill(weights, ConvPass::backward_weights, src, weights, grad, std::nullopt, options);
  }

  static void register_in(torch::Library& m) {
    m.impl("convolution", convolution_kernel<forward>);
    m.impl("convolution_fused", convolution_fused_kernel<fused>);
    m.impl("convolution_backward_data", convolution_backward_kernel<backward_data>);
    m.impl("convolution_backward_weights", convolution_backward_kernel<backward_weights>);
    m.impl(
        "convolution_fused_backward",
        convolution_fused_backward_kernel<FusedBackward<Device>::run>);
  }

 private:
  static at::Tensor fill(
      const at::Tensor& out,
      ConvPass pass,
      const at::Tensor& src,
      const at::Tensor& weights,
      const at::Tensor& dst,
      const std::optional<at::Tensor>& bias,
      const ConvOptions& options) {
    const c10::DeviceGuard guard(out.device());
    if (out.numel() > 0)
      Device::compute(conv_problem(pass, src, weights, dst, bias, options), options.algorithm);
    return out;
  }
};

} // namespace torch_dnnl
