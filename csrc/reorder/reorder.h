// The reorder problem: what the operators' arguments mean, whether they are valid, and what the
// result looks like. Meta, CPU, CUDA and backward calls all come through here.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "core/checks.h"
#include "core/dispatch.h"
#include "core/numeric.h"
#include "core/torch/empty.h"
#include "reorder/format.h"
#include "reorder/problem.h"

namespace torch_dnnl {

using ReorderTypes = TypeList<
    double,
    float,
    c10::BFloat16,
    c10::Half,
    c10::Float8_e4m3fn,
    c10::Float8_e5m2,
    int32_t,
    int8_t,
    uint8_t>;
using ReorderFloatingTypes =
    TypeList<double, float, c10::BFloat16, c10::Half, c10::Float8_e4m3fn, c10::Float8_e5m2>;
// What values are computed in. int64_t: they are only moved and converted, exactly.
using ReorderComputeTypes = TypeList<double, float, int64_t>;

// A scale or zero point: a tensor or, if there is none, a number.
struct ReorderOperand {
  std::optional<at::Tensor> tensor;
  double number;
};

// reorder_backward is a reorder too, with the arguments in other places; errors name them.
struct ReorderNames {
  const char *op, *src, *src_format, *dst_format;
};
inline constexpr ReorderNames reorder_names{"reorder", "src", "src_format", "dst_format"};
inline constexpr ReorderNames reorder_backward_names{
    "reorder_backward",
    "grad",
    "dst_format",
    "src_format"};

struct ReorderOptions {
  ReorderNames names;
  c10::ScalarType compute_dtype; // float64 or float32
  std::optional<std::string> dst_format, src_format;
  at::OptionalSymIntArrayRef size;
  std::optional<c10::ScalarType> dtype;
  ReorderOperand scale, dst_scale, src_zero_point, dst_zero_point;
  std::optional<at::Tensor> accumulate;
  double beta;
  bool round_before_zero_point;
};

namespace reorder_detail {

using SymSizes = c10::SmallVector<c10::SymInt, 6>;

// The formats, where given or implied, and the logical sizes.
struct Sides {
  std::optional<Format> src, dst;
  SymSizes size;
};

inline SymSizes physical_sizes(const Format& format, c10::SymIntArrayRef size) {
  SymSizes sizes;
  for (const int64_t dim : format.outer) {
    const int64_t block = format.block_of(dim);
    sizes.push_back(block == 1 ? size[dim] : (size[dim] + (block - 1)) / block);
  }
  for (const Format::Block& block : format.inner) {
    sizes.push_back(block.size);
  }
  return sizes;
}

// The logical sizes of a physical tensor, with the padding.
inline SymSizes padded_sizes(const Format& format, c10::SymIntArrayRef physical) {
  SymSizes sizes(format.rank());
  for (int64_t i = 0; i < format.rank(); i++) {
    const int64_t dim = format.outer[i];
    sizes[dim] = physical[i] * format.block_of(dim);
  }
  return sizes;
}

inline bool is_blocked(const std::optional<Format>& format) {
  return format.has_value() && format->blocked();
}

inline void check_sizes(
    const char* op,
    const char* argument,
    const at::Tensor& tensor,
    const char* like,
    c10::SymIntArrayRef sizes) {
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  for (size_t d = 0; same && d < sizes.size(); d++) {
    same = holds(tensor.sym_size(d).sym_eq(sizes[d]));
  }
  TORCH_CHECK_VALUE(
      same,
      op,
      ": expected ",
      argument,
      " to have the sizes of ",
      like,
      ", ",
      sizes,
      ", got ",
      tensor.sym_sizes());
}

// Checks src against src_format and size.
inline Sides check_sides(const at::Tensor& src, const ReorderOptions& options) {
  const auto& names = options.names;
  Sides sides;
  if (options.src_format) {
    sides.src = parse_format(names.op, names.src_format, *options.src_format);
  }
  if (options.dst_format) {
    sides.dst = parse_format(names.op, names.dst_format, *options.dst_format);
  }
  const bool blocked = is_blocked(sides.src);
  const int64_t rank = sides.src ? sides.src->rank() : src.dim();
  const int64_t physical_rank = rank + (blocked ? sides.src->inner.size() : 0);
  TORCH_CHECK_VALUE(
      src.dim() == physical_rank,
      names.op,
      ": expected ",
      names.src,
      " to be ",
      physical_rank,
      "-D, as ",
      names.src_format,
      " \"",
      options.src_format.value_or(""),
      "\" says, got ",
      src.dim(),
      "-D with sizes ",
      src.sym_sizes());
  TORCH_CHECK_VALUE(
      rank <= kMaxDims,
      names.op,
      ": expected ",
      names.src,
      " to have at most ",
      kMaxDims,
      " dimensions, got ",
      rank,
      "-D with sizes ",
      src.sym_sizes());
  TORCH_CHECK_VALUE(
      !sides.dst || sides.dst->rank() == rank,
      names.op,
      ": expected ",
      names.dst_format,
      " to have a letter for each of ",
      rank,
      " dimensions, got \"",
      options.dst_format.value_or(""),
      "\"");

  if (options.size) {
    TORCH_CHECK_VALUE(
        static_cast<int64_t>(options.size->size()) == rank,
        names.op,
        ": expected size to have one entry for each of ",
        rank,
        " dimensions, got ",
        *options.size);
    check_at_least(names.op, "size", *options.size, 0);
    sides.size.append(options.size->begin(), options.size->end());
  } else if (blocked) {
    sides.size = padded_sizes(*sides.src, src.sym_sizes());
  } else {
    sides.size.append(src.sym_sizes().begin(), src.sym_sizes().end());
  }
  if (blocked) {
    check_sizes(
        names.op,
        names.src,
        src,
        options.size ? "a tensor of that size and format" : "a whole number of blocks",
        physical_sizes(*sides.src, sides.size));
  } else if (options.size) {
    check_sizes(names.op, names.src, src, "size", sides.size);
  }
  if (!sides.dst && blocked) {
    sides.dst = sides.src;
  }
  return sides;
}

// A number as the kernel computes with it.
inline double computed(const ReorderOptions& options, double number) {
  return options.compute_dtype == c10::kDouble ? number : static_cast<float>(number);
}

inline bool is_present(const ReorderOperand& operand, double neutral) {
  return operand.tensor.has_value() || operand.number != neutral;
}

inline void check_operand(
    const ReorderOptions& options,
    const char* argument,
    const ReorderOperand& operand,
    double neutral,
    const at::Tensor& src,
    c10::SymIntArrayRef size) {
  const double number = computed(options, operand.number);
  check_finite(options.names.op, argument, number);
  if (!operand.tensor) {
    return;
  }
  const at::Tensor& tensor = *operand.tensor;
  TORCH_CHECK_VALUE(
      operand.number == neutral,
      options.names.op,
      ": expected ",
      argument,
      " to be a number or a tensor, got both (",
      operand.number,
      " and a tensor of sizes ",
      tensor.sym_sizes(),
      ")");
  check_strided(options.names.op, argument, tensor);
  check_same_device(options.names.op, argument, tensor, options.names.src, src);
  // A tensor of one element may always be 0-D.
  bool fits = tensor.dim() == 0 || tensor.dim() == static_cast<int64_t>(size.size());
  for (int64_t d = 0; fits && d < tensor.dim(); d++) {
    const auto& length = tensor.sym_size(d);
    fits = TORCH_GUARD_OR_FALSE(length.sym_eq(size[d])) ||
        (holds(length.sym_gt(0)) && holds((size[d] % length).sym_eq(0)));
  }
  TORCH_CHECK_VALUE(
      fits,
      options.names.op,
      ": expected ",
      argument,
      " to be ",
      size.size(),
      "-D with each size 1 or a divisor of the logical size of src, ",
      size,
      ", got ",
      tensor.dim(),
      "-D with sizes ",
      tensor.sym_sizes());
}

inline void check_scale(
    const ReorderOptions& options,
    const char* argument,
    const ReorderOperand& operand,
    const at::Tensor& src,
    c10::SymIntArrayRef size) {
  check_operand(options, argument, operand, 1, src, size);
  TORCH_CHECK_VALUE(
      computed(options, operand.number) != 0,
      options.names.op,
      ": expected ",
      argument,
      " to be different from 0 in ",
      dtype_name(options.compute_dtype),
      ", got ",
      operand.number);
  TORCH_CHECK_TYPE(
      !operand.tensor || contains(ReorderFloatingTypes{}, operand.tensor->scalar_type()),
      options.names.op,
      ": expected ",
      argument,
      " to be of a floating type, got ",
      dtype_name(operand.tensor->scalar_type()));
}

inline void check_zero_point(
    const ReorderOptions& options,
    const char* argument,
    const ReorderOperand& operand,
    c10::ScalarType dtype,
    const at::Tensor& src,
    c10::SymIntArrayRef size) {
  check_operand(options, argument, operand, 0, src, size);
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_integral_v<T>) {
      TORCH_CHECK_VALUE(
          convert<T>(operand.number) == operand.number,
          options.names.op,
          ": expected ",
          argument,
          " to be a value of ",
          dtype_name(dtype),
          ", got ",
          operand.number);
    }
  });
  TORCH_CHECK_TYPE(
      !operand.tensor || contains(ReorderTypes{}, operand.tensor->scalar_type()) ||
          operand.tensor->scalar_type() == c10::kLong,
      options.names.op,
      ": expected ",
      argument,
      " to be of a floating or integer type, got ",
      dtype_name(operand.tensor->scalar_type()));
}

// The destination of a checked call, as dst_format says or, without one, with src's strides.
inline at::Tensor
empty_destination(const at::Tensor& src, const Sides& sides, c10::ScalarType dtype) {
  const auto options = src.options().dtype(dtype);
  if (!sides.dst) {
    // What empty_like does, except that on meta tensors it makes up strides along sizes of 1.
    return src.unsafeGetTensorImpl()->is_non_overlapping_and_dense_or_false()
        ? empty_strided(src.sym_sizes(), src.sym_strides(), options)
        : at::empty_like(src, options, at::MemoryFormat::Preserve);
  }
  if (sides.dst->blocked()) {
    return empty(physical_sizes(*sides.dst, sides.size), options);
  }
  SymSizes strides(sides.size.size());
  c10::SymInt stride = 1;
  for (auto dim = sides.dst->outer.rbegin(); dim != sides.dst->outer.rend(); dim++) {
    strides[*dim] = stride;
    stride = stride * sides.size[*dim].max(1);
  }
  return empty_strided(sides.size, strides, options);
}

// The digits of a tensor's dimensions.
inline c10::SmallVector<ReorderProblem::Digit, kMaxDigits>
digits_of(const std::optional<Format>& format, const at::Tensor& tensor) {
  c10::SmallVector<ReorderProblem::Digit, kMaxDigits> digits(tensor.dim());
  for (int64_t d = 0; d < tensor.dim(); d++) {
    digits[d] = {d, tensor.size(d), 1, tensor.stride(d)};
  }
  if (is_blocked(format)) {
    c10::SmallVector<int64_t, kMaxDims> step(format->rank(), 1);
    for (int64_t d = tensor.dim() - 1; d >= 0; d--) {
      const int64_t inner = d - format->rank();
      digits[d].dim = inner < 0 ? format->outer[d] : format->inner[inner].dim;
      digits[d].step = step[digits[d].dim];
      step[digits[d].dim] *= digits[d].extent;
    }
  }
  return digits;
}

inline ReorderProblem::Operand
problem_operand(const ReorderOperand& operand, double neutral, const ReorderProblem& p) {
  ReorderProblem::Operand result{};
  result.present = is_present(operand, neutral);
  result.number = operand.number;
  if (!operand.tensor) {
    return result;
  }
  const at::Tensor& tensor = *operand.tensor;
  result.data = tensor.const_data_ptr();
  result.dtype = tensor.scalar_type();
  for (int64_t d = 0; d < p.dims; d++) {
    result.group[d] = tensor.dim() == 0 ? 1 : p.size[d] / tensor.size(d);
    result.stride[d] = tensor.dim() == 0 ? 0 : tensor.stride(d);
  }
  return result;
}

} // namespace reorder_detail

// Checks a call.
inline reorder_detail::Sides check_reorder(const at::Tensor& src, const ReorderOptions& options) {
  using namespace reorder_detail;
  const auto& names = options.names;
  check_strided(names.op, names.src, src);
  const auto dtype = options.dtype.value_or(src.scalar_type());
  for (const auto type : {src.scalar_type(), dtype}) {
    TORCH_CHECK_TYPE(
        contains(ReorderTypes{}, type),
        names.op,
        ": expected float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2, int32, int8 "
        "or uint8, got ",
        names.src,
        " of ",
        dtype_name(src.scalar_type()),
        " and dtype ",
        dtype_name(dtype));
  }
  const Sides sides = check_sides(src, options);
  check_scale(options, "scale", options.scale, src, sides.size);
  check_scale(options, "dst_scale", options.dst_scale, src, sides.size);
  const auto zero_point = [&](const char* argument, const ReorderOperand& operand, auto type) {
    check_zero_point(options, argument, operand, type, src, sides.size);
  };
  zero_point("src_zero_point", options.src_zero_point, src.scalar_type());
  zero_point("dst_zero_point", options.dst_zero_point, dtype);
  check_finite(names.op, "beta", computed(options, options.beta));

  if (options.accumulate) {
    const at::Tensor& accumulate = *options.accumulate;
    check_strided(names.op, "accumulate", accumulate);
    check_same_device(names.op, "accumulate", accumulate, "src", src);
    TORCH_CHECK_TYPE(
        contains(ReorderTypes{}, accumulate.scalar_type()),
        names.op,
        ": expected accumulate to be of a type that src may have, got ",
        dtype_name(accumulate.scalar_type()));
    const SymSizes sizes =
        is_blocked(sides.dst) ? physical_sizes(*sides.dst, sides.size) : sides.size;
    check_sizes(names.op, "accumulate", accumulate, "the destination", sizes);
  }
  return sides;
}

// Checks a call and returns its empty output.
inline at::Tensor reorder_output(const at::Tensor& src, const ReorderOptions& options) {
  const auto sides = check_reorder(src, options);
  return reorder_detail::empty_destination(src, sides, options.dtype.value_or(src.scalar_type()));
}

// The problem of a checked call.
inline ReorderProblem
reorder_problem(const at::Tensor& src, const at::Tensor& dst, const ReorderOptions& options) {
  using namespace reorder_detail;
  const Sides sides = check_sides(src, options);
  ReorderProblem p{};
  p.dims = sides.size.size();
  for (int64_t d = 0; d < p.dims; d++) {
    p.size[d] = sides.size[d].expect_int();
  }

  const auto src_digits = digits_of(sides.src, src);
  p.src_digits = src_digits.size();
  std::copy(src_digits.begin(), src_digits.end(), p.src_digit);
  const auto dst_digits = digits_of(sides.dst, dst);
  p.dst_digits = dst_digits.size();
  c10::SmallVector<int64_t, kMaxDigits> order(p.dst_digits);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return dst.stride(a) > dst.stride(b);
  });
  for (int64_t k = 0; k < p.dst_digits; k++) {
    p.dst_digit[k] = dst_digits[order[k]];
    p.accumulate_stride[k] = options.accumulate ? options.accumulate->stride(order[k]) : 0;
  }

  p.src_dtype = src.scalar_type();
  p.dst_dtype = dst.scalar_type();
  p.src = src.const_data_ptr();
  p.dst = dst.mutable_data_ptr();
  if (options.accumulate) {
    p.accumulate_dtype = options.accumulate->scalar_type();
    p.accumulate = options.accumulate->const_data_ptr();
  }
  p.scale = problem_operand(options.scale, 1, p);
  p.dst_scale = problem_operand(options.dst_scale, 1, p);
  p.src_zero_point = problem_operand(options.src_zero_point, 0, p);
  p.dst_zero_point = problem_operand(options.dst_zero_point, 0, p);
  p.beta = options.beta;

  p.compute_dtype = options.compute_dtype;
  const bool arithmetic = p.accumulate != nullptr || p.scale.present || p.dst_scale.present ||
      p.src_zero_point.present || p.dst_zero_point.present;
  const auto is_integer = [](c10::ScalarType type) {
    return c10::isIntegralType(type, /*includeBool=*/false);
  };
  p.round_before_zero_point = options.round_before_zero_point && is_integer(p.dst_dtype);
  const bool integers = is_integer(p.src_dtype) && is_integer(p.dst_dtype);
  // A plain copy moves bits. (Not of float8_e5m2, whose infinities saturate.)
  const bool copy = p.src_dtype == p.dst_dtype && p.src_dtype != c10::kFloat8_e5m2;
  if (!arithmetic && (integers || copy)) {
    p.compute_dtype = c10::kLong;
  }
  if (!arithmetic && copy) {
    const auto bits = src.element_size() == 8 ? c10::kLong
        : src.element_size() == 4             ? c10::kInt
        : src.element_size() == 2             ? c10::kShort
                                              : c10::kByte;
    p.src_dtype = p.dst_dtype = bits;
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
    std::optional<std::string> dst_format,
    std::optional<std::string> src_format,
    int64_t rank) {
  if (!dst_format && src_format && src_format->find_first_of("0123456789") != std::string::npos) {
    dst_format = src_format;
  }
  if (dst_format && !src_format) {
    src_format = contiguous_tag(rank);
  }
  return {std::move(dst_format), std::move(src_format)};
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
    bool round_before_zero_point) {
  return run(
      src,
      {reorder_names,
       compute_dtype_of(src.scalar_type() == c10::kDouble),
       std::optional<std::string>(dst_format),
       std::optional<std::string>(src_format),
       size,
       dtype,
       {scale, scale_value},
       {dst_scale, dst_scale_value},
       {src_zero_point, src_zero_point_value},
       {dst_zero_point, dst_zero_point_value},
       accumulate,
       beta,
       round_before_zero_point});
}

template <at::Tensor (*run)(const at::Tensor&, const ReorderOptions&)>
at::Tensor reorder_backward_kernel(
    const at::Tensor& grad,
    c10::SymIntArrayRef size,
    std::optional<std::string_view> dst_format,
    std::optional<std::string_view> src_format,
    std::optional<c10::ScalarType> dtype,
    const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& dst_scale,
    double scale_value,
    double dst_scale_value) {
  for (const auto type : {grad.scalar_type(), dtype.value_or(grad.scalar_type())}) {
    TORCH_CHECK_TYPE(
        contains(ReorderFloatingTypes{}, type),
        "reorder_backward: expected grad and dtype to be of floating types, got ",
        dtype_name(grad.scalar_type()),
        " and ",
        dtype_name(dtype.value_or(grad.scalar_type())));
  }
  const auto formats = backward_formats(
      std::optional<std::string>(dst_format), std::optional<std::string>(src_format), size.size());
  return run(
      grad,
      {reorder_backward_names,
       compute_dtype_of(grad.scalar_type() == c10::kDouble || dtype == c10::kDouble),
       formats.to,
       formats.from,
       size,
       dtype,
       {scale, scale_value},
       {dst_scale, dst_scale_value},
       {std::nullopt, 0},
       {std::nullopt, 0},
       std::nullopt,
       /*beta=*/1,
       /*round_before_zero_point=*/false});
}

} // namespace torch_dnnl
