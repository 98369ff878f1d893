// What the derivatives of reorder and fake_reorder are made of: calls of reorder, and what belongs
// to a scale or zero point.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
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
inline constexpr int operands[] = {scale, dst_scale, src_zero_point, dst_zero_point, accumulate};
} // namespace reorder_arg

inline at::Tensor call_reorder(Stack args) {
  return call<"torch_dnnl::reorder">(std::move(args));
}

// The call without these scales, zero points or accumulate.
Stack without(c10::ArrayRef<int> operands, Stack call);

// A reorder without any of them, and without formats.
Stack plain_call(const at::Tensor& src, c10::IValue dtype, c10::IValue algorithm);

inline c10::IValue as_ivalue(c10::ScalarType type) {
  return static_cast<int64_t>(type);
}

inline c10::IValue as_ivalue(const std::optional<std::string>& text) {
  return text ? c10::IValue(*text) : c10::IValue();
}

// The adjoint of spreading a scale or zero point over its groups of elements. `saved` ends with its
// sizes and its type.
at::Tensor sum_to_saved_operand(const at::Tensor& tensor, const Stack& saved);

inline std::optional<std::string_view> as_text(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toStringView());
}

// The arguments of a call with the batch as the first dimension, outermost in memory: of the first
// argument, of these formats, which get a letter more, of the size, and of these scales and zero
// points.
Stack with_batch_in_front(
    const char* op,
    const BatchedCall& call,
    std::initializer_list<std::pair<const char*, size_t>> formats,
    std::optional<size_t> size,
    std::initializer_list<size_t> operands);

} // namespace torch_dnnl
