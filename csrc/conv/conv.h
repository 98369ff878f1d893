// The calls of convolution: what the operators' arguments mean, whether they are
// valid, and what the result looks like. Meta, CPU, CUDA and backward calls all
// come through here.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "conv/arguments.h"
#include "conv/problem.h"
#include "core/torch/empty.h"

namespace torch_dnnl {

// What convolution_fused has beside the arguments of convolution.
struct ConvEpilogue {
  const std::optional<at::Tensor>& residual;
  std::optional<std::string_view> activation;
  bool keep_preactivation;
};

namespace conv_detail {

inline at::Tensor empty_image(
    const Call& call,
    const at::Tensor& like,
    const c10::SymInt& channels,
    c10::SymIntArrayRef spatial,
    std::optional<at::MemoryFormat> format = std::nullopt) {
  if (call.options.data_format == "NXC")
    format = at::MemoryFormat::Contiguous;
  return empty(
      make_sizes(call.image_at, like.sym_size(0), channels, spatial),
      like.options().memory_format(format.value_or(like.suggest_memory_format())));
}

// Checks a call of convolution and returns the sizes of its output.
inline Sizes forward_sizes(
    const Call& call,
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias) {
  call.check_image("src", src);
  call.check_weights(weights);
  call.check_alike("weights", weights, "src", src);
  const c10::SymInt ic = call.channels(src) / call.options.groups, oc = call.oc(weights);
  TORCH_CHECK_VALUE(
      holds(call.ic_per_group(weights).sym_eq(ic)),
      call.op,
      ": expected weights to have ",
      ic,
      " input channels (the ",
      call.channels(src),
      " of src in ",
      call.options.groups,
      " groups), got ",
      call.ic_per_group(weights),
      " in sizes ",
      weights.sym_sizes());
  if (bias.has_value()) {
    check_strided(call.op, "bias", *bias);
    call.check_alike("bias", *bias, "src", src);
    TORCH_CHECK_VALUE(
        bias->dim() == 1 && holds(bias->sym_size(0).sym_eq(oc)),
        call.op,
        ": expected bias to be 1-D with ",
        oc,
        " elements (the output channels of weights), got ",
        bias->sym_sizes());
  }
  const auto sizes = make_sizes(
      call.image_at,
      src.sym_size(0),
      oc,
      call.dst_size(call.spatial_of(src), call.kernel_of(weights)));
  check_result(call.op, "src, pads and weights", sizes);
  return sizes;
}

} // namespace conv_detail

// Checks a call of convolution and returns its empty output.
inline at::Tensor convolution_output(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const ConvOptions& options) {
  const conv_detail::Call call("convolution", src, "src", options);
  const auto sizes = conv_detail::forward_sizes(call, src, weights, bias);
  const auto spatial = c10::SymIntArrayRef(sizes).slice(call.image_at.spatial, call.spatial);
  return conv_detail::empty_image(call, src, sizes[call.image_at.channel], spatial);
}

// Checks a call of convolution_fused and returns its empty outputs: the result and, if it is kept,
// what the activation is applied to; else a tensor of no elements.
inline std::tuple<at::Tensor, at::Tensor> convolution_fused_outputs(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const ConvOptions& options,
    const ConvEpilogue& epilogue) {
  const conv_detail::Call call("convolution", src, "src", options);
  call.activation_of(epilogue.activation);
  const auto sizes = conv_detail::forward_sizes(call, src, weights, bias);
  if (epilogue.residual.has_value())
    call.check_like_output("residual", *epilogue.residual, sizes, "src", src);
  const auto spatial = c10::SymIntArrayRef(sizes).slice(call.image_at.spatial, call.spatial);
  const auto make = [&] {
    return conv_detail::empty_image(call, src, sizes[call.image_at.channel], spatial);
  };
  return {make(), epilogue.keep_preactivation ? make() : empty({0}, src.options())};
}

namespace conv_detail {

// Whether a dimension of several elements has one in memory.
inline bool is_expanded(const at::Tensor& tensor, int64_t d) {
  return TORCH_GUARD_OR_FALSE(tensor.sym_stride(d).sym_eq(0).sym_and(tensor.sym_size(d).sym_gt(1)));
}
inline bool is_expanded(const at::Tensor& tensor) {
  bool result = false;
  for (int64_t d = 0; d < tensor.dim(); d++)
    result |= is_expanded(tensor, d);
  return result;
}

// Checks what an operator makes the gradient of src of, and returns that gradient, empty.
inline at::Tensor empty_data_gradient(
    const char* op,
    const at::Tensor& grad,
    const at::Tensor& weights,
    c10::SymIntArrayRef src_size,
    const ConvOptions& options) {
  const Call call(op, grad, "grad", options);
  call.check_image("grad", grad);
  call.check_weights(weights);
  call.check_alike("weights", weights, "grad", grad);
  check_length(call.op, "src_size", src_size, call.spatial);
  check_within(call.op, "", "src_size", src_size, 1, kMaxSize);
  TORCH_CHECK_VALUE(
      holds(call.channels(grad).sym_eq(call.oc(weights))),
      call.op,
      ": expected grad to have ",
      call.oc(weights),
      " channels (the output channels of weights), got ",
      call.channels(grad));
  call.check_grad(grad, src_size, call.kernel_of(weights));
  const c10::SymInt ic = call.ic_per_group(weights) * options.groups;
  check_result(
      call.op, "src_size and weights", make_sizes(call.image_at, grad.sym_size(0), ic, src_size));
  // An expanded gradient, such as that of a sum, has no format: it leaves that to weights.
  auto format = grad.suggest_memory_format();
  if (options.data_format == "NCX" && options.weights_format == "OIX" && is_expanded(grad))
    format = weights.suggest_memory_format();
  return empty_image(call, grad, ic, src_size, format);
}

// The same of weights.
inline at::Tensor empty_weights_gradient(
    const char* op,
    const at::Tensor& grad,
    const at::Tensor& src,
    c10::SymIntArrayRef kernel_size,
    const ConvOptions& options) {
  const Call call(op, grad, "grad", options);
  call.check_image("grad", grad);
  call.check_image("src", src);
  call.check_alike("src", src, "grad", grad);
  call.check_list("kernel_size", kernel_size, 1);
  TORCH_CHECK_VALUE(
      holds(grad.sym_size(0).sym_eq(src.sym_size(0))),
      call.op,
      ": expected src to have the batch ",
      "size of grad (",
      grad.sym_size(0),
      "), got ",
      src.sym_size(0));
  call.check_grad(grad, call.spatial_of(src), kernel_size);
  const bool channels_last = options.data_format == "NCX" && options.weights_format == "OIX";
  const auto of_grad = grad.suggest_memory_format(), of_src = src.suggest_memory_format();
  const auto format = !channels_last            ? at::MemoryFormat::Contiguous
      : of_grad == at::MemoryFormat::Contiguous ? of_src
                                                : of_grad;
  const auto sizes = make_sizes(
      call.weights_at, call.channels(grad), call.channels(src) / options.groups, kernel_size);
  check_result(call.op, "kernel_size, grad and src", sizes);
  return empty(sizes, grad.options().memory_format(format));
}

} // namespace conv_detail

// Checks a call of convolution_backward_data and returns its empty output.
inline at::Tensor convolution_backward_data_output(
    const at::Tensor& grad,
    const at::Tensor& weights,
    c10::SymIntArrayRef src_size,
    const ConvOptions& options) {
  return conv_detail::empty_data_gradient(
      "convolution_backward_data", grad, weights, src_size, options);
}

// Checks a call of convolution_backward_weights and returns its empty output.
inline at::Tensor convolution_backward_weights_output(
    const at::Tensor& grad,
    const at::Tensor& src,
    c10::SymIntArrayRef kernel_size,
    const ConvOptions& options) {
  return conv_detail::empty_weights_gradient(
      "convolution_backward_weights", grad, src, kernel_size, options);
}

namespace conv_detail {

// Missing leading axes have size 1 and stride 0.
inline void copy_layout(const at::Tensor& tensor, Dims at, int64_t* sizes, int64_t* strides) {
  strides[0] = tensor.stride(at.outer);
  strides[1] = tensor.stride(at.channel);
  for (int64_t a = 0; a < 3; a++) {
    const int64_t d = a - (5 - tensor.dim());
    sizes[a] = d < 0 ? 1 : tensor.size(at.spatial + d);
    strides[2 + a] = d < 0 ? 0 : tensor.stride(at.spatial + d);
  }
}

} // namespace conv_detail

// The problem of a checked call; `dst` is the forward's result or its gradient.
inline ConvProblem conv_problem(
    ConvPass pass,
    const at::Tensor& src,
    const at::Tensor& weights,
    const at::Tensor& dst,
    const std::optional<at::Tensor>& bias,
    const ConvOptions& options) {
  const conv_detail::Call call("convolution", src, "src", options);
  ConvProblem p{};
  p.pass = pass;
  p.n = src.size(0);
  p.groups = options.groups.expect_int();
  p.ic = src.size(call.image_at.channel) / p.groups;
  p.oc = dst.size(call.image_at.channel) / p.groups;
  conv_detail::copy_layout(src, call.image_at, p.src_size, p.src_stride);
  conv_detail::copy_layout(dst, call.image_at, p.dst_size, p.dst_stride);
  conv_detail::copy_layout(weights, call.weights_at, p.kernel, p.weights_stride);
  p.weights_group = p.oc * p.weights_stride[0];
  for (int64_t a = 0; a < 3; a++) {
    const int64_t d = a - (3 - static_cast<int64_t>(call.spatial));
    p.stride[a] = d < 0 ? 1 : options.stride(d).expect_int();
    p.dilation[a] = d < 0 ? 1 : options.dilation(d).expect_int();
    p.pad[a] = d < 0 ? 0 : call.pad(d, p.src_size[a], p.kernel[a]).expect_int();
  }
  p.dtype = src.scalar_type();
  if (pass != ConvPass::backward_data)
    p.src = src.const_data_ptr();
  if (pass != ConvPass::backward_weights)
    p.weights = weights.const_data_ptr();
  if (pass != ConvPass::forward)
    p.dst = dst.const_data_ptr();
  if (bias.has_value()) {
    p.bias = bias->const_data_ptr();
    p.bias_stride = bias->stride(0);
  }
  const at::Tensor& out = pass == ConvPass::forward ? dst
      : pass == ConvPass::backward_data             ? src
                                                    : weights;
  p.out = out.mutable_data_ptr();
  return p;
}

// The operators' signatures, spelled once: `run` gets the checked call.
template <at::Tensor (*run)(
    const at::Tensor&,
    const at::Tensor&,
    const std::optional<at::Tensor>&,
    const ConvOptions&)>
at::Tensor convolution_kernel(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef strides,
    c10::SymIntArrayRef pads_begin,
    c10::SymIntArrayRef pads_end,
    c10::SymIntArrayRef dilations,
    std::string_view auto_pad,
    c10::SymInt groups,
    std::string_view data_format,
    std::string_view weights_format,
    std::string_view algorithm) {
  return run(
      src,
      weights,
      bias,
      {strides,
       pads_begin,
       pads_end,
       dilations,
       auto_pad,
       std::move(groups),
       data_format,
       weights_format,
       algorithm});
}

template <std::tuple<at::Tensor, at::Tensor> (*run)(
    const at::Tensor&,
    const at::Tensor&,
    const std::optional<at::Tensor>&,
    const ConvOptions&,
    const ConvEpilogue&)>
std::tuple<at::Tensor, at::Tensor> convolution_fused_kernel(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef strides,
    c10::SymIntArrayRef pads_begin,
    c10::SymIntArrayRef pads_end,
    c10::SymIntArrayRef dilations,
    std::string_view auto_pad,
    c10::SymInt groups,
    std::string_view data_format,
    std::string_view weights_format,
    std::string_view algorithm,
    const std::optional<at::Tensor>& residual,
    std::optional<std::string_view> activation,
    bool keep_preactivation) {
  return run(
      src,
      weights,
      bias,
      {strides,
       pads_begin,
       pads_end,
       dilations,
       auto_pad,
       std::move(groups),
       data_format,
       weights_format,
       algorithm},
      {residual, activation, keep_preactivation});
}

template <at::Tensor (
    *run)(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef, const ConvOptions&)>
at::Tensor convolution_backward_kernel(
    const at::Tensor& grad,
    const at::Tensor& other,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef strides,
    c10::SymIntArrayRef pads_begin,
    c10::SymIntArrayRef pads_end,
    c10::SymIntArrayRef dilations,
    std::string_view auto_pad,
    c10::SymInt groups,
    std::string_view data_format,
    std::string_view weights_format,
    std::string_view algorithm) {
  return run(
      grad,
      other,
      size,
      {strides,
       pads_begin,
       pads_end,
       dilations,
       auto_pad,
       std::move(groups),
       data_format,
       weights_format,
       algorithm});
}

} // namespace torch_dnnl
