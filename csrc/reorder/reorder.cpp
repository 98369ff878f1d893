// Registration of reorder and reorder_backward: shapes, derivatives, batching.
//
// For a floating result, with scales s and t, zero points z and z', and y for accumulate,
//   dst = w + z'    w = v / t    v = s (src - z) + beta y
// and every derivative is made of reorders again: those of the gradient go from the format of dst
// to the one where it is needed. reorder_backward is itself such a reorder.
#include "reorder/on_device.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "core/torch/format.h"
#include "reorder/derivative_calls.h"

namespace torch_dnnl {

using at::Tensor;
using c10::IValue;

Stack without(c10::ArrayRef<int> operands, Stack call) {
  using namespace reorder_arg;
  static_assert(beta - accumulate == scale_value - scale); // the numbers are in the same order
  for (const int operand : operands) {
    const bool is_zero_point = operand == src_zero_point || operand == dst_zero_point;
    call[operand] = IValue();
    call[operand - scale + scale_value] = is_zero_point ? 0.0 : 1.0;
  }
  return call;
}

Stack plain_call(const Tensor& src, IValue dtype, IValue algorithm) {
  Stack args(reorder_arg::count);
  args[reorder_arg::src] = src;
  args[reorder_arg::dtype] = std::move(dtype);
  args[reorder_arg::round_before_zero_point] = false;
  args[reorder_arg::algorithm] = std::move(algorithm);
  return without(reorder_arg::operands, std::move(args));
}

Tensor sum_to_saved_operand(const Tensor& tensor, const Stack& saved) {
  const auto operand = saved[saved.size() - 2].toSymIntVector();
  std::vector<c10::SymInt> groups;
  std::vector<int64_t> within;
  for (size_t d = 0; d < operand.size(); d++) {
    groups.push_back(operand[d]);
    groups.push_back(tensor.sym_size(d) / operand[d].max(1));
    within.push_back(2 * d + 1);
  }
  const Tensor sum =
      operand.empty() ? tensor.sum() : at::reshape_symint(tensor, groups).sum(within);
  return sum.to(saved.back().toScalarType());
}

Stack with_batch_in_front(
    const char* op,
    const BatchedCall& call,
    std::initializer_list<std::pair<const char*, size_t>> formats,
    std::optional<size_t> size,
    std::initializer_list<size_t> operands) {
  Stack args = call.args;
  args[0] = call.with_batch_at(0, 0);
  int64_t rank = args[0].toTensor().dim() - 1; // logical
  for (const auto& [name, format] : formats) {
    if (const auto tag = as_text(args[format])) {
      rank = parse_format(op, name, *tag).rank();
      args[format] = batched_tag(op, name, *tag);
    }
  }
  if (size && !args[*size].isNone()) {
    auto sizes = args[*size].toSymIntVector();
    sizes.insert(sizes.begin(), call.batch);
    args[*size] = std::move(sizes);
  }
  for (const size_t argument : operands) {
    if (!args[argument].isTensor())
      continue;
    Tensor& operand = args[argument].toTensor();
    if (call.batched(argument))
      operand = call.with_batch_at(argument, 0);
    else if (operand.dim() > 0)
      operand = operand.unsqueeze(0);
    if (call.batched(argument) && operand.dim() == 1) {
      std::vector<c10::SymInt> sizes(rank + 1, 1);
      sizes[0] = call.batch;
      operand = at::reshape_symint(operand, sizes);
    }
  }
  return args;
}

namespace {

// Positions of the arguments in the schema.
namespace backward_arg {
enum {
  grad,
  size,
  dst_format,
  src_format,
  dtype,
  scale,
  dst_scale,
  scale_value,
  dst_scale_value,
  algorithm,
  count
};
}

// A call of reorder with what its arguments imply: the logical size, the type, and the format of
// dst, which is none where dst keeps the strides of src.
Stack completed(Stack args) {
  using namespace reorder_arg;
  const Tensor& tensor = args[src].toTensor();
  if (args[dtype].isNone())
    args[dtype] = as_ivalue(tensor.scalar_type());
  c10::SymIntArrayRef sizes = tensor.sym_sizes();
  SymSizes padded;
  if (const auto tag = as_text(args[src_format])) {
    const Format format = parse_format("reorder", "src_format", *tag);
    if (format.blocked()) {
      sizes = padded = reorder_detail::padded_sizes(format, sizes);
      if (args[dst_format].isNone())
        args[dst_format] = args[src_format];
    }
  }
  if (args[size].isNone())
    args[size] = sizes.vec();
  return args;
}

// ---- Of a completed call ----

// The type that sums over elements are computed in.
IValue sum_dtype(const Stack& args) {
  return as_ivalue(compute_dtype_of(
      args[reorder_arg::src].toTensor().scalar_type() == c10::kDouble ||
      args[reorder_arg::dtype].toScalarType() == c10::kDouble));
}

// The format of a contiguous tensor of the logical size. (A 0-D tensor has no format.)
IValue contiguous(const Stack& args) {
  const size_t rank = args[reorder_arg::size].toSymIntVector().size();
  return rank == 0 ? IValue() : contiguous_tag(rank);
}

// The format that the gradient of src gets.
IValue grad_format(const Stack& args) {
  const IValue& src_format = args[reorder_arg::src_format];
  if (args[reorder_arg::dst_format].isNone() || !src_format.isNone())
    return src_format;
  const auto order = memory_format(args[reorder_arg::src].toTensor());
  return order == at::MemoryFormat::ChannelsLast  ? "acdb"
      : order == at::MemoryFormat::ChannelsLast3d ? "acdeb"
                                                  : contiguous(args);
}

// From the format of dst to that of dst, with dst_scale alone.
Stack in_dst(const Tensor& from, const Stack& args) {
  using namespace reorder_arg;
  Stack call = without({scale, src_zero_point, dst_zero_point, accumulate}, args);
  call[src] = from;
  call[src_format] = call[dst_format];
  return call;
}

// beta as a scale: tensor and number. It may be 0, which only a tensor scale may be.
std::tuple<IValue, IValue> beta_as_scale(const Stack& args) {
  const double beta = args[reorder_arg::beta].toDouble();
  const float single = static_cast<float>(beta);
  if (single != 0 && std::isfinite(single))
    return {IValue(), beta};
  const auto options = args[reorder_arg::src].toTensor().options();
  return {at::full({}, beta, options.dtype(c10::kDouble)), 1.0};
}

// A call of reorder_backward, without the gradient of dst.
Stack backward(const Stack& args, IValue to_format, IValue to_dtype) {
  using namespace reorder_arg;
  return {
      IValue(),
      args[size],
      args[dst_format],
      std::move(to_format),
      std::move(to_dtype),
      args[scale],
      args[dst_scale],
      args[scale_value],
      args[dst_scale_value],
      args[algorithm]};
}

// Pullbacks. What they save starts with a call of reorder_backward; for a scale or zero point it
// ends with the operand's sizes and type.
Tensor pull_linear(const Tensor& grad, const Stack& saved) {
  Stack args(saved.begin(), saved.begin() + backward_arg::count);
  args[backward_arg::grad] = grad;
  return call<"torch_dnnl::reorder_backward">(std::move(args));
}

template <bool negative>
Tensor pull_shift(const Tensor& grad, const Stack& saved) {
  const Tensor sum = sum_to_saved_operand(pull_linear(grad, saved), saved);
  return negative ? sum.neg() : sum;
}

// The derivative by a scale is a product with what a second call, saved too, computes.
template <bool negative>
Tensor pull_scale(const Tensor& grad, const Stack& saved) {
  using namespace reorder_arg;
  const auto begin = saved.begin() + backward_arg::count;
  Stack second(begin, begin + count);
  if (second[accumulate].isTensor()) {
    Stack sum = without(operands, second);
    sum[src] = second[accumulate];
    sum[src_format] = saved[backward_arg::dst_format];
    second[accumulate] = call_reorder(std::move(sum));
  }
  const Tensor factor = call_reorder(std::move(second));
  const Tensor sum = sum_to_saved_operand(at::mul(pull_linear(grad, saved), factor), saved);
  return negative ? sum.neg() : sum;
}

Pullback pullback(size_t argument, const Stack& given) {
  using namespace reorder_arg;
  const Tensor& operand = given[argument].toTensor();
  const IValue operand_dtype = as_ivalue(operand.scalar_type());
  if (argument == src && given[src_format].isNone() && given[dst_format].isNone()) {
    Stack saved = backward(given, IValue(), operand_dtype); // the commonest call, in less time
    saved[backward_arg::size] = operand.sym_sizes().vec();
    return {pull_linear, std::move(saved)};
  }
  const Stack args = completed(given);
  const auto of_operand = [&](Pullback::Function apply, c10::ArrayRef<int> left_out) {
    const Stack call = without(left_out, args);
    return Pullback{apply, backward(call, contiguous(args), sum_dtype(args))};
  };
  // Saves a second call: from the format of src to a contiguous tensor, in the type of sums.
  const auto of_scale = [&](Pullback::Function apply, c10::ArrayRef<int> left_out) {
    Stack second = without(left_out, args);
    second[dst_format] = contiguous(args);
    second[dtype] = sum_dtype(args);
    Pullback result = of_operand(apply, {scale});
    result.saved.insert(result.saved.end(), second.begin(), second.end());
    return result;
  };
  Pullback result;
  switch (argument) {
    case src:
      return {pull_linear, backward(args, grad_format(args), operand_dtype)};
    case accumulate: {
      Stack saved = backward(args, args[dst_format], operand_dtype);
      std::tie(saved[backward_arg::scale], saved[backward_arg::scale_value]) = beta_as_scale(args);
      return {pull_linear, std::move(saved)};
    }
    case src_zero_point:
      result = of_operand(pull_shift<true>, {});
      break;
    case dst_zero_point:
      result = of_operand(pull_shift<false>, {scale, dst_scale});
      break;
    case scale:
      result = of_scale(pull_scale<false>, {scale, dst_scale, dst_zero_point, accumulate});
      break;
    case dst_scale:
      result = of_scale(pull_scale<true>, {dst_zero_point});
      break;
  }
  result.saved.emplace_back(operand.sym_sizes().vec());
  result.saved.push_back(operand_dtype);
  return result;
}

Tensor pushforward(size_t argument, const Tensor& tangent, const Stack& given) {
  using namespace reorder_arg;
  const Stack args = completed(given);
  Stack call;
  switch (argument) {
    case src:
      call = without({src_zero_point, dst_zero_point, accumulate}, args);
      break;
    case accumulate:
      call = in_dst(tangent, args);
      std::tie(call[scale], call[scale_value]) = beta_as_scale(args);
      return call_reorder(std::move(call));
    case dst_scale: {
      Stack unshifted = without({dst_zero_point}, args);
      unshifted[dtype] = sum_dtype(args);
      call = in_dst(call_reorder(std::move(unshifted)), args);
      call[scale] = at::neg(tangent);
      return call_reorder(std::move(call));
    }
    case scale:
      call = without({dst_zero_point, accumulate}, args);
      break;
    case src_zero_point:
      call = without({dst_zero_point, accumulate}, args);
      call[src] = at::zeros_like(args[src].toTensor());
      break;
    case dst_zero_point:
      call = without({scale, dst_scale, src_zero_point, accumulate}, args);
      call[src] = at::zeros_like(args[src].toTensor());
      break;
  }
  call[argument] = tangent;
  return call_reorder(std::move(call));
}

// src's logical sizes in a call of reorder_backward, where None is those of no dimension.
SymSizes sizes_of_src(const Stack& args) {
  const IValue& size = args[backward_arg::size];
  return size.isNone() ? SymSizes() : SymSizes(size.toSymIntVector());
}

// reorder_backward's call as the reorder that it is. Its tensors are in the same places.
static_assert(reorder_arg::src == int(backward_arg::grad));
static_assert(reorder_arg::scale == int(backward_arg::scale));
static_assert(reorder_arg::dst_scale == int(backward_arg::dst_scale));

Stack as_reorder(const Stack& args) {
  const BackwardFormats formats = backward_formats(
      as_text(args[backward_arg::dst_format]),
      as_text(args[backward_arg::src_format]),
      sizes_of_src(args).size());
  Stack call = plain_call(
      args[backward_arg::grad].toTensor(),
      args[backward_arg::dtype],
      args[backward_arg::algorithm]);
  call[reorder_arg::dst_format] = as_ivalue(formats.to);
  call[reorder_arg::src_format] = as_ivalue(formats.from);
  call[reorder_arg::size] = args[backward_arg::size];
  call[reorder_arg::scale] = args[backward_arg::scale];
  call[reorder_arg::dst_scale] = args[backward_arg::dst_scale];
  call[reorder_arg::scale_value] = args[backward_arg::scale_value];
  call[reorder_arg::dst_scale_value] = args[backward_arg::dst_scale_value];
  return call;
}

const Derivatives forward_derivatives{pullback, pushforward};
const Derivatives backward_derivatives{
    [](size_t argument, const Stack& args) { return pullback(argument, as_reorder(args)); },
    [](size_t argument, const Tensor& tangent, const Stack& args) {
      return pushforward(argument, tangent, as_reorder(args));
    }};

Tensor batch_reorder(const BatchedCall& call) {
  using namespace reorder_arg;
  Stack args = with_batch_in_front(
      "reorder",
      call,
      {{"src_format", src_format}, {"dst_format", dst_format}},
      size,
      {scale, dst_scale, src_zero_point, dst_zero_point});
  if (args[accumulate].isTensor())
    args[accumulate] = call.with_batch_at(accumulate, 0);
  return call_reorder(std::move(args));
}

Tensor batch_reorder_backward(const BatchedCall& call) {
  using namespace backward_arg;
  BatchedCall with_sizes = call;
  with_sizes.args[size] = c10::SymIntArrayRef(sizes_of_src(call.args));
  return torch_dnnl::call<"torch_dnnl::reorder_backward">(with_batch_in_front(
      "reorder_backward",
      with_sizes,
      {{"src_format", src_format}, {"dst_format", dst_format}},
      size,
      {scale, dst_scale}));
}

using Ints = std::vector<int64_t>;

std::tuple<Ints, Ints, Ints> parsed_format(std::string_view tag) {
  const Format format = parse_format("parse", "tag", tag);
  std::tuple<Ints, Ints, Ints> parsed;
  auto& [outer, dims, sizes] = parsed;
  outer.assign(format.outer.begin(), format.outer.end());
  for (const Format::Block& block : format.inner) {
    dims.push_back(block.dim);
    sizes.push_back(block.size);
  }
  return parsed;
}

TORCH_LIBRARY_IMPL(torch_dnnl, CompositeImplicitAutograd, m) {
  m.impl("parse_format", parsed_format);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Meta, m) {
  ReorderOnDevice<Meta>::register_in(m);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Autograd, m) {
  m.impl("reorder", differentiable(forward_derivatives));
  m.impl("reorder_backward", differentiable(backward_derivatives));
}

TORCH_LIBRARY_IMPL(torch_dnnl, FuncTorchBatched, m) {
  m.impl("reorder", batched<batch_reorder>());
  m.impl("reorder_backward", batched<batch_reorder_backward>());
}

} // namespace
} // namespace torch_dnnl
