// What the derivatives of reorder and fake_reorder are made of: calls of reorder, and what belongs
// to a scale or zero point.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/torch/autograd.h"
#include "core/torch/vmap.h"

namespace torch_dnnl {

// Positions of the arguments in reorder's schema.
namespace reorder_arg {
enum {
  src,
  dst_format,
  src_format,
  size,
  dtype,
  scale,
  dst_scale,
  src_zero_point,
  dst_zero_point,
  accumulate,
  scale_value,
  dst_scale_value,
  src_zero_point_value,
  dst_zero_point_value,
  beta,
  round_before_zero_point,
  algorithm,
  count
};
}

inline at::Tensor call_reorder(Stack args) {
  return call<"torch_dnnl::reorder">(std::move(args));
}

// The arguments of a reorder without scales, zero points and accumulate.
Stack plain_call(
    const at::Tensor& src,
    c10::IValue dst_format,
    c10::IValue src_format,
    c10::IValue size,
    c10::IValue dtype,
    c10::IValue algorithm);

inline c10::IValue as_ivalue(c10::ScalarType type) {
  return static_cast<int64_t>(type);
}

inline c10::IValue as_ivalue(const std::optional<std::string>& text) {
  return text ? c10::IValue(*text) : c10::IValue();
}

// The adjoint of spreading a scale or zero point of these sizes over its groups of elements.
at::Tensor
sum_to_operand(const at::Tensor& tensor, c10::SymIntArrayRef operand, c10::ScalarType dtype);

// The same with the sizes and the type with which `saved` ends.
at::Tensor sum_to_saved_operand(const at::Tensor& tensor, const Stack& saved);

inline std::optional<std::string_view> as_text(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toStringView());
}

// A scale or zero point of a call whose tensors of `rank` dimensions get the batch as their first.
at::Tensor operand_with_batch(const BatchedCall& call, size_t argument, int64_t rank);

} // namespace torch_dnnl
