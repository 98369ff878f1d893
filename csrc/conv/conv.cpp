// Registration of the convolution operators: shapes, derivatives, autocast, batching. Each of the
// three is bilinear in its two tensors, and its derivatives are the other two. The fused operator
// adds a residual and a function of the sum, whose derivative is one more step. All steps together
// are the fused backward operator, which takes less time and memory.

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softplus_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "conv/calls.h"
#include "conv/on_device.h"
#include "core/torch/autocast.h"
#include "core/torch/autograd.h"
#include "core/torch/vmap.h"

namespace torch_dnnl {
namespace {

using namespace conv_arg;

using at::Tensor;
using c10::IValue;
using c10::SymInt;

constexpr auto convolution = call<"torch_dnnl::convolution">;
constexpr auto convolution_fused = call_outputs<"torch_dnnl::convolution_fused">;
constexpr auto convolution_transpose = call_outputs<"torch_dnnl::convolution_transpose">;
constexpr auto backward_data = call<"torch_dnnl::convolution_backward_data">;
constexpr auto backward_weights = call<"torch_dnnl::convolution_backward_weights">;
constexpr auto fused_backward = call_outputs<"torch_dnnl::convolution_fused_backward">;

IValue spatial_sizes(const Tensor& tensor, const conv_detail::Dims& dims) {
  return IValue(tensor.sym_sizes().slice(dims.spatial, tensor.dim() - 2));
}

IValue image_size(const Tensor& image, const Stack& args) {
  return spatial_sizes(image, dims_of_images(args, image.dim()));
}

IValue kernel_size(const Tensor& weights, const Stack& args) {
  return spatial_sizes(weights, dims_of_weights(args, weights.dim()));
}

// The gradient of one of the first two tensors. `derivative` computes it of the other one and, as
// its tensor `position`, of the gradient of the result.
template <Tensor (*derivative)(Stack), size_t position>
Pullback gradient_by(size_t argument, const Stack& args) {
  const Tensor& tensor = args[argument].toTensor();
  Stack saved(args.begin() + second, args.begin() + residual); // a tensor, sizes, the attributes
  saved[0] = args[argument == first ? second : first];
  saved[1] = derivative == backward_data ? image_size(tensor, args)
      : derivative == backward_weights   ? kernel_size(tensor, args)
                                         : IValue();
  const auto apply = [](const Tensor& grad, const Stack& kept) {
    Stack call = kept;
    call.insert(call.begin() + position, IValue(grad));
    return derivative(std::move(call));
  };
  return {apply, std::move(saved)};
}

// Sums over everything but the channels. ATen's order of summation depends on the number of threads
// where there is one sum alone, and where a gradient is expanded, as that of a sum is: the only
// channel is summed twice, and what is repeated is multiplied.
Tensor bias_gradient(const Tensor& grad, const Stack& saved) {
  const int64_t channel = saved[0].toInt();
  Tensor rest = grad;
  SymInt repeats = 1;
  bool is_repeated = false;
  std::vector<int64_t> others;
  for (int64_t d = 0; d < grad.dim(); d++) {
    if (d == channel)
      continue;
    others.push_back(d);
    const SymInt size = grad.sym_size(d);
    if (conv_detail::is_expanded(grad, d)) {
      rest = rest.narrow(d, 0, 1);
      repeats *= size;
      is_repeated = true;
    }
  }
  const bool is_only = grad.is_cpu() && TORCH_GUARD_OR_FALSE(grad.sym_size(channel).sym_eq(1));
  if (is_only) {
    c10::SymDimVector twice(rest.sym_sizes());
    twice[channel] = 2;
    rest = rest.expand_symint(twice);
  }
  Tensor sums = rest.sum(others);
  if (is_only)
    sums = sums.narrow(0, 0, 1);
  return is_repeated ? sums.mul(c10::Scalar(repeats)) : sums;
}

// `saved`: the sizes of a residual.
Tensor residual_gradient(const Tensor& grad, const Stack& saved) {
  return at::sum_to(grad, saved[0].toSymIntVector());
}

// Of the bias and the residual, which are added.
Pullback pullback_of_addend(size_t argument, const Stack& args) {
  if (argument == third)
    return {bias_gradient, {dims_of_images(args, args[first].toTensor().dim()).channel}};
  if (argument == residual)
    return {residual_gradient, {IValue(args[residual].toTensor().sym_sizes())}};
  return {}; // the slope of prelu: see prelu_in_steps
}

// `linear`: by the two tensors that are multiplied, of a call up to its attributes.
template <Tensor (*linear)(Stack), size_t third_argument>
Tensor pushforward(size_t argument, const Tensor& tangent, const Stack& args) {
  if (argument == residual)
    return at::clone(tangent);
  if (argument == third) { // in a shape that broadcasts to the result
    const int64_t rank = args[first].toTensor().dim();
    Tensor result = tangent;
    for (int64_t d = dims_of_images(args, rank).channel + 1; d < rank; d++)
      result = result.unsqueeze(-1);
    return result;
  }
  Stack call(args.begin(), args.begin() + residual);
  call[argument] = tangent;
  call[third] = third_argument == third ? IValue() : args[third_argument];
  return linear(std::move(call));
}

// Of convolution_fused up to its activation: as of convolution, and plus the residual.
const Derivatives convolution_derivatives{
    [](size_t argument, const Stack& args) {
      switch (argument) {
        case first:
          return gradient_by<backward_data, first>(argument, args);
        case second:
          return gradient_by<backward_weights, first>(argument, args);
        default:
          return pullback_of_addend(argument, args);
      }
    },
    pushforward<convolution, third>};

// Of an operator that computes a gradient. By the first tensor, its own gradient, that is the
// convolution, which takes it in the place of what the operator computes; by its second tensor, the
// other gradient.
template <Tensor (*operation)(Stack), size_t place, Tensor (*other)(Stack)>
constexpr Derivatives derivatives_of_gradient{
    [](size_t argument, const Stack& args) {
      return argument == first ? gradient_by<convolution, place>(argument, args)
                               : gradient_by<other, second>(argument, args);
    },
    [](size_t argument, const Tensor& tangent, const Stack& args) {
      Stack linear = args;
      linear[argument] = tangent;
      return operation(std::move(linear));
    }};

Activation activation_in(const IValue& name) {
  return conv_detail::activation_of("convolution", name.toOptional<std::string_view>());
}

// grad a'(u) by ATen's functions, which are differentiable. ATen's functions for silu and mish are
// not: differentiated calls compute these two from other operators. `saved`: the result or the
// preactivation, the name, alpha and beta.
Tensor times_derivative(const Tensor& grad, const Stack& saved) {
  const Tensor& value = saved[0].toTensor();
  const Activation a = activation_in(saved[1]);
  const auto has_tangent = [](const Tensor& x) { return x._fw_grad(/*level=*/0).defined(); };
  const bool is_differentiated =
      at::GradMode::is_enabled() || has_tangent(grad) || has_tangent(value);
  // ATen calls oneDNN here. oneDNN refuses strides such as (3, 3, 2).
  const auto gelu = [&](const char* approximate) {
    const auto dense = [](const Tensor& x) {
      return x.is_non_overlapping_and_dense() ? x : x.contiguous();
    };
    return at::gelu_backward(dense(grad), dense(value), approximate);
  };
  const auto [alpha, beta] = conv_detail::parameters_of(
      "convolution", a, saved[2].toOptional<double>(), saved[3].toOptional<double>());
  switch (a) {
    case Activation::relu:
      return at::threshold_backward(grad, value, 0);
    case Activation::relu6:
      return at::hardtanh_backward(grad, value, 0, 6);
    case Activation::sigmoid:
      return at::sigmoid_backward(grad, value);
    case Activation::tanh:
      return at::tanh_backward(grad, value);
    case Activation::gelu:
      return gelu("none");
    case Activation::gelu_tanh:
      return gelu("tanh");
    case Activation::hardswish:
      return at::hardswish_backward(grad, value);
    case Activation::hardsigmoid:
      return at::where((value > -3).logical_and(value < 3), grad / 6, 0.0);
    case Activation::softplus:
      return at::softplus_backward(grad, value, 1, 20);
    case Activation::leaky_relu:
      return at::leaky_relu_backward(grad, value, alpha, /*self_is_result=*/false);
    case Activation::elu:
      return at::elu_backward(grad, alpha, 1, 1, /*is_result=*/false, value);
    case Activation::clamp:
      return at::where((value >= alpha).logical_and(value <= beta), grad, 0.0);
    case Activation::mish: {
      if (!is_differentiated)
        return at::mish_backward(grad, value);
      const Tensor t = at::tanh(at::softplus(value));
      return grad * (t + value * (1 - t * t) * at::sigmoid(value));
    }
    default: {
      if (!is_differentiated)
        return at::silu_backward(grad, value);
      const Tensor s = at::sigmoid(value);
      return grad * s * (1 + value * (1 - s));
    }
  }
}

// Positions of the arguments of convolution_fused_backward: the gradient, the value and the
// activation, and then these, with the attributes between the sizes and of_bias. Behind
// of_residual are alpha and beta.
enum { of_src = 3, of_weights = 4, of_sizes = 5, of_bias = 16, of_residual = 17 };

std::vector<Tensor> fused_gradients(
    const Tensor& grad,
    const Stack& saved,
    const std::vector<ArgumentToDifferentiate>& arguments) {
  Stack args{grad, saved[0], saved[1], IValue(), IValue()};
  args.insert(args.end(), saved.begin() + 4, saved.end());
  args.insert(args.end(), {false, false, saved[2], saved[3]});
  for (const auto& [argument, partner] : arguments)
    if (argument == first || argument == second)
      args[argument == first ? of_weights : of_src] = partner[0];
    else
      args[argument == third ? of_bias : of_residual] = true;
  const Stack outputs = fused_backward(std::move(args));
  std::vector<Tensor> result;
  for (const auto& [argument, partner] : arguments)
    result.push_back(
        argument == residual ? residual_gradient(outputs[3].toTensor(), partner)
                             : outputs[argument].toTensor());
  return result;
}

// The same, one step after the other. The steps check src and weights.
FourTensors fused_backward_steps(
    const Tensor& grad,
    const Tensor& value,
    std::string_view activation,
    const std::optional<Tensor>& src,
    const std::optional<Tensor>& weights,
    c10::SymIntArrayRef src_size,
    c10::SymIntArrayRef size_of_kernel,
    const ConvOptions& options,
    bool of_bias,
    bool of_residual,
    std::optional<double> alpha,
    std::optional<double> beta) {
  const ConvArguments checked = fused_backward_arguments(
      grad,
      value,
      activation,
      std::nullopt,
      std::nullopt,
      src_size,
      size_of_kernel,
      options,
      alpha,
      beta);
  const Tensor h = times_derivative(grad, {value, activation, alpha, beta});
  const auto gradient = [&](Tensor (*backward)(Stack), const Tensor& partner, auto size) {
    const auto& o = options;
    Stack args{h, partner, size, o.strides, o.pads_begin, o.pads_end, o.dilations, o.auto_pad};
    args.insert(args.end(), {o.groups, o.data_format, o.weights_format, o.algorithm});
    return backward(std::move(args));
  };
  const auto none = [&] { return h.new_empty({0}); };
  return {
      weights.has_value() ? gradient(backward_data, *weights, src_size) : none(),
      src.has_value() ? gradient(backward_weights, *src, size_of_kernel) : none(),
      of_bias ? bias_gradient(h, {checked.image_at.channel}) : none(),
      of_residual ? h : none()};
}

// Differentiated and batched calls use the plain weights.
std::tuple<Tensor, Tensor> packed_by_plain(
    const Tensor& src,
    const Tensor& weights,
    const std::optional<Tensor>& bias,
    const ConvOptions& o,
    const EpilogueOptions& e,
    bool keep_preactivation,
    const std::optional<Tensor>& /*packed*/) {
  conv_detail::check_has_weights(
      "convolution",
      conv_detail::has_weights(weights),
      "gradients and batches are computed with these");
  Stack args{src, weights, bias, o.strides, o.pads_begin, o.pads_end, o.dilations, o.auto_pad};
  args.insert(args.end(), {o.groups, o.data_format, o.weights_format, o.algorithm});
  args.insert(args.end(), {e.residual, e.activation, e.alpha, e.beta, e.slope});
  args.emplace_back(keep_preactivation);
  const Stack outputs = convolution_fused(std::move(args));
  return {outputs[0].toTensor(), outputs[1].toTensor()};
}

const Ending activation_ending{
    [](IValue* args) {
      const Activation a = activation_in(args[activation]);
      if (a != Activation::none && !has_derivative_in_result(a))
        args[keep_preactivation] = true;
    },
    [](const Stack& args) { return args[keep_preactivation].toBool(); },
    [](const Stack& args, const Tensor& result) {
      const Activation a = activation_in(args[activation]);
      if (a == Activation::none)
        return Pullback{};
      Stack saved{
          has_derivative_in_result(a) ? IValue(result) : args.back(), // the preactivation
          args[activation],
          args[alpha],
          args[beta],
          image_size(args[first].toTensor(), args),
          kernel_size(args[second].toTensor(), args)};
      saved.insert(saved.end(), args.begin() + strides, args.begin() + residual);
      return Pullback{times_derivative, std::move(saved)};
    },
    fused_gradients};

const Derivatives fused_derivatives{
    convolution_derivatives.pullback,
    convolution_derivatives.pushforward,
    &activation_ending};

// One step after the other.
const Ending activation_ending_in_steps{
    activation_ending.prepare,
    activation_ending.returns_inner,
    activation_ending.derivative};

// Of the gradient of data: by its first tensor, the convolution.
const Derivatives transpose_derivatives{
    [](size_t argument, const Stack& args) {
      switch (argument) {
        case first:
          return gradient_by<convolution, first>(argument, args);
        case second:
          return gradient_by<backward_weights, second>(argument, args);
        default:
          return pullback_of_addend(argument, args);
      }
    },
    pushforward<backward_data, dst_size>,
    &activation_ending_in_steps};

// Whether a call of convolution_fused or convolution_transpose ends in prelu.
bool has_prelu(const IValue* args) {
  return args[activation].isString() && args[activation].toStringRef() == "prelu";
}

// The result of such a call without prelu, and then prelu.
void prelu_in_steps(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  Stack args = torch::jit::pop(*stack, op.schema().arguments().size());
  const auto slopes = args[slope].toOptional<Tensor>();
  const bool is_kept = args[keep_preactivation].toBool();
  const bool is_nxc = args[data_format].toStringRef() == "NXC";
  args[activation] = args[slope] = IValue();
  args[keep_preactivation] = false;
  op.callBoxed(args);
  const Tensor u = args[0].toTensor();
  const c10::SymInt channels = u.sym_size(is_nxc ? u.dim() - 1 : 1);
  conv_detail::check_slope("convolution", slopes, u.scalar_type(), channels, u);
  stack->emplace_back(prelu(u, *slopes, is_nxc));
  stack->emplace_back(is_kept ? u : args[1].toTensor());
}

constexpr InSteps prelu_steps{has_prelu, prelu_in_steps};

// ---- Batching ----

template <Tensor (*call)(Stack)>
Tensor image_batch(const BatchedCall& batched_call) {
  auto [args, dim] = image_batch(batched_call, {first});
  return unfolded_from(call(std::move(args)), dim, batched_call.batch);
}

template <Stack (*call)(Stack)>
Stack fused_batch(const BatchedCall& batched_call) {
  auto [args, dim] = image_batch(with_whole_batch_of(residual, batched_call), {first, residual});
  const bool is_kept = args[keep_preactivation].toBool();
  const Stack outputs = call(std::move(args));
  const Tensor &dst = outputs[0].toTensor(), &kept = outputs[1].toTensor();
  const auto& batch = batched_call.batch;
  return {
      unfolded_from(dst, dim, batch),
      is_kept ? unfolded_from(kept, dim, batch) : kept.new_empty_symint({batch, 0})};
}

Tensor weights_batch(const BatchedCall& batched_call) {
  Stack args = batched_call.args;
  const int64_t rank = args[first].toTensor().dim() - batched_call.batched(first);
  const auto images = dims_of_images(args, rank), weights = dims_of_weights(args, rank);
  for (const size_t argument : {first, second})
    args[argument] = batched_call.folded_into(argument, images.channel);
  args[groups] = args[groups].toSymInt() * batched_call.batch;
  return unfolded_from(backward_weights(std::move(args)), weights.outer, batched_call.batch);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Meta, m) {
  register_convolutions<Meta>(m);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Autograd, m) {
  m.impl("convolution", differentiable(convolution_derivatives));
  m.impl("convolution_fused", differentiable(fused_derivatives, prelu_steps));
  m.impl(
      "convolution_packed",
      differentiable_by(
          c10::KernelFunction::makeFromUnboxedRuntimeFunction(with_options<packed_by_plain>)));
  m.impl("pack_weights", differentiable(no_derivatives));
  m.impl("convolution_transpose", differentiable(transpose_derivatives, prelu_steps));
  m.impl(
      "convolution_fused_backward",
      differentiable_by(
          c10::KernelFunction::makeFromUnboxedRuntimeFunction(with_options<fused_backward_steps>)));
  m.impl(
      "convolution_backward_data",
      differentiable(derivatives_of_gradient<backward_data, first, backward_weights>));
  m.impl(
      "convolution_backward_weights",
      differentiable(derivatives_of_gradient<backward_weights, second, backward_data>));
}

TORCH_LIBRARY_IMPL(torch_dnnl, FuncTorchBatched, m) {
  m.impl("convolution", batched<image_batch<convolution>>());
  m.impl("convolution_fused", batched(fused_batch<convolution_fused>, prelu_steps));
  m.impl("convolution_packed", with_options<packed_by_plain>);
  m.impl("pack_weights", batched<batch_to_pack>());
  m.impl("convolution_transpose", batched(fused_batch<convolution_transpose>, prelu_steps));
  m.impl("convolution_fused_backward", with_options<fused_backward_steps>);
  m.impl("convolution_backward_data", batched<image_batch<backward_data>>());
  m.impl("convolution_backward_weights", batched<weights_batch>());
}

// The backward operators get the types that the forward ran in.
TORCH_LIBRARY_IMPL(torch_dnnl, AutocastCPU, m) {
  m.impl("convolution", lower_precision(c10::kCPU));
  m.impl("convolution_fused", lower_precision(c10::kCPU));
  m.impl("convolution_packed", lower_precision(c10::kCPU));
  m.impl("convolution_transpose", lower_precision(c10::kCPU));
}

TORCH_LIBRARY_IMPL(torch_dnnl, AutocastCUDA, m) {
  m.impl("convolution", lower_precision(c10::kCUDA));
  m.impl("convolution_fused", lower_precision(c10::kCUDA));
  m.impl("convolution_packed", lower_precision(c10::kCUDA));
  m.impl("convolution_transpose", lower_precision(c10::kCUDA));
}

} // namespace
} // namespace torch_dnnl
