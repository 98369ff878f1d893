// Registration of fake_reorder and fake_reorder_backward: shapes, derivatives, batching.
//
// The derivatives are those of learned step size quantization: rounding counts as the identity,
// and what saturated is a constant. With M for the mask, and w, q, t, z as in fake_reorder.h,
//   d result / d src = M    d result / d t = (q - z) - M w    d result / d z = (M - 1) t
// Definition: Esser et al., Learned Step Size Quantization, ICLR 2020.
#include "reorder/fake_reorder.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include "reorder/derivative_calls.h"

namespace torch_dnnl {
namespace {

using at::Tensor;
using c10::IValue;

// Positions of the arguments in the schema, and of the mask after them.
namespace arg {
enum {
  src,
  dtype,
  dst_format,
  dst_scale,
  dst_zero_point,
  dst_scale_value,
  dst_zero_point_value,
  round_before_zero_point,
  batch_dims,
  step_gradient,
  algorithm,
  count,
  mask = count
};
}

// `rest`: the arguments after the gradient, in the order of the schema.
Tensor masked(const Tensor& tensor, const Stack& rest) {
  return call<"torch_dnnl::fake_reorder_backward">({tensor, rest[0], rest[1], rest[2]});
}

// What fake_reorder_backward takes after the gradient, of a call of fake_reorder.
Stack mask_of(const Stack& args) {
  return {args[arg::mask], args[arg::dst_format], args[arg::algorithm]};
}

// The derivative by dst_scale, in the type of sums.
Tensor step_gradient(const Stack& args) {
  Stack fake(args.begin(), args.begin() + arg::count);
  fake[arg::step_gradient] = true;
  return call<"torch_dnnl::fake_reorder">(std::move(fake));
}

// A call of reorder that multiplies by t: the result, but not its derivative by dst_scale, has it
// as a factor.
Stack times_scale(const Tensor& tensor, const Stack& args, IValue dtype) {
  Stack call = plain_call(tensor, std::move(dtype), args[arg::algorithm]);
  if (!args[arg::step_gradient].toBool()) {
    call[reorder_arg::scale] = args[arg::dst_scale];
    call[reorder_arg::scale_value] = args[arg::dst_scale_value];
  }
  return call;
}

IValue sum_dtype(const Tensor& src) {
  return as_ivalue(compute_dtype_of(src.scalar_type() == c10::kDouble));
}

// The gradient of the step counts as constant in all but the zero point.
bool is_constant(size_t argument, const Stack& args) {
  return argument != arg::dst_zero_point && args[arg::step_gradient].toBool();
}

// Pullbacks. Those of scale and zero point save the call, its mask, and the operand's sizes and
// type.
Tensor pull_src(const Tensor& grad, const Stack& saved) {
  return masked(grad, saved);
}

Tensor pull_dst_scale(const Tensor& grad, const Stack& saved) {
  return sum_to_saved_operand(at::mul(grad, step_gradient(saved)), saved);
}

Tensor pull_dst_zero_point(const Tensor& grad, const Stack& saved) {
  const Tensor inside = masked(grad, mask_of(saved));
  const auto dtype = sum_dtype(saved[arg::src].toTensor());
  return sum_to_saved_operand(
      call_reorder(times_scale(at::sub(inside, grad), saved, dtype)), saved);
}

Pullback pullback(size_t argument, const Stack& args) {
  if (is_constant(argument, args))
    return {};
  if (argument == arg::src)
    return {pull_src, mask_of(args)};
  const Tensor& operand = args[argument].toTensor();
  Stack saved = args;
  saved.emplace_back(operand.sym_sizes().vec());
  saved.push_back(as_ivalue(operand.scalar_type()));
  return {argument == arg::dst_scale ? pull_dst_scale : pull_dst_zero_point, std::move(saved)};
}

Tensor pushforward(size_t argument, const Tensor& tangent, const Stack& args) {
  if (is_constant(argument, args))
    return {};
  if (argument == arg::src)
    return masked(tangent, mask_of(args));
  const Tensor& src = args[arg::src].toTensor();
  const bool is_step_gradient = args[arg::step_gradient].toBool();
  const auto dtype = is_step_gradient ? sum_dtype(src) : as_ivalue(src.scalar_type());
  if (argument == arg::dst_scale) {
    Stack call = plain_call(step_gradient(args), dtype, args[arg::algorithm]);
    call[reorder_arg::scale] = tangent;
    return call_reorder(std::move(call));
  }
  Stack call = times_scale(at::zeros_like(src), args, dtype);
  call[reorder_arg::src_zero_point] = tangent;
  const Tensor shift = call_reorder(std::move(call));
  return at::sub(shift, masked(shift, mask_of(args)));
}

const Derivatives forward_derivatives{pullback, pushforward};
// A linear map that is its own adjoint.
const Derivatives backward_derivatives{
    [](size_t argument, const Stack& args) {
      return argument == 0 ? Pullback{pull_src, Stack(args.begin() + 1, args.end())} : Pullback{};
    },
    [](size_t argument, const Tensor& tangent, const Stack& args) {
      return argument == 0 ? masked(tangent, Stack(args.begin() + 1, args.end())) : Tensor();
    }};

// The batch becomes the first dimension of the mask too.
Stack batch_fake_reorder(const BatchedCall& call) {
  Stack args = with_batch_in_front(
      "fake_reorder",
      call,
      {{"dst_format", arg::dst_format}},
      /*size=*/std::nullopt,
      {arg::dst_scale, arg::dst_zero_point});
  args[arg::batch_dims] = args[arg::batch_dims].toInt() + 1;
  return call_outputs<"torch_dnnl::fake_reorder">(std::move(args));
}

Tensor batch_fake_reorder_backward(const BatchedCall& call) {
  Stack args =
      with_batch_in_front("fake_reorder", call, {{"format", 2}}, /*size=*/std::nullopt, {});
  args[1] = call.with_batch_at(1, 0);
  return torch_dnnl::call<"torch_dnnl::fake_reorder_backward">(std::move(args));
}

TORCH_LIBRARY_IMPL(torch_dnnl, Autograd, m) {
  m.impl("fake_reorder", differentiable(forward_derivatives));
  m.impl("fake_reorder_backward", differentiable(backward_derivatives));
}

TORCH_LIBRARY_IMPL(torch_dnnl, FuncTorchBatched, m) {
  m.impl("fake_reorder", batched(batch_fake_reorder));
  m.impl("fake_reorder_backward", batched<batch_fake_reorder_backward>());
}

} // namespace
} // namespace torch_dnnl
