// The operator quantized_convolution, made of what a device can compute.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <string_view>
#include <type_traits>

#include "conv/conv.h"
#include "conv/quantized/arguments.h"

namespace torch_dnnl {

// What a device registers: check, allocate, and Device::compute a problem that is not empty.
template <class Device>
struct QuantizedOnDevice {
  using OptionalTensor = std::optional<at::Tensor>;

  static at::Tensor packed(
      const at::Tensor& src,
      const at::Tensor& weights,
      const OptionalTensor& bias,
      const ConvOptions& conv_options,
      const EpilogueOptions& epilogue,
      std::optional<c10::ScalarType> dtype,
      const OptionalTensor& src_scale,
      const OptionalTensor& src_zero_point,
      const OptionalTensor& weights_scale,
      const OptionalTensor& dst_scale,
      const OptionalTensor& dst_zero_point,
      const OptionalTensor& residual_scale,
      const OptionalTensor& residual_zero_point,
      double src_scale_value,
      double src_zero_point_value,
      double weights_scale_value,
      double dst_scale_value,
      double dst_zero_point_value,
      double residual_scale_value,
      double residual_zero_point_value,
      const OptionalTensor& packed) {
    const QuantizedOptions options{
        epilogue,
        dtype,
        {{{src_scale, src_scale_value},
          {src_zero_point, src_zero_point_value},
          {weights_scale, weights_scale_value},
          {dst_scale, dst_scale_value},
          {dst_zero_point, dst_zero_point_value},
          {residual_scale, residual_scale_value},
          {residual_zero_point, residual_zero_point_value}}}};
    const QuantizedArguments q = quantized_arguments(src, weights, bias, conv_options, options);
    const ConvArguments& a = q.conv;
    conv_detail::check_device_of_packed(a.op, packed, src);
    const auto format = a.is_nxc() ? at::MemoryFormat::Contiguous : memory_format(src);
    const at::Tensor dst = empty(a.dst, src.options().dtype(q.dtype).memory_format(format));
    if constexpr (!std::is_same_v<Device, Meta>) {
      const c10::DeviceGuard guard(dst.device());
      if (dst.numel() == 0)
        return dst;
      const at::Tensor slopes = slopes_of(epilogue, dst.size(a.image_at.channel));
      const QuantizedProblem p = problem(q, src, weights, bias, options, slopes, dst);
      if (packed.has_value())
        conv_detail::compute_packed<Device>(p, a, *packed, conv_detail::has_weights(weights));
      else
        Device::compute(p, a.algorithm);
    }
    return dst;
  }

  // For images of these sizes; with data_format NCX they are channels_last if the weights are.
  static at::Tensor
  pack(const at::Tensor& weights, c10::SymIntArrayRef src_sizes, const ConvOptions& conv_options) {
    conv_detail::check_has_data(weights);
    const bool is_nxc = conv_options.data_format == "NXC";
    const auto format = is_nxc ? at::MemoryFormat::Contiguous : memory_format(weights);
    const at::Tensor src =
        empty(src_sizes, weights.options().dtype(c10::kByte).memory_format(format));
    QuantizedOptions options{.dtype = c10::kFloat};
    for (int i = 0; i < quantized_operands::kCount; i++)
      options.operands[i].number = quantized_operands::kNeutral[i];
    const QuantizedArguments q =
        quantized_arguments(src, weights, std::nullopt, conv_options, options);
    const at::Tensor dst = empty(q.conv.dst, src.options().dtype(q.dtype).memory_format(format));
    const c10::DeviceGuard guard(weights.device());
    return conv_detail::pack<Device>(
        problem(q, src, weights, std::nullopt, options, at::Tensor(), dst), q.conv, weights);
  }

  static void register_in(torch::Library& m) {
    m.impl("quantized_convolution", with_options<without_last<packed>>);
    m.impl("quantized_convolution_packed", with_options<packed>);
    m.impl("pack_quantized_weights", with_options<pack>);
  }

 private:
  static QuantizedScalar scalar(const QuantizedOperand& operand) {
    if (!operand.tensor.has_value())
      return {static_cast<float>(operand.number)};
    const void* const data = operand.tensor->const_data_ptr();
    const c10::ScalarType dtype = operand.tensor->scalar_type();
    if constexpr (requires { Device::kReadsMemory; })
      return {load<float>(data, dtype, 0)};
    return {0, data, dtype};
  }

  static QuantizedProblem problem(
      const QuantizedArguments& q,
      const at::Tensor& src,
      const at::Tensor& weights,
      const OptionalTensor& bias,
      const QuantizedOptions& options,
      const at::Tensor& slopes,
      const at::Tensor& dst) {
    using namespace quantized_operands;
    const QuantizedOperands& o = options.operands;
    QuantizedProblem p{
        .conv = conv_problem(q.conv, ConvPass::forward, src, weights, dst, bias),
        .dst_dtype = q.dtype,
        .residual_dtype = c10::kFloat,
        .src_scale = scalar(o[kSrcScale]),
        .src_zero_point = scalar(o[kSrcZeroPoint]),
        .dst_scale = scalar(o[kDstScale]),
        .dst_zero_point = scalar(o[kDstZeroPoint]),
        .residual_scale = scalar(o[kResidualScale]),
        .residual_zero_point = scalar(o[kResidualZeroPoint]),
        .weights_scale = static_cast<float>(o[kWeightsScale].number),
        .returns_sums = q.returns_sums};
    const OptionalTensor& residual = options.epilogue.residual;
    add_epilogue(p.conv, q.conv, residual, slopes);
    if (residual.has_value())
      p.residual_dtype = residual->scalar_type();
    if (const OptionalTensor& scales = o[kWeightsScale].tensor) {
      p.weights_scales = scales->const_data_ptr<float>();
      p.weights_scale_stride = scales->dim() == 0 ? 0 : scales->stride(0);
    }
    return p;
  }
};

} // namespace torch_dnnl
