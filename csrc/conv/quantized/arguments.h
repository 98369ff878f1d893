// The arguments of a quantized convolution, checked once; eager, meta and traced calls come here.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "conv/arguments.h"
#include "conv/quantized/reference.h"
#include "core/numeric.h"

namespace torch_dnnl {

// A scale or zero point: a tensor or, if there is none, a number.
struct QuantizedOperand {
  std::optional<at::Tensor> tensor;
  double number;
};

// By index: their names, and the numbers that change nothing.
namespace quantized_operands {
enum Operand {
  kSrcScale,
  kSrcZeroPoint,
  kWeightsScale,
  kDstScale,
  kDstZeroPoint,
  kResidualScale,
  kResidualZeroPoint,
  kCount
};
inline constexpr const char* kNames[] = {
    "src_scale",
    "src_zero_point",
    "weights_scale",
    "dst_scale",
    "dst_zero_point",
    "residual_scale",
    "residual_zero_point"};
inline constexpr double kNeutral[] = {1, 0, 1, 1, 0, 1, 0};
} // namespace quantized_operands

using QuantizedOperands = std::array<QuantizedOperand, quantized_operands::kCount>;

// What is passed beside the two tensors, the bias and the attributes.
struct QuantizedOptions {
  EpilogueOptions epilogue;
  std::optional<c10::ScalarType> dtype;
  QuantizedOperands operands;
};

struct QuantizedArguments {
  ConvArguments conv;
  c10::ScalarType dtype;
  bool returns_sums;
};

namespace quantized_detail {

using ScaleTypes = TypeList<float, double, c10::BFloat16, c10::Half>;
using ZeroPointTypes =
    TypeList<int64_t, int32_t, int16_t, int8_t, uint8_t, float, double, c10::BFloat16, c10::Half>;

inline bool is_integer(c10::ScalarType type) {
  return type == c10::kByte || type == c10::kChar || type == c10::kInt;
}

// A number is a value of `dtype`, whose zero point it is, or of float32.
inline void check_number(
    const char* op,
    const char* argument,
    double number,
    bool is_scale,
    std::optional<c10::ScalarType> dtype) {
  check_finite(op, argument, static_cast<float>(number));
  TORCH_CHECK_VALUE(
      !is_scale || static_cast<float>(number) != 0,
      Expected(op) << argument << " to be different from 0 in float32, got " << number);
  const bool is_value = !dtype || !is_integer(*dtype) || with_type(*dtype, [&](auto tag) {
    using T = decltype(tag);
    return !std::is_integral_v<T> || convert<T>(number) == number;
  });
  TORCH_CHECK_VALUE(
      is_value,
      Expected(op) << argument << " to be a value of " << dtype_name(*dtype) << ", got " << number);
}

inline void check_operand(
    const ConvArguments& a,
    int index,
    const QuantizedOperand& operand,
    const at::Tensor& src,
    const at::Tensor& weights,
    std::optional<c10::ScalarType> dtype) {
  using namespace quantized_operands;
  const char* const argument = kNames[index];
  const bool is_scale = kNeutral[index] == 1;
  check_number(a.op, argument, operand.number, is_scale, is_scale ? std::nullopt : dtype);
  if (!operand.tensor.has_value())
    return;
  const at::Tensor& tensor = *operand.tensor;
  TORCH_CHECK_VALUE(
      operand.number == kNeutral[index],
      Expected(a.op) << argument << " to be a number or a tensor, got both (" << operand.number
                     << " and a tensor of sizes " << tensor.sym_sizes() << ")");
  check_strided(a.op, argument, tensor);
  check_same_device(a.op, argument, tensor, "src", src);
  const c10::ScalarType type = tensor.scalar_type();
  if (index == kWeightsScale) {
    TORCH_CHECK_TYPE(
        type == c10::kFloat,
        Expected(a.op) << argument << " to be a number or float32, got " << dtype_name(type));
    if (tensor.dim() != 0)
      conv_detail::check_per_channel(a, argument, tensor, a.oc(weights));
    return;
  }
  TORCH_CHECK_TYPE(
      is_scale ? contains(ScaleTypes{}, type) : contains(ZeroPointTypes{}, type),
      Expected(a.op) << argument << " to be "
                     << (is_scale ? "of a floating type" : "of an integer or floating type")
                     << ", got " << dtype_name(type));
  TORCH_CHECK_VALUE(
      holds(tensor.sym_numel().sym_eq(1)),
      Expected(a.op) << argument << " to be a number or a tensor of one element, got sizes "
                     << tensor.sym_sizes());
}

inline bool is_neutral(const QuantizedOperand& operand, int index) {
  return !operand.tensor.has_value() && operand.number == quantized_operands::kNeutral[index];
}

} // namespace quantized_detail

inline QuantizedArguments quantized_arguments(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const ConvOptions& conv_options,
    const QuantizedOptions& options) {
  using namespace conv_detail;
  using namespace quantized_operands;
  constexpr const char* op = "quantized_convolution";
  QuantizedArguments q{attributes(op, src, "src", conv_options), c10::kChar, false};
  ConvArguments& a = q.conv;
  q.dtype = options.dtype.value_or(c10::kChar);
  TORCH_CHECK_TYPE(
      contains(QuantizedResultTypes{}, q.dtype),
      Expected(op) << "dtype to be uint8, int8, int32, float32, bfloat16 or float16, got "
                   << dtype_name(q.dtype));
  add_activation(a, options.epilogue);
  check_image(a, "src", src, types_of(QuantizedTypes{}, "uint8 or int8"));
  check_weights(a, weights, types_of(TypeList<int8_t>{}, "int8"));
  check_same_device(op, "weights", weights, "src", src);
  add_result(a, src, weights);
  if (bias.has_value()) {
    check_per_channel(a, "bias", *bias, a.oc(weights));
    check_same_device(op, "bias", *bias, "src", src);
    TORCH_CHECK_TYPE(
        bias->scalar_type() == c10::kFloat,
        Expected(op) << "bias to be float32, got " << dtype_name(bias->scalar_type()));
  }
  check_slopes(a, options.epilogue, a.dst, c10::kFloat, src);
  std::optional<c10::ScalarType> residual_dtype;
  if (options.epilogue.residual.has_value()) {
    const at::Tensor& residual = *options.epilogue.residual;
    check_strided(op, "residual", residual);
    check_same_device(op, "residual", residual, "src", src);
    residual_dtype = residual.scalar_type();
    TORCH_CHECK_TYPE(
        contains(QuantizedResultTypes{}, *residual_dtype),
        Expected(op) << "residual to be uint8, int8, int32, float32, bfloat16 or float16, got "
                     << dtype_name(*residual_dtype));
    check_residual_sizes(a, residual, a.dst);
  }
  q.returns_sums = q.dtype == c10::kInt && !bias.has_value() && !residual_dtype &&
      a.activation == Activation::none;
  for (int i = 0; i < kCount; i++) {
    const auto dtype = i == kSrcZeroPoint ? std::optional(src.scalar_type())
        : i == kDstZeroPoint              ? std::optional(q.dtype)
                                          : residual_dtype;
    quantized_detail::check_operand(a, i, options.operands[i], src, weights, dtype);
    if (i != kSrcZeroPoint)
      q.returns_sums &= quantized_detail::is_neutral(options.operands[i], i);
  }
  return q;
}

} // namespace torch_dnnl
