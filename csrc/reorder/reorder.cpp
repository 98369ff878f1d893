// Registration of reorder and reorder_backward: shapes, derivatives, batching.
//
// For a floating result, with scales s and t, zero points z and z', and y for accumulate,
//   dst = w + z'    w = v / t    v = s (src - z) + beta y
// and every derivative is made of reorders again: those of the gradient go from the format of dst
// to the one where it is needed. reorder_backward is itself such a reorder.
#include "reorder/reorder.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "reorder/derivative_calls.h"

namespace torch_dnnl {

using at::Tensor;
using c10::IValue;

Stack plain_call(
    const Tensor& src,
    IValue dst_format,
    IValue src_format,
    IValue size,
    IValue dtype,
    IValue algorithm) {
  Stack args(reorder_arg::count);
  args[reorder_arg::src] = src;
  args[reorder_arg::dst_format] = std::move(dst_format);
  args[reorder_arg::src_format] = std::move(src_format);
  args[reorder_arg::size] = std::move(size);
  args[reorder_arg::dtype] = std::move(dtype);
  args[reorder_arg::scale_value] = args[reorder_arg::dst_scale_value] = 1.0;
  args[reorder_arg::src_zero_point_value] = args[reorder_arg::dst_zero_point_value] = 0.0;
  args[reorder_arg::beta] = 1.0;
  args[reorder_arg::round_before_zero_point] = false;
  args[reorder_arg::algorithm] = std::move(algorithm);
  return args;
}

Tensor sum_to_operand(const Tensor& tensor, c10::SymIntArrayRef operand, c10::ScalarType dtype) {
  std::vector<c10::SymInt> groups;
  std::vector<int64_t> within;
  for (size_t d = 0; d < operand.size(); d++) {
    groups.push_back(operand[d]);
    groups.push_back(tensor.sym_size(d) / operand[d].max(1));
    within.push_back(2 * d + 1);
  }
  const Tensor sum =
      operand.empty() ? tensor.sum() : at::reshape_symint(tensor, groups).sum(within);
  return sum.to(dtype);
}

Tensor sum_to_saved_operand(const Tensor& tensor, const Stack& saved) {
  const auto sizes = saved[saved.size() - 2].toSymIntVector();
  return sum_to_operand(tensor, sizes, saved.back().toScalarType());
}

Tensor operand_with_batch(const BatchedCall& call, size_t argument, int64_t rank) {
  const Tensor& operand = call.args[argument].toTensor();
  if (!call.batched(argument))
    return operand.dim() == 0 ? operand : operand.unsqueeze(0);
  const Tensor batch_first = call.with_batch_at(argument, 0);
  if (batch_first.dim() > 1)
    return batch_first;
  std::vector<c10::SymInt> sizes(rank + 1, 1);
  sizes[0] = call.batch;
  return at::reshape_symint(batch_first, sizes);
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

// A call of reorder, what its arguments imply, and the calls that its derivatives consist of.
struct ReorderCall {
  Stack args;
  IValue size;       // logical
  IValue dst_format; // none where dst keeps the strides of src
  IValue dtype;

  explicit ReorderCall(Stack arguments) : args(std::move(arguments)) {
    size = args[reorder_arg::size];
    dst_format = args[reorder_arg::dst_format];
    dtype = args[reorder_arg::dtype];
    if (dtype.isNone())
      dtype = as_ivalue(src().scalar_type());
    c10::SymIntArrayRef sizes = src().sym_sizes();
    SymSizes padded;
    if (const auto tag = as_text(args[reorder_arg::src_format])) {
      const Format format = parse_format("reorder", "src_format", *tag);
      if (format.blocked()) {
        sizes = padded = reorder_detail::padded_sizes(format, sizes);
        if (dst_format.isNone())
          dst_format = std::string(*tag);
      }
    }
    if (size.isNone())
      size = sizes.vec();
  }

  const Tensor& src() const {
    return args[reorder_arg::src].toTensor();
  }

  const IValue& algorithm() const {
    return args[reorder_arg::algorithm];
  }

  // The type that sums over elements are computed in.
  IValue sum_dtype() const {
    return as_ivalue(compute_dtype_of(
        src().scalar_type() == c10::kDouble || dtype.toScalarType() == c10::kDouble));
  }

  // The format of a contiguous tensor of the logical size. (A 0-D tensor has no format.)
  IValue contiguous() const {
    const size_t rank = size.toSymIntVector().size();
    return rank == 0 ? IValue() : contiguous_tag(rank);
  }

  // The format that the gradient of src gets.
  IValue grad_format() const {
    const IValue& src_format = args[reorder_arg::src_format];
    if (dst_format.isNone() || !src_format.isNone())
      return src_format;
    switch (src().suggest_memory_format()) {
      case at::MemoryFormat::ChannelsLast:
        return "acdb";
      case at::MemoryFormat::ChannelsLast3d:
        return "acdeb";
      default:
        return contiguous();
    }
  }

  // From the format of src to that of dst.
  Stack plain(const Tensor& from) const {
    return plain_call(
        from,
        args[reorder_arg::dst_format],
        args[reorder_arg::src_format],
        size,
        dtype,
        algorithm());
  }

  // From the format of dst to that of dst.
  Stack plain_in_dst(const Tensor& from) const {
    return plain_call(from, dst_format, dst_format, size, dtype, algorithm());
  }

  // From the format of src to a contiguous tensor, in the type of sums.
  Stack plain_for_sum() const {
    return plain_call(
        src(), contiguous(), args[reorder_arg::src_format], size, sum_dtype(), algorithm());
  }

  // `call` with some of the arguments of this one.
  Stack with(c10::ArrayRef<int> arguments, Stack call) const {
    for (const int argument : arguments)
      call[argument] = args[argument];
    return call;
  }

  // beta as a scale: tensor and number. It may be 0, which only a tensor scale may be.
  std::tuple<IValue, IValue> beta_as_scale() const {
    const double beta = args[reorder_arg::beta].toDouble();
    const float single = static_cast<float>(beta);
    if (single != 0 && std::isfinite(single))
      return {IValue(), beta};
    return {at::full({}, beta, src().options().dtype(c10::kDouble)), 1.0};
  }

  // A call of reorder_backward, without the gradient of dst and without `scale`.
  Stack backward_unscaled(IValue to_format, IValue to_dtype) const {
    return {
        IValue(),
        size,
        dst_format,
        std::move(to_format),
        std::move(to_dtype),
        IValue(),
        args[reorder_arg::dst_scale],
        1.0,
        args[reorder_arg::dst_scale_value],
        algorithm()};
  }

  // The same with `scale`.
  Stack backward(IValue to_format, IValue to_dtype) const {
    Stack result = backward_unscaled(std::move(to_format), std::move(to_dtype));
    result[backward_arg::scale] = args[reorder_arg::scale];
    result[backward_arg::scale_value] = args[reorder_arg::scale_value];
    return result;
  }
};

// The arguments that w depends on besides src.
constexpr int unshifted_arguments[] = {
    reorder_arg::scale,
    reorder_arg::scale_value,
    reorder_arg::dst_scale,
    reorder_arg::dst_scale_value,
    reorder_arg::src_zero_point,
    reorder_arg::src_zero_point_value,
    reorder_arg::accumulate,
    reorder_arg::beta};

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
  const auto second = saved.begin() + backward_arg::count;
  const ReorderCall call(Stack(second, second + reorder_arg::count));
  Stack args = call.args;
  if (args[reorder_arg::accumulate].isTensor()) {
    args[reorder_arg::accumulate] = call_reorder(plain_call(
        args[reorder_arg::accumulate].toTensor(),
        call.dst_format,
        saved[backward_arg::dst_format],
        call.size,
        call.dtype,
        call.algorithm()));
  }
  const Tensor factor = call_reorder(std::move(args));
  const Tensor sum = sum_to_saved_operand(at::mul(pull_linear(grad, saved), factor), saved);
  return negative ? sum.neg() : sum;
}

Pullback pullback(size_t argument, const Stack& args) {
  using namespace reorder_arg;
  const ReorderCall call(args);
  const Tensor& operand = args[argument].toTensor();
  const IValue operand_dtype = as_ivalue(operand.scalar_type());
  const auto of_operand = [&](Pullback::Function apply, Stack saved, const Stack& second = {}) {
    saved.insert(saved.end(), second.begin(), second.end());
    saved.emplace_back(operand.sym_sizes().vec());
    saved.push_back(operand_dtype);
    return Pullback{apply, std::move(saved)};
  };
  switch (argument) {
    case src:
      return {pull_linear, call.backward(call.grad_format(), operand_dtype)};
    case accumulate: {
      Stack saved = call.backward_unscaled(call.dst_format, operand_dtype);
      std::tie(saved[backward_arg::scale], saved[backward_arg::scale_value]) = call.beta_as_scale();
      return {pull_linear, std::move(saved)};
    }
    case src_zero_point:
      return of_operand(pull_shift<true>, call.backward(call.contiguous(), call.sum_dtype()));
    case dst_zero_point: {
      Stack saved = call.backward_unscaled(call.contiguous(), call.sum_dtype());
      saved[backward_arg::dst_scale] = IValue();
      saved[backward_arg::dst_scale_value] = 1.0;
      return of_operand(pull_shift<false>, std::move(saved));
    }
    case scale:
      return of_operand(
          pull_scale<false>,
          call.backward_unscaled(call.contiguous(), call.sum_dtype()),
          call.with({src_zero_point, src_zero_point_value}, call.plain_for_sum()));
    case dst_scale:
      return of_operand(
          pull_scale<true>,
          call.backward_unscaled(call.contiguous(), call.sum_dtype()),
          call.with(unshifted_arguments, call.plain_for_sum()));
  }
  return {};
}

Tensor pushforward(size_t argument, const Tensor& tangent, const Stack& args) {
  using namespace reorder_arg;
  const ReorderCall call(args);
  Stack result;
  switch (argument) {
    case src:
      result = call.with({scale, scale_value, dst_scale, dst_scale_value}, call.plain(tangent));
      break;
    case accumulate:
      result = call.with({dst_scale, dst_scale_value}, call.plain_in_dst(tangent));
      std::tie(result[scale], result[scale_value]) = call.beta_as_scale();
      break;
    case scale:
      result = call.with(
          {dst_scale, dst_scale_value, src_zero_point, src_zero_point_value},
          call.plain(call.src()));
      result[scale] = tangent;
      break;
    case src_zero_point:
      result = call.with(
          {scale, scale_value, dst_scale, dst_scale_value}, call.plain(at::zeros_like(call.src())));
      result[src_zero_point] = tangent;
      break;
    case dst_zero_point:
      result = call.plain(at::zeros_like(call.src()));
      result[dst_zero_point] = tangent;
      break;
    case dst_scale: {
      Stack unshifted = call.with(unshifted_arguments, call.plain(call.src()));
      unshifted[dtype] = call.sum_dtype();
      result = call.with(
          {dst_scale, dst_scale_value}, call.plain_in_dst(call_reorder(std::move(unshifted))));
      result[scale] = at::neg(tangent);
      break;
    }
  }
  return call_reorder(std::move(result));
}

// reorder_backward's call as the reorder that it is, and where its tensors are in that.
Stack as_reorder(const Stack& args) {
  const BackwardFormats formats = backward_formats(
      as_text(args[backward_arg::dst_format]),
      as_text(args[backward_arg::src_format]),
      args[backward_arg::size].toSymIntVector().size());
  Stack call = plain_call(
      args[backward_arg::grad].toTensor(),
      as_ivalue(formats.to),
      as_ivalue(formats.from),
      args[backward_arg::size],
      args[backward_arg::dtype],
      args[backward_arg::algorithm]);
  call[reorder_arg::scale] = args[backward_arg::scale];
  call[reorder_arg::dst_scale] = args[backward_arg::dst_scale];
  call[reorder_arg::scale_value] = args[backward_arg::scale_value];
  call[reorder_arg::dst_scale_value] = args[backward_arg::dst_scale_value];
  return call;
}

size_t as_reorder(size_t argument) {
  switch (argument) {
    case backward_arg::scale:
      return reorder_arg::scale;
    case backward_arg::dst_scale:
      return reorder_arg::dst_scale;
    default:
      return reorder_arg::src;
  }
}

const Derivatives forward_derivatives{pullback, pushforward};
const Derivatives backward_derivatives{
    [](size_t argument, const Stack& args) {
      return pullback(as_reorder(argument), as_reorder(args));
    },
    [](size_t argument, const Tensor& tangent, const Stack& args) {
      return pushforward(as_reorder(argument), tangent, as_reorder(args));
    }};

// The batch becomes the first dimension, outermost in memory: formats get a letter more, the size
// and the scales and zero points an entry.
Stack with_batch_in_front(
    const char* op,
    const BatchedCall& call,
    int dst_format,
    int src_format,
    int size,
    std::initializer_list<size_t> operands) {
  Stack args = call.args;
  args[0] = call.with_batch_at(0, 0);
  int64_t rank = args[0].toTensor().dim() - 1;
  if (const auto tag = as_text(args[src_format])) {
    rank = parse_format(op, "src_format", *tag).rank();
    args[src_format] = batched_tag(op, "src_format", *tag);
  }
  if (const auto tag = as_text(args[dst_format]))
    args[dst_format] = batched_tag(op, "dst_format", *tag);
  if (!args[size].isNone()) {
    auto sizes = args[size].toSymIntVector();
    rank = sizes.size();
    sizes.insert(sizes.begin(), call.batch);
    args[size] = std::move(sizes);
  }
  for (const size_t operand : operands)
    if (args[operand].isTensor())
      args[operand] = operand_with_batch(call, operand, rank);
  return args;
}

Tensor batch_reorder(const BatchedCall& call) {
  using namespace reorder_arg;
  Stack args = with_batch_in_front(
      "reorder",
      call,
      dst_format,
      src_format,
      size,
      {scale, dst_scale, src_zero_point, dst_zero_point});
  if (args[accumulate].isTensor())
    args[accumulate] = call.with_batch_at(accumulate, 0);
  return call_reorder(std::move(args));
}

Tensor batch_reorder_backward(const BatchedCall& call) {
  using namespace backward_arg;
  return torch_dnnl::call<"torch_dnnl::reorder_backward">(with_batch_in_front(
      "reorder_backward", call, dst_format, src_format, size, {scale, dst_scale}));
}

Tensor meta_output(const Tensor& src, const ReorderOptions& options) {
  return reorder_output(reorder_arguments(src, options));
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
  m.impl("reorder", reorder_kernel<meta_output>);
  m.impl("reorder_backward", reorder_backward_kernel<meta_output>);
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
