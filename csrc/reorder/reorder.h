// What a checked call of reorder (arguments.h) becomes: its empty output, for Meta and for devices,
// and the Problem that kernels get; and the operators' signatures.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "core/torch/empty.h"
#include "reorder/arguments.h"
#include "reorder/problem.h"

namespace torch_dnnl {
namespace reorder_detail {

// The digits of a tensor's dimensions.
inline void set_layout(
    const std::optional<Format>& format,
    const at::Tensor& tensor,
    ReorderProblem::Layout& layout) {
  layout.digits = tensor.dim();
  for (int64_t d = 0; d < tensor.dim(); d++)
    layout.digit[d] = {d, tensor.size(d), 1, tensor.stride(d), 0};
  if (format.has_value() && format->blocked()) {
    c10::SmallVector<int64_t, kMaxDims> step(format->rank(), 1);
    for (int64_t d = tensor.dim() - 1; d >= 0; d--) {
      const int64_t inner = d - format->rank();
      ReorderProblem::Digit& digit = layout.digit[d];
      digit.dim = inner < 0 ? format->outer[d] : format->inner[inner].dim;
      digit.step = step[digit.dim];
      step[digit.dim] *= digit.extent;
    }
  }
}

inline void set_operand(ReorderProblem& p, int array, const ReorderOptions& options) {
  const ReorderOperand& from = options.operand[array];
  ReorderProblem::Operand& operand = p.operand[array];
  operand.present = from.tensor.has_value() || from.number != kNeutral[array];
  operand.number = from.number;
  if (!from.tensor)
    return;
  operand.data = from.tensor->const_data_ptr();
  operand.dtype = from.tensor->scalar_type();
  for (int64_t d = 0; d < p.dims; d++) {
    operand.group[d] = from.tensor->dim() == 0 ? 1 : p.size[d] / from.tensor->size(d);
    operand.stride[d] = from.tensor->dim() == 0 ? 0 : from.tensor->stride(d);
  }
}

inline bool is_integer(c10::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/false);
}

// Whether every element stays in its place, and arrays that go with them are not there: then the
// dimensions mean nothing. It is the commonest call, and kernels find this out in more time than a
// small tensor takes.
inline bool is_one_line(const ReorderArguments& call, const at::Tensor& dst) {
  const auto& operands = call.options.operand;
  return call.src.dim() > 0 && !call.src_format && !call.dst_format && !call.options.accumulate &&
      std::none_of(
             std::begin(operands),
             std::end(operands),
             [](const ReorderOperand& operand) { return operand.tensor.has_value(); }) &&
      call.src.is_non_overlapping_and_dense() && call.src.strides() == dst.strides();
}

// The layouts of src, of dst and, along the digits of dst, of accumulate.
inline void set_layouts(ReorderProblem& p, const ReorderArguments& call, const at::Tensor& dst) {
  set_layout(call.src_format, call.src, p.src_layout);
  set_layout(call.dst_format, dst, p.dst_layout);
  if (call.options.accumulate)
    for (int64_t d = 0; d < dst.dim(); d++)
      p.dst_layout.digit[d].accumulate_stride = call.options.accumulate->stride(d);
  std::stable_sort(
      p.dst_layout.digit, p.dst_layout.digit + dst.dim(), [](const auto& a, const auto& b) {
        return a.stride > b.stride;
      });
}

// The problem as the arguments say it.
inline ReorderProblem
unreduced_problem(const ReorderArguments& call, const at::Tensor& dst, bool as_one_line = false) {
  const at::Tensor& src = call.src;
  const ReorderOptions& options = call.options;
  ReorderProblem p{};
  if (as_one_line) {
    p.dims = p.src_layout.digits = p.dst_layout.digits = 1;
    p.size[0] = src.numel();
    p.src_layout.digit[0] = p.dst_layout.digit[0] = {0, p.size[0], 1, 1, 0};
  } else {
    p.dims = call.size.size();
    for (int64_t d = 0; d < p.dims; d++)
      p.size[d] = call.size[d].expect_int();
    set_layouts(p, call, dst);
  }
  if (options.accumulate) {
    ReorderProblem::Operand& accumulate = p.operand[reorder_arrays::kAccumulate];
    accumulate.present = true;
    accumulate.dtype = options.accumulate->scalar_type();
    accumulate.data = options.accumulate->const_data_ptr();
  }
  for (int array = 0; array < reorder_arrays::kAccumulate; array++)
    set_operand(p, array, options);

  p.src_dtype = src.scalar_type();
  p.dst_dtype = dst.scalar_type();
  p.compute_dtype = options.compute_dtype;
  p.src = src.const_data_ptr();
  p.dst = dst.mutable_data_ptr();
  p.beta = options.beta;
  p.round_before_zero_point = options.round_before_zero_point && is_integer(call.dtype);
  return p;
}

} // namespace reorder_detail

// The empty output of a call, as dst_format says or, without one, with src's strides.
inline at::Tensor reorder_output(const ReorderArguments& call, c10::ScalarType dtype) {
  const at::Tensor& src = call.src;
  const auto options = src.options().dtype(dtype);
  if (!call.dst_format) {
    // What empty_like does, except that on meta tensors it makes up strides along sizes of 1.
    return src.unsafeGetTensorImpl()->is_non_overlapping_and_dense_or_false()
        ? empty_strided(src.sym_sizes(), src.sym_strides(), options)
        : at::empty_like(src, options, at::MemoryFormat::Preserve);
  }
  if (call.is_dst_blocked())
    return empty(call.dst_size, options);
  const auto& order = call.dst_format->outer;
  SymSizes strides(call.size.size());
  c10::SymInt stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); dim++) {
    strides[*dim] = stride;
    stride = stride * call.size[*dim].max(1);
  }
  return empty_strided(call.size, strides, options);
}

// The problem of a call with the output `dst`. What needs no arithmetic is converted exactly, or
// moved as bits.
inline ReorderProblem reorder_problem(const ReorderArguments& call, const at::Tensor& dst) {
  using reorder_detail::is_integer;
  ReorderProblem p =
      reorder_detail::unreduced_problem(call, dst, reorder_detail::is_one_line(call, dst));
  const auto is_present = [](const ReorderProblem::Operand& operand) { return operand.present; };
  if (std::any_of(std::begin(p.operand), std::end(p.operand), is_present))
    return p;
  // float8_e5m2 is not copied as bits, since its infinities saturate.
  const bool copy = p.src_dtype == p.dst_dtype && p.src_dtype != c10::kFloat8_e5m2;
  if (copy || (is_integer(p.src_dtype) && is_integer(p.dst_dtype)))
    p.compute_dtype = c10::kLong;
  if (copy) {
    const int64_t size = call.src.element_size();
    p.src_dtype = p.dst_dtype = size == 8 ? c10::kLong
        : size == 4                       ? c10::kInt
        : size == 2                       ? c10::kShort
                                          : c10::kByte;
  }
  return p;
}

// The formats of the reorder that reorder_backward is: from dst_format, where the gradient of the
// output comes from, to src_format. Without a src_format, the result has the layout of the
// gradient if the forward kept its source's, else it is contiguous.
struct BackwardFormats {
  std::optional<std::string> from, to;
};

inline BackwardFormats backward_formats(
    std::optional<std::string_view> dst_format,
    std::optional<std::string_view> src_format,
    int64_t rank) {
  if (!dst_format && src_format && src_format->find_first_of("0123456789") != std::string::npos)
    dst_format = src_format;
  BackwardFormats formats{
      std::optional<std::string>(dst_format), std::optional<std::string>(src_format)};
  if (dst_format && !src_format)
    formats.to = contiguous_tag(rank);
  return formats;
}

inline c10::ScalarType compute_dtype_of(bool is_double) {
  return is_double ? c10::kDouble : c10::kFloat;
}

// The operators' signatures, spelled once: `run` gets the call.
template <at::Tensor (*run)(const at::Tensor&, const ReorderOptions&)>
at::Tensor reorder_kernel(
    const at::Tensor& src,
    std::optional<std::string_view> dst_format,
    std::optional<std::string_view> src_format,
    at::OptionalSymIntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& dst_scale,
    const std::optional<at::Tensor>& src_zero_point,
    const std::optional<at::Tensor>& dst_zero_point,
    const std::optional<at::Tensor>& accumulate,
    double scale_value,
    double dst_scale_value,
    double src_zero_point_value,
    double dst_zero_point_value,
    double beta,
    bool round_before_zero_point,
    std::string_view algorithm) {
  return run(
      src,
      {reorder_names,
       compute_dtype_of(src.scalar_type() == c10::kDouble),
       dst_format,
       src_format,
       size,
       dtype,
       {{scale, scale_value},
        {dst_scale, dst_scale_value},
        {src_zero_point, src_zero_point_value},
        {dst_zero_point, dst_zero_point_value}},
       accumulate,
       beta,
       round_before_zero_point,
       algorithm});
}

template <at::Tensor (*run)(const at::Tensor&, const ReorderOptions&)>
at::Tensor reorder_backward_kernel(
    const at::Tensor& grad,
    at::OptionalSymIntArrayRef optional_size,
    std::optional<std::string_view> dst_format,
    std::optional<std::string_view> src_format,
    std::optional<c10::ScalarType> dtype,
    const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& dst_scale,
    double scale_value,
    double dst_scale_value,
    std::string_view algorithm) {
  for (const auto type : {grad.scalar_type(), dtype.value_or(grad.scalar_type())}) {
    TORCH_CHECK_TYPE(
        contains(ReorderFloatingTypes{}, type),
        "reorder_backward: expected grad and dtype to be of floating types, got ",
        dtype_name(grad.scalar_type()),
        " and ",
        dtype_name(dtype.value_or(grad.scalar_type())));
  }
  const c10::SymIntArrayRef size = optional_size.value_or(c10::SymIntArrayRef());
  TORCH_CHECK_VALUE(
      size.size() <= kMaxDims, // as many as tags have letters for
      "reorder_backward: expected size to have at most ",
      kMaxDims,
      " entries, got ",
      size.size());
  const BackwardFormats formats = backward_formats(dst_format, src_format, size.size());
  return run(
      grad,
      {reorder_backward_names,
       compute_dtype_of(grad.scalar_type() == c10::kDouble || dtype == c10::kDouble),
       formats.to,
       formats.from,
       size,
       dtype,
       {{scale, scale_value}, {dst_scale, dst_scale_value}, {}, {}},
       /*accumulate=*/{},
       /*beta=*/1,
       /*round_before_zero_point=*/false,
       algorithm});
}

} // namespace torch_dnnl
