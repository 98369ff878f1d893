// The problem of fake quantization: quantizing and dequantizing in one pass.
//
// With scale t and zero point z of the destination, and q for the rounded and saturated values,
//   w = src / t    q = quantized(w + z)    result = (q - z) t
// A mask has a bit for every element, 1 where nothing saturated. It lies as the result does in
// memory, and its bits are in that order, from the lowest of each byte; the first dimensions may
// be kept apart, so that a batch of masks is one mask each.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

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

namespace fake_reorder_detail {

using reorder_detail::Sides;
using reorder_detail::SymSizes;

// A tag that was left out; a tensor without dimensions has none.
inline std::optional<std::string>
plain_format(const at::Tensor& tensor, std::optional<std::string_view> format) {
  if (format || tensor.dim() == 0) {
    return std::optional<std::string>(format);
  }
  return contiguous_tag(tensor.dim());
}

// Checks what both operators share.
inline Sides check(const at::Tensor& src, const ReorderOptions& options) {
  TORCH_CHECK_TYPE(
      contains(FloatingTypes{}, src.scalar_type()),
      options.names.op,
      ": expected ",
      options.names.src,
      " to be float64, float32, bfloat16 or float16, got ",
      dtype_name(src.scalar_type()));
  Sides sides = check_reorder(src, options);
  TORCH_CHECK_VALUE(
      !reorder_detail::is_blocked(sides.dst),
      options.names.op,
      ": expected ",
      options.names.dst_format,
      " to be a plain tag, got \"",
      options.dst_format.value_or(""),
      "\"");
  return sides;
}

// Of a result of this size and format.
inline SymSizes mask_sizes(const Sides& sides, int64_t batch_dims) {
  SymSizes sizes;
  c10::SymInt rest = 1;
  for (int64_t i = 0; i < static_cast<int64_t>(sides.size.size()); i++) {
    const c10::SymInt& size = sides.size[sides.dst->outer[i]];
    if (i < batch_dims) {
      sizes.push_back(size);
    } else {
      rest = rest * size;
    }
  }
  // With a byte of zeros at the end: tracing would make a special case of a size of 1.
  sizes.push_back((rest + 7) / 8 + 1);
  return sizes;
}

// The problem of `reorder`, whose destination has any type, and a mask for it.
inline FakeReorderProblem problem(
    const at::Tensor& src,
    const at::Tensor& dst,
    const at::Tensor& mask,
    const ReorderOptions& options) {
  FakeReorderProblem p{};
  p.reorder = reorder_problem(src, dst, options);
  p.reorder.compute_dtype = options.compute_dtype;
  p.reorder.src_dtype = src.scalar_type();
  p.reorder.dst_dtype = dst.scalar_type();
  p.row_bytes = mask.size(-1);
  p.rows = 1;
  for (int64_t d = 0; d < mask.dim() - 1; d++) {
    p.rows *= mask.size(d);
  }
  p.row_elements = dst.numel() / std::max<int64_t>(p.rows, 1);
  return p;
}

} // namespace fake_reorder_detail

struct FakeReorderOutputs {
  at::Tensor values, mask;
};

// Checks a call and returns its empty outputs.
inline FakeReorderOutputs
fake_reorder_outputs(const at::Tensor& src, const FakeReorderOptions& options) {
  using namespace fake_reorder_detail;
  TORCH_CHECK_VALUE(
      contains(FakeReorderTypes{}, *options.reorder.dtype),
      "fake_reorder: expected dtype to be float8_e4m3fn, float8_e5m2, int32, int8 or uint8, got ",
      dtype_name(*options.reorder.dtype));
  const Sides sides = check(src, options.reorder);
  TORCH_CHECK_VALUE(
      options.batch_dims >= 0 && options.batch_dims <= src.dim(),
      "fake_reorder: expected batch_dims to be from 0 to the ",
      src.dim(),
      " dimensions of src, got ",
      options.batch_dims);
  const auto dtype = options.step_gradient ? options.reorder.compute_dtype : src.scalar_type();
  return {
      reorder_detail::empty_destination(src, sides, dtype),
      empty(mask_sizes(sides, options.batch_dims), src.options().dtype(c10::kByte))};
}

// The problem of a checked call.
inline FakeReorderProblem fake_reorder_problem(
    const at::Tensor& src,
    const FakeReorderOutputs& outputs,
    const FakeReorderOptions& options) {
  auto p = fake_reorder_detail::problem(src, outputs.values, outputs.mask, options.reorder);
  p.mask = outputs.mask.mutable_data_ptr<uint8_t>();
  p.dtype = *options.reorder.dtype;
  p.reorder.round_before_zero_point = options.reorder.round_before_zero_point &&
      c10::isIntegralType(p.dtype, /*includeBool=*/false);
  p.step_gradient = options.step_gradient;
  return p;
}

// Checks a call and returns its empty output.
inline at::Tensor fake_reorder_backward_output(
    const at::Tensor& grad,
    const at::Tensor& mask,
    const ReorderOptions& options) {
  using namespace fake_reorder_detail;
  const Sides sides = check(grad, options);
  const char* op = options.names.op;
  check_strided(op, "mask", mask);
  check_same_device(op, "mask", mask, "grad", grad);
  TORCH_CHECK_TYPE(
      mask.scalar_type() == c10::kByte,
      op,
      ": expected mask to be uint8, got ",
      dtype_name(mask.scalar_type()));
  TORCH_CHECK_VALUE(
      mask.dim() >= 1 && mask.dim() <= grad.dim() + 1,
      op,
      ": expected mask to have from 1 to ",
      grad.dim() + 1,
      " dimensions, got sizes ",
      mask.sym_sizes());
  reorder_detail::check_sizes(
      op, "mask", mask, "the bits of grad", mask_sizes(sides, mask.dim() - 1));
  return reorder_detail::empty_destination(grad, sides, grad.scalar_type());
}

// The problem of a checked call; `mask` is contiguous.
inline FakeReorderProblem fake_reorder_backward_problem(
    const at::Tensor& grad,
    const at::Tensor& mask,
    const at::Tensor& dst,
    const ReorderOptions& options) {
  auto p = fake_reorder_detail::problem(grad, dst, mask, options);
  p.saved_mask = mask.const_data_ptr<uint8_t>();
  return p;
}

// The operators' signatures, spelled once. `run` gets the call of either.
template <FakeReorderOutputs (*run)(const at::Tensor&, const FakeReorderOptions&)>
std::tuple<at::Tensor, at::Tensor> fake_reorder_kernel(
    const at::Tensor& src,
    c10::ScalarType dtype,
    std::optional<std::string_view> dst_format,
    const std::optional<at::Tensor>& dst_scale,
    const std::optional<at::Tensor>& dst_zero_point,
    double dst_scale_value,
    double dst_zero_point_value,
    bool round_before_zero_point,
    int64_t batch_dims,
    bool step_gradient) {
  ReorderOptions options{};
  options.names = fake_reorder_names;
  options.compute_dtype = compute_dtype_of(src.scalar_type() == c10::kDouble);
  options.dst_format = fake_reorder_detail::plain_format(src, dst_format);
  options.dtype = dtype;
  options.scale = {std::nullopt, 1};
  options.dst_scale = {dst_scale, dst_scale_value};
  options.src_zero_point = {std::nullopt, 0};
  options.dst_zero_point = {dst_zero_point, dst_zero_point_value};
  options.round_before_zero_point = round_before_zero_point;
  auto outputs = run(src, {std::move(options), batch_dims, step_gradient});
  return {std::move(outputs.values), std::move(outputs.mask)};
}

template <at::Tensor (*run)(const at::Tensor&, const at::Tensor&, const ReorderOptions&)>
at::Tensor fake_reorder_backward_kernel(
    const at::Tensor& grad,
    const at::Tensor& mask,
    std::optional<std::string_view> format) {
  ReorderOptions options{};
  options.names = fake_reorder_backward_names;
  options.compute_dtype = compute_dtype_of(grad.scalar_type() == c10::kDouble);
  options.dst_format = fake_reorder_detail::plain_format(grad, format);
  options.scale = options.dst_scale = {std::nullopt, 1};
  options.src_zero_point = options.dst_zero_point = {std::nullopt, 0};
  return run(grad, mask, options);
}

// The operators of a device whose kernels are `quantize` and `mask`.
template <void (*quantize)(const FakeReorderProblem&), void (*mask)(const FakeReorderProblem&)>
struct FakeReorderOnDevice {
  static FakeReorderOutputs forward(const at::Tensor& src, const FakeReorderOptions& options) {
    const c10::DeviceGuard guard(src.device());
    auto outputs = fake_reorder_outputs(src, options);
    if (src.numel() > 0) {
      quantize(fake_reorder_problem(src, outputs, options));
    } else {
      outputs.mask.zero_();
    }
    return outputs;
  }

  static at::Tensor
  backward(const at::Tensor& grad, const at::Tensor& saved_mask, const ReorderOptions& options) {
    const c10::DeviceGuard guard(grad.device());
    at::Tensor dst = fake_reorder_backward_output(grad, saved_mask, options);
    if (grad.numel() > 0) {
      mask(fake_reorder_backward_problem(grad, saved_mask.contiguous(), dst, options));
    }
    return dst;
  }

  static void register_in(torch::Library& m) {
    m.impl("fake_reorder", fake_reorder_kernel<forward>);
    m.impl("fake_reorder_backward", fake_reorder_backward_kernel<backward>);
  }
};

} // namespace torch_dnnl
