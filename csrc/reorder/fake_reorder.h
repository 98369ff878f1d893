// The problem of fake quantization: quantizing and dequantizing in one pass.
//
// With scale t and zero point z of the destination, and q for the rounded and saturated values,
//   w = src / t    q = quantized(w + z)    result = (q - z) t
// A mask has a bit for every element, 1 where nothing saturated. It lies as the result does in
// memory, and its bits are in that order, from the lowest of each byte; the first dimensions may
// be kept apart, so that a batch of masks is one mask each.
#pragma once

#include <algorithm>
#include <tuple>

#include "reorder/fake_reference.h"
#include "reorder/reorder.h"

namespace torch_dnnl {

inline constexpr ReorderNames fake_reorder_names{"fake_reorder", "src", "", "dst_format"};
inline constexpr ReorderNames fake_reorder_backward_names{
    "fake_reorder_backward",
    "grad",
    "",
    "format"};

struct FakeReorderOptions {
  ReorderOptions reorder; // to the quantized type
  int64_t batch_dims;
  bool step_gradient;
};

// A checked call of fake_reorder or of its backward.
struct FakeReorderArguments {
  ReorderArguments reorder;
  c10::ScalarType result_dtype;
  SymSizes mask_size;
};

namespace fake_reorder_detail {

// A tag that was left out; a tensor without dimensions has none.
inline std::optional<std::string>
plain_format(const at::Tensor& tensor, std::optional<std::string_view> format) {
  if (format || tensor.dim() == 0)
    return std::optional<std::string>(format);
  return contiguous_tag(tensor.dim());
}

// Reads and checks what both operators share.
inline FakeReorderArguments arguments(const at::Tensor& src, const ReorderOptions& options) {
  const ReorderNames& names = options.names;
  const bool is_floating = contains(FloatingTypes{}, src.scalar_type());
  const char* expected = "float64, float32, bfloat16 or float16";
  reorder_detail::check_type(is_floating, names.op, names.src, expected, src);
  FakeReorderArguments call{reorder_arguments(src, options), src.scalar_type(), {}};
  TORCH_CHECK_VALUE(
      !call.reorder.is_dst_blocked(),
      Expected(names.op) << names.dst_format << " to be a plain tag, got \""
                         << options.dst_format.value_or("") << "\"");
  return call;
}

// Of a result of this size and format.
inline SymSizes mask_sizes(const ReorderArguments& call, int64_t batch_dims) {
  SymSizes sizes;
  c10::SymInt rest = 1;
  for (int64_t i = 0; i < static_cast<int64_t>(call.size.size()); i++) {
    const c10::SymInt& size = call.size[call.dst_format->outer[i]];
    if (i < batch_dims)
      sizes.push_back(size);
    else
      rest = rest * size;
  }
  // With a byte of zeros at the end: tracing would make a special case of a size of 1.
  sizes.push_back((rest + 7) / 8 + 1);
  return sizes;
}

} // namespace fake_reorder_detail

// Reads and checks a call.
inline FakeReorderArguments
fake_reorder_arguments(const at::Tensor& src, const FakeReorderOptions& options) {
  TORCH_CHECK_VALUE(
      contains(FakeReorderTypes{}, *options.reorder.dtype),
      "fake_reorder: expected dtype to be float8_e4m3fn, float8_e5m2, int32, int8 or uint8, got ",
      dtype_name(*options.reorder.dtype));
  FakeReorderArguments call = fake_reorder_detail::arguments(src, options.reorder);
  TORCH_CHECK_VALUE(
      options.batch_dims >= 0 && options.batch_dims <= src.dim(),
      "fake_reorder: expected batch_dims to be from 0 to the ",
      src.dim(),
      " dimensions of src, got ",
      options.batch_dims);
  if (options.step_gradient)
    call.result_dtype = options.reorder.compute_dtype;
  call.mask_size = fake_reorder_detail::mask_sizes(call.reorder, options.batch_dims);
  return call;
}

// Reads and checks a call.
inline FakeReorderArguments fake_reorder_backward_arguments(
    const at::Tensor& grad,
    const at::Tensor& mask,
    const ReorderOptions& options) {
  FakeReorderArguments call = fake_reorder_detail::arguments(grad, options);
  const char* op = options.names.op;
  reorder_detail::check_type(mask.scalar_type() == c10::kByte, op, "mask", "uint8", mask);
  check_strided(op, "mask", mask);
  check_same_device(op, "mask", mask, "grad", grad);
  TORCH_CHECK_VALUE(
      mask.dim() >= 1 && mask.dim() <= grad.dim() + 1,
      Expected(op) << "mask to have from 1 to " << grad.dim() + 1 << " dimensions, got sizes "
                   << mask.sym_sizes());
  call.mask_size = fake_reorder_detail::mask_sizes(call.reorder, mask.dim() - 1);
  reorder_detail::check_sizes(op, "mask", mask, "the bits of grad", call.mask_size);
  return call;
}

// The problem of a call with this output and mask, without what only one operator has.
inline FakeReorderProblem fake_reorder_problem(
    const FakeReorderArguments& call,
    const at::Tensor& dst,
    const at::Tensor& mask) {
  FakeReorderProblem p{};
  p.reorder = reorder_detail::unreduced_problem(call.reorder, dst);
  p.dtype = call.reorder.dtype;
  p.row_bytes = mask.size(-1);
  p.rows = 1;
  for (int64_t d = 0; d < mask.dim() - 1; d++)
    p.rows *= mask.size(d);
  p.row_elements = dst.numel() / std::max<int64_t>(p.rows, 1);
  return p;
}

using FakeReorderOutputs = std::tuple<at::Tensor, at::Tensor>; // the values and their mask

// The operators' signatures, spelled once. `run` gets the call of either.
template <FakeReorderOutputs (*run)(const at::Tensor&, const FakeReorderOptions&)>
FakeReorderOutputs fake_reorder_kernel(
    const at::Tensor& src,
    c10::ScalarType dtype,
    std::optional<std::string_view> dst_format,
    const std::optional<at::Tensor>& dst_scale,
    const std::optional<at::Tensor>& dst_zero_point,
    double dst_scale_value,
    double dst_zero_point_value,
    bool round_before_zero_point,
    int64_t batch_dims,
    bool step_gradient,
    std::string_view algorithm) {
  const auto format = fake_reorder_detail::plain_format(src, dst_format);
  ReorderOptions options{
      fake_reorder_names, compute_dtype_of(src.scalar_type() == c10::kDouble), format};
  options.dtype = dtype;
  options.operand[reorder_arrays::kDstScale] = {dst_scale, dst_scale_value};
  options.operand[reorder_arrays::kDstZeroPoint] = {dst_zero_point, dst_zero_point_value};
  options.round_before_zero_point = round_before_zero_point;
  options.algorithm = algorithm;
  return run(src, {std::move(options), batch_dims, step_gradient});
}

template <at::Tensor (*run)(const at::Tensor&, const at::Tensor&, const ReorderOptions&)>
at::Tensor fake_reorder_backward_kernel(
    const at::Tensor& grad,
    const at::Tensor& mask,
    std::optional<std::string_view> dst_format,
    std::string_view algorithm) {
  const auto format = fake_reorder_detail::plain_format(grad, dst_format);
  ReorderOptions options{
      fake_reorder_backward_names, compute_dtype_of(grad.scalar_type() == c10::kDouble), format};
  options.algorithm = algorithm;
  return run(grad, mask, options);
}

} // namespace torch_dnnl
