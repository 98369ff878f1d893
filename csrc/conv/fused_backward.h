// The gradients of a convolution that ends in an activation: with the gradient g of its result,
// h = g a'(u) is the gradient of the residual, its sums are that of the bias, and the gradients of
// src and weights are made of h. Here is the checked call, and how it is computed from h as a
// whole.
#pragma once

#include <ATen/ops/zeros.h>

#include <optional>

#include "conv/conv.h"

namespace torch_dnnl {

// A checked call of convolution_fused_backward and its empty outputs.
struct FusedBackward {
  ConvArguments args;
  at::Tensor grad, value;                 // value: the result or, where a' needs it, u
  std::optional<at::Tensor> src, weights; // where the gradient of the other one is wanted
  c10::SymIntArrayRef src_size, kernel_size;
  bool bias, residual; // whether their gradients are wanted
  at::Tensor src_grad, weights_grad, bias_grad, residual_grad;
};

// Each step fills the device, with all of h in memory.
template <class Device>
void fused_backward_at_once(const FusedBackward& call) {
  const ConvArguments& args = call.args;
  const at::Tensor h =
      call.residual ? call.residual_grad : conv_detail::empty_image(args, args.dst, call.value);
  at::Tensor sums;
  if (call.bias)
    sums = at::zeros(call.bias_grad.sizes(), call.bias_grad.options().dtype(at::kDouble));
  if (h.numel() > 0) {
    const auto p = activation_gradient_problem(args, call.grad, call.value, h);
    Device::compute(p, h, args.image_at.channel, sums);
  }
  const auto compute = [&](ConvPass pass, const at::Tensor& src, const at::Tensor& weights) {
    const at::Tensor& out = pass == ConvPass::backward_data ? src : weights;
    if (out.numel() > 0)
      Device::compute(conv_problem(args, pass, src, weights, h), args.algorithm);
  };
  if (call.weights.has_value())
    compute(ConvPass::backward_data, call.src_grad, *call.weights);
  if (call.src.has_value())
    compute(ConvPass::backward_weights, *call.src, call.weights_grad);
  if (call.bias)
    call.bias_grad.copy_(sums);
}

} // namespace torch_dnnl
