// The operators of convolution, made of what a device can compute.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "conv/conv.h"
#include "conv/profiled.h"

namespace torch_dnnl {

// The gradients of src, weights, bias and residual.
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The weights packed for images of these sizes; with data_format NCX they are channels_last if the
// weights are.
template <class Device>
at::Tensor
pack_weights(const at::Tensor& weights, c10::SymIntArrayRef src_sizes, const ConvOptions& options) {
  conv_detail::check_has_data(weights);
  const bool is_nxc = options.data_format == "NXC";
  const auto format = is_nxc ? at::MemoryFormat::Contiguous : memory_format(weights);
  const at::Tensor src = empty(src_sizes, weights.options().memory_format(format));
  const ConvArguments args = forward_arguments(src, weights, std::nullopt, options);
  const at::Tensor dst = conv_detail::empty_image(args, args.dst, src, format);
  const c10::DeviceGuard guard(weights.device());
  return conv_detail::pack<Device>(
      conv_problem(args, ConvPass::forward, src, weights, dst), args, weights);
}

namespace conv_detail {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

// The result and, if it is kept, what the activation is applied to.
inline TwoTensors empty_outputs(
    const ConvArguments& args,
    c10::SymIntArrayRef sizes,
    const at::Tensor& src,
    at::MemoryFormat format,
    bool keep_preactivation) {
  const auto make = [&] { return empty_image(args, sizes, src, format); };
  return {make(), keep_preactivation ? make() : empty({0}, src.options())};
}

// A problem has the addresses of these tensors.
struct HeldTensors {
  at::Tensor src, slopes;
};
// The problem that computes `dst`: a convolution, or a gradient of data.
inline ConvProblem problem_of(
    const ConvArguments& args,
    ConvPass pass,
    const at::Tensor& src,
    const at::Tensor& weights,
    const at::Tensor& dst,
    const std::optional<at::Tensor>& bias,
    at::MemoryFormat format,
    HeldTensors& held) {
  held.src = in_format(args, src, format);
  const bool is_forward = pass == ConvPass::forward;
  return is_forward ? conv_problem(args, pass, held.src, weights, dst, bias)
                    : conv_problem(args, pass, dst, weights, held.src, bias);
}
inline ConvProblem with_epilogue(
    ConvProblem p,
    const ConvArguments& args,
    const EpilogueOptions& epilogue,
    const at::Tensor& dst,
    const at::Tensor& preactivation,
    HeldTensors& held) {
  held.slopes = slopes_of(epilogue, dst.size(args.image_at.channel));
  add_epilogue(p, args, epilogue.residual, held.slopes, preactivation);
  return p;
}

// Whether prelu is a pass of its own on this device.
template <class Device>
bool has_prelu_pass(const ConvArguments& args) {
  return requires { Device::kPreluIsAPass; } && args.activation == Activation::prelu;
}
template <class F>
TwoTensors with_prelu(EpilogueOptions plain, const ConvArguments& args, bool keep, const F& call) {
  const at::Tensor slope = *plain.slope;
  plain.activation = std::nullopt;
  plain.slope = std::nullopt;
  const auto [u, none] = call(plain);
  return {prelu(u, slope, args.is_nxc()), keep ? u : none};
}

} // namespace conv_detail

// What a device registers: check, allocate, and Device::compute a problem that is not empty, by the
// algorithm that is asked for.
template <class Device>
struct ConvOnDevice {
  static at::Tensor forward(
      const at::Tensor& src,
      const at::Tensor& weights,
      const std::optional<at::Tensor>& bias,
      const ConvOptions& options) {
    const ConvArguments args = forward_arguments(src, weights, bias, options);
    const auto format = conv_detail::result_format(args, src, weights);
    const at::Tensor dst = conv_detail::empty_image(args, args.dst, src, format);
    conv_detail::HeldTensors held;
    compute(args, dst, [&] {
      const auto pass = ConvPass::forward;
      return conv_detail::problem_of(args, pass, src, weights, dst, bias, format, held);
    });
    return dst;
  }

  static std::tuple<at::Tensor, at::Tensor> packed(
      const at::Tensor& src,
      const at::Tensor& weights,
      const std::optional<at::Tensor>& bias,
      const ConvOptions& options,
      const EpilogueOptions& epilogue,
      bool keep_preactivation,
      const std::optional<at::Tensor>& packed) {
    const ConvArguments args = forward_arguments(src, weights, bias, options, epilogue);
    conv_detail::check_device_of_packed(args.op, packed, src);
    if (conv_detail::has_prelu_pass<Device>(args))
      return conv_detail::with_prelu(epilogue, args, keep_preactivation, [&](const auto& plain) {
        return ConvOnDevice::packed(src, weights, bias, options, plain, false, packed);
      });
    const auto format = conv_detail::result_format(args, src, weights);
    const auto [dst, preactivation] =
        conv_detail::empty_outputs(args, args.dst, src, format, keep_preactivation);
    conv_detail::HeldTensors held;
    const auto problem = [&] {
      const auto pass = ConvPass::forward;
      auto p = conv_detail::problem_of(args, pass, src, weights, dst, bias, format, held);
      return conv_detail::with_epilogue(p, args, epilogue, dst, preactivation, held);
    };
    compute(args, dst, problem, packed, conv_detail::has_weights(weights));
    return {dst, preactivation};
  }
  static constexpr auto fused = without_last<packed>;

  static std::tuple<at::Tensor, at::Tensor> transpose(
      const at::Tensor& src,
      const at::Tensor& weights,
      const std::optional<at::Tensor>& bias,
      const ConvOptions& options,
      const EpilogueOptions& epilogue,
      bool keep_preactivation,
      at::OptionalSymIntArrayRef dst_size) {
    const auto sizes = dst_size.value_or(c10::SymIntArrayRef());
    const ConvArguments args = transpose_arguments(src, weights, bias, options, epilogue, sizes);
    if (conv_detail::has_prelu_pass<Device>(args))
      return conv_detail::with_prelu(epilogue, args, keep_preactivation, [&](const auto& plain) {
        return transpose(src, weights, bias, options, plain, false, dst_size);
      });
    const auto format = conv_detail::result_format(args, src, weights);
    const auto [dst, preactivation] =
        conv_detail::empty_outputs(args, args.src, src, format, keep_preactivation);
    conv_detail::HeldTensors held;
    compute(args, dst, [&] {
      const auto pass = ConvPass::backward_data;
      auto p = conv_detail::problem_of(args, pass, src, weights, dst, bias, format, held);
      return conv_detail::with_epilogue(p, args, epilogue, dst, preactivation, held);
    });
    return {dst, preactivation};
  }

  static at::Tensor backward_data(
      const at::Tensor& grad,
      const at::Tensor& weights,
      c10::SymIntArrayRef src_size,
      const ConvOptions& options) {
    const ConvArguments args = backward_data_arguments(grad, weights, src_size, options);
    const at::Tensor src = conv_detail::empty_data_gradient(args, grad, weights);
    const auto pass = ConvPass::backward_data;
    compute(args, src, [&] { return conv_problem(args, pass, src, weights, grad); });
    return src;
  }

  static at::Tensor backward_weights(
      const at::Tensor& grad,
      const at::Tensor& src,
      c10::SymIntArrayRef kernel_size,
      const ConvOptions& options) {
    const ConvArguments args = backward_weights_arguments(grad, src, kernel_size, options);
    const at::Tensor weights = conv_detail::empty_weights_gradient(args, grad, src);
    const auto pass = ConvPass::backward_weights;
    compute(args, weights, [&] { return conv_problem(args, pass, src, weights, grad); });
    return weights;
  }

  static FourTensors fused_backward(
      const at::Tensor& grad,
      const at::Tensor& value,
      std::string_view activation,
      const std::optional<at::Tensor>& src,
      const std::optional<at::Tensor>& weights,
      c10::SymIntArrayRef src_size,
      c10::SymIntArrayRef kernel_size,
      const ConvOptions& options,
      bool bias,
      bool residual,
      std::optional<double> alpha,
      std::optional<double> beta) {
    const FusedBackward call{
        fused_backward_arguments(
            grad, value, activation, src, weights, src_size, kernel_size, options, alpha, beta),
        grad,
        value,
        src,
        weights,
        src_size,
        kernel_size,
        bias,
        residual};
    if constexpr (!is_meta) {
      const c10::DeviceGuard guard(grad.device());
      Device::fused_backward(call); // into its outputs
    }
    return {call.src_grad, call.weights_grad, call.bias_grad, call.residual_grad};
  }

 private:
  static constexpr bool is_meta = std::is_same_v<Device, Meta>;

  template <class F>
  static void compute(
      [[maybe_unused]] const ConvArguments& args,
      [[maybe_unused]] const at::Tensor& out,
      [[maybe_unused]] const F& problem,
      [[maybe_unused]] const std::optional<at::Tensor>& packed = std::nullopt,
      [[maybe_unused]] bool has_weights = true) {
    if constexpr (!is_meta) {
      const c10::DeviceGuard guard(out.device());
      if (out.numel() == 0)
        return;
      const ConvProblem p = problem();
      const CountedProducts counted(p);
      if (packed.has_value())
        conv_detail::compute_packed<Device>(p, args, *packed, has_weights);
      else
        Device::compute(p, args.algorithm);
    }
  }
};

template <class Device>
void register_convolutions(torch::Library& m) {
  using Calls = ConvOnDevice<Device>;
  m.impl("convolution", with_options<Calls::forward>);
  m.impl("convolution_fused", with_options<Calls::fused>);
  m.impl("convolution_packed", with_options<Calls::packed>);
  m.impl("convolution_transpose", with_options<Calls::transpose>);
  m.impl("convolution_backward_data", with_options<Calls::backward_data>);
  m.impl("convolution_backward_weights", with_options<Calls::backward_weights>);
  m.impl("convolution_fused_backward", with_options<Calls::fused_backward>);
  m.impl("pack_weights", with_options<pack_weights<Device>>);
}

} // namespace torch_dnnl
