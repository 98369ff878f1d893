// Registration of the three convolution operators: shapes, derivatives, autocast,
// batching. Each is bilinear in its two tensors, and its derivatives are the
// other two.
#include "conv/conv.h"

#include <torch/library.h>

#include "core/autocast.h"
#include "core/autograd.h"
#include "core/vmap.h"

namespace torch_dnnl {
namespace {

using at::Tensor;
using c10::IValue;

// Positions of the arguments in the schemas: two tensors, then bias, src_size or
// kernel_size, then the attributes, which are the same for all three.
enum {
  first,
  second,
  third,
  strides,
  pads_begin,
  pads_end,
  dilations,
  auto_pad,
  groups,
  data_format,
  weights_format,
  algorithm
};

Tensor convolution(Stack args) {
  static const Operator op("torch_dnnl::convolution");
  return op(std::move(args));
}

Tensor backward_data(Stack args) {
  static const Operator op("torch_dnnl::convolution_backward_data");
  return op(std::move(args));
}

Tensor backward_weights(Stack args) {
  static const Operator op("torch_dnnl::convolution_backward_weights");
  return op(std::move(args));
}

conv_detail::Dims dims_of_images(const Stack& args, int64_t rank) {
  return conv_detail::image_dims(args[data_format].toStringRef() == "NXC", rank);
}

conv_detail::Dims dims_of_weights(const Stack& args, int64_t rank) {
  return conv_detail::weights_dims(args[weights_format].toStringRef() == "XIO", rank);
}

IValue spatial_sizes(const Tensor& tensor, const conv_detail::Dims& dims) {
  return IValue(tensor.sym_sizes().slice(dims.spatial, tensor.dim() - 2));
}

IValue image_size(const Tensor& image, const Stack& args) {
  return spatial_sizes(image, dims_of_images(args, image.dim()));
}

IValue kernel_size(const Tensor& weights, const Stack& args) {
  return spatial_sizes(weights, dims_of_weights(args, weights.dim()));
}

// The partner tensor, the third argument of the derivative, the attributes.
Stack saved_for(const Tensor& partner, IValue third_argument, const Stack& args) {
  Stack saved;
  saved.reserve(args.size() - strides + 2);
  saved.emplace_back(partner);
  saved.push_back(std::move(third_argument));
  saved.insert(saved.end(), args.begin() + strides, args.end());
  return saved;
}

// The derivative that takes the gradient as its first or its second tensor.
template <Tensor (*call)(Stack), size_t position>
Tensor with_grad(const Tensor& grad, const Stack& saved) {
  Stack args = saved;
  args.insert(args.begin() + position, IValue(grad));
  return call(std::move(args));
}

// Sums over everything but the channels.
Tensor bias_gradient(const Tensor& grad, const Stack& saved) {
  const int64_t channel = saved[0].toInt();
  std::vector<int64_t> others;
  for (int64_t d = 0; d < grad.dim(); d++) {
    if (d != channel)
      others.push_back(d);
  }
  return grad.sum(others);
}

// A tangent of the bias, in the shape of the output.
Tensor broadcast_bias(const Tensor& tangent, const Stack& args) {
  const auto list = [&](size_t position) { return args[position].toSymIntVector(); };
  const auto s = list(strides), b = list(pads_begin), e = list(pads_end), d = list(dilations);
  const ConvOptions options{
      s,
      b,
      e,
      d,
      args[auto_pad].toStringView(),
      args[groups].toSymInt(),
      args[data_format].toStringView(),
      args[weights_format].toStringView(),
      args[algorithm].toStringView()};
  const conv_detail::Call call("convolution", args[first].toTensor(), "src", options);
  const auto sizes = conv_detail::forward_sizes(
      call, args[first].toTensor(), args[second].toTensor(), std::nullopt);
  Tensor result = tangent;
  for (int64_t dim = 0; dim < call.rank; dim++) {
    if (dim != call.image_at.channel)
      result = result.unsqueeze(dim);
  }
  return result.expand_symint(sizes);
}

// The call on the tangent of one tensor: its partner is a constant there, and so without its own.
template <Tensor (*call)(Stack)>
Tensor linear_in(size_t argument, const Tensor& tangent, Stack args) {
  for (const size_t tensor : {first, second}) {
    const Tensor value = args[tensor].toTensor();
    if (value._fw_grad(/*level=*/0).defined())
      args[tensor] = value._fw_primal(/*level=*/0);
  }
  args[argument] = tangent;
  return call(std::move(args));
}

const Derivatives convolution_derivatives{
    [](size_t argument, const Stack& args) {
      const Tensor &src = args[first].toTensor(), &weights = args[second].toTensor();
      switch (argument) {
        case first:
          return Pullback{
              with_grad<backward_data, 0>, saved_for(weights, image_size(src, args), args)};
        case second:
          return Pullback{
              with_grad<backward_weights, 0>, saved_for(src, kernel_size(weights, args), args)};
        default:
          return Pullback{bias_gradient, {dims_of_images(args, src.dim()).channel}};
      }
    },
    [](size_t argument, const Tensor& tangent, const Stack& args) {
      if (argument == third)
        return broadcast_bias(tangent, args);
      Stack without_bias = args;
      without_bias[third] = IValue();
      return linear_in<convolution>(argument, tangent, std::move(without_bias));
    }};

const Derivatives backward_data_derivatives{
    [](size_t argument, const Stack& args) {
      const Tensor &grad = args[first].toTensor(), &weights = args[second].toTensor();
      if (argument == first) {
        return Pullback{with_grad<convolution, 0>, saved_for(weights, IValue(), args)};
      }
      return Pullback{
          with_grad<backward_weights, 1>, saved_for(grad, kernel_size(weights, args), args)};
    },
    [](size_t argument, const Tensor& tangent, const Stack& args) {
      return linear_in<backward_data>(argument, tangent, args);
    }};

const Derivatives backward_weights_derivatives{
    [](size_t argument, const Stack& args) {
      const Tensor &grad = args[first].toTensor(), &src = args[second].toTensor();
      if (argument == first) {
        return Pullback{with_grad<convolution, 1>, saved_for(src, IValue(), args)};
      }
      return Pullback{with_grad<backward_data, 1>, saved_for(grad, image_size(src, args), args)};
    },
    [](size_t argument, const Tensor& tangent, const Stack& args) {
      return linear_in<backward_weights>(argument, tangent, args);
    }};

// Batching. A batch of images alone is folded into N; otherwise it is folded into
// the channels, where each of its elements has groups of its own.
template <Tensor (*call)(Stack)>
Tensor image_batch(const BatchedCall& batched_call) {
  Stack args = batched_call.args;
  if (!batched_call.batched(second) && !batched_call.batched(third)) {
    args[first] = batched_call.folded_into(first, 0);
    return unfolded_from(call(std::move(args)), 0, batched_call.batch);
  }
  const int64_t rank = args[first].toTensor().dim() - batched_call.batched(first);
  const auto images = dims_of_images(args, rank), weights = dims_of_weights(args, rank);
  args[first] = batched_call.folded_into(first, images.channel);
  args[second] = batched_call.folded_into(second, weights.outer);
  if (args[third].isTensor())
    args[third] = batched_call.folded_into(third, 0);
  args[groups] = args[groups].toSymInt() * batched_call.batch;
  return unfolded_from(call(std::move(args)), images.channel, batched_call.batch);
}

Tensor weights_batch(const BatchedCall& batched_call) {
  Stack args = batched_call.args;
  const int64_t rank = args[first].toTensor().dim() - batched_call.batched(first);
  const auto images = dims_of_images(args, rank), weights = dims_of_weights(args, rank);
  for (const size_t argument : {first, second}) {
    args[argument] = batched_call.folded_into(argument, images.channel);
  }
  args[groups] = args[groups].toSymInt() * batched_call.batch;
  return unfolded_from(backward_weights(std::move(args)), weights.outer, batched_call.batch);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Meta, m) {
  m.impl("convolution", convolution_kernel<convolution_output>);
  m.impl(
      "convolution_backward_data", convolution_backward_kernel<convolution_backward_data_output>);
  m.impl(
      "convolution_backward_weights",
      convolution_backward_kernel<convolution_backward_weights_output>);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Autograd, m) {
  m.impl("convolution", differentiable(convolution_derivatives));
  m.impl("convolution_backward_data", differentiable(backward_data_derivatives));
  m.impl("convolution_backward_weights", differentiable(backward_weights_derivatives));
}

TORCH_LIBRARY_IMPL(torch_dnnl, FuncTorchBatched, m) {
  m.impl("convolution", batched<image_batch<convolution>>());
  m.impl("convolution_backward_data", batched<image_batch<backward_data>>());
  m.impl("convolution_backward_weights", batched<weights_batch>());
}

// The backward operators get the types that the forward ran in.
TORCH_LIBRARY_IMPL(torch_dnnl, AutocastCPU, m) {
  m.impl("convolution", lower_precision(c10::kCPU));
}

TORCH_LIBRARY_IMPL(torch_dnnl, AutocastCUDA, m) {
  m.impl("convolution", lower_precision(c10::kCUDA));
}

} // namespace
} // namespace torch_dnnl
