// The arguments of a call of convolution, one function for each operator: checked and laid out
// once. Eager, meta, traced and backward calls all come through here.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

#include "conv/attributes.h"
#include "core/dispatch.h"

namespace torch_dnnl {

namespace conv_detail {

// Pads of 2^31, say, make a result that cannot be. Sizes that are not known yet are not asked for.
inline void check_result(const char* op, const char* causes, c10::SymIntArrayRef sizes) {
  double elements = 1;
  for (const auto& size : sizes)
    elements *= static_cast<double>(std::max<int64_t>(size.maybe_as_int().value_or(1), 1));
  TORCH_CHECK_VALUE(
      elements <= kMaxSize,
      Expected(op) << causes << " to give a result of at most 2^48 elements, got sizes " << sizes);
}

inline bool are_equal(c10::SymIntArrayRef a, c10::SymIntArrayRef b) {
  const auto equal = [](const c10::SymInt& x, const c10::SymInt& y) { return holds(x.sym_eq(y)); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

// The types that a tensor may have, and their names.
struct TensorTypes {
  bool (*contain)(c10::ScalarType);
  const char* names;
};
template <class... T>
constexpr TensorTypes types_of(TypeList<T...> /*types*/, const char* names) {
  return {[](c10::ScalarType type) { return contains(TypeList<T...>{}, type); }, names};
}
inline constexpr TensorTypes kFloating =
    types_of(FloatingTypes{}, "float64, float32, bfloat16 or float16");

inline void check_tensor(
    const ConvArguments& a,
    const char* argument,
    const at::Tensor& tensor,
    const TensorTypes& types) {
  check_strided(a.op, argument, tensor);
  TORCH_CHECK_VALUE(
      tensor.dim() == a.rank,
      Expected(a.op) << argument << " to be " << a.rank << "-D, got " << tensor.dim()
                     << "-D with sizes " << tensor.sym_sizes());
  check_numel(a.op, argument, tensor);
  TORCH_CHECK_TYPE(
      types.contain(tensor.scalar_type()),
      Expected(a.op) << argument << " to be " << types.names << ", got " << tensor.scalar_type());
}

inline void
check_divisible(const ConvArguments& a, const char* argument, const c10::SymInt& channels) {
  TORCH_CHECK_VALUE(
      holds(channels.sym_le(kMaxAttribute)) && holds((channels % a.groups).sym_eq(0)),
      Expected(a.op) << argument << " to have at most " << kMaxAttribute
                     << " channels, divisible by groups (" << a.groups << "), got " << channels);
}

inline void check_image(
    const ConvArguments& a,
    const char* argument,
    const at::Tensor& image,
    const TensorTypes& types = kFloating) {
  check_tensor(a, argument, image, types);
  check_within(a.op, "the spatial sizes of ", argument, a.spatial_of(image), 1, kMaxSize);
  check_divisible(a, argument, a.channels(image));
}

inline void check_weights(
    const ConvArguments& a,
    const at::Tensor& weights,
    const TensorTypes& types = kFloating) {
  check_tensor(a, "weights", weights, types);
  check_within(a.op, "the kernel sizes of ", "weights", a.kernel_of(weights), 1, kMaxAttribute);
  TORCH_CHECK_VALUE(
      holds(a.oc(weights).sym_gt(0)) && holds(a.ic_per_group(weights).sym_le(kMaxAttribute)),
      Expected(a.op) << "weights to have at least one output channel and at most " << kMaxAttribute
                     << " input channels, got sizes " << weights.sym_sizes());
  check_divisible(a, "weights", a.oc(weights));
}

// Both operands have one type and one device.
inline void check_alike(
    const char* op,
    const char* argument,
    const at::Tensor& tensor,
    const char* like_name,
    const at::Tensor& like) {
  TORCH_CHECK_TYPE(
      tensor.scalar_type() == like.scalar_type(),
      Expected(op) << argument << " to have the type of " << like_name << " (" << like.scalar_type()
                   << "), got " << tensor.scalar_type());
  check_same_device(op, argument, tensor, like_name, like);
}

// Of the type and on the device of another tensor, and of the sizes of the output.
inline void check_like_output(
    const char* op,
    const char* argument,
    const at::Tensor& tensor,
    c10::SymIntArrayRef output_sizes,
    const char* like_name,
    const at::Tensor& like) {
  check_strided(op, argument, tensor);
  check_alike(op, argument, tensor, like_name, like);
  TORCH_CHECK_VALUE(
      are_equal(tensor.sym_sizes(), output_sizes),
      Expected(op) << argument << " to have the sizes of the output, " << output_sizes << ", got "
                   << tensor.sym_sizes());
}

// The sizes of the forward's result; the channels of src and weights fit together.
inline void add_result(ConvArguments& a, const at::Tensor& src, const at::Tensor& weights) {
  const c10::SymInt ic = a.channels(src) / a.groups;
  TORCH_CHECK_VALUE(
      holds(a.ic_per_group(weights).sym_eq(ic)),
      Expected(a.op) << "weights to have " << ic << " input channels (the " << a.channels(src)
                     << " of src in " << a.groups << " groups), got " << a.ic_per_group(weights)
                     << " in sizes " << weights.sym_sizes());
  const Sizes size = a.dst_size(a.spatial_of(src), a.kernel_of(weights));
  a.dst = make_sizes(a.image_at, src.sym_size(0), a.oc(weights), size);
  check_result(a.op, "src, pads and weights", a.dst);
}

// One number for each output channel.
inline void check_per_channel(
    const ConvArguments& a,
    const char* argument,
    const at::Tensor& tensor,
    const c10::SymInt& channels) {
  check_strided(a.op, argument, tensor);
  TORCH_CHECK_VALUE(
      tensor.dim() == 1 && holds(tensor.sym_size(0).sym_eq(channels)),
      Expected(a.op) << argument << " to be 1-D with " << channels
                     << " elements (the output channels of weights), got " << tensor.sym_sizes());
}

// A residual has the sizes of the output, or is broadcast over the batch and the spatial
// dimensions.
inline void check_residual_sizes(
    const ConvArguments& a,
    const at::Tensor& residual,
    c10::SymIntArrayRef output_sizes) {
  bool fits = residual.dim() == a.rank;
  for (int64_t d = 0; fits && d < a.rank; d++) {
    const c10::SymInt size = residual.sym_size(d);
    const bool is_one = d != a.image_at.channel && TORCH_GUARD_OR_FALSE(size.sym_eq(1));
    fits = is_one || holds(size.sym_eq(output_sizes[d]));
  }
  TORCH_CHECK_VALUE(
      fits,
      Expected(a.op) << "residual to have the sizes of the output, " << output_sizes
                     << ", or 1 in the place of the batch or a spatial size, got "
                     << residual.sym_sizes());
}

// The slopes of prelu: one, or one for each channel.
inline void check_slope(
    const char* op,
    const std::optional<at::Tensor>& slope,
    c10::ScalarType dtype,
    const c10::SymInt& channels,
    const at::Tensor& src) {
  TORCH_CHECK_VALUE(
      slope.has_value(),
      Expected(op) << "alpha to be a tensor with activation \"prelu\", got none");
  check_strided(op, "alpha", *slope);
  check_same_device(op, "alpha", *slope, "src", src);
  TORCH_CHECK_TYPE(
      slope->scalar_type() == dtype,
      Expected(op) << "alpha to be " << dtype << ", got " << slope->scalar_type());
  const bool is_one = TORCH_GUARD_OR_FALSE(slope->sym_numel().sym_eq(1));
  TORCH_CHECK_VALUE(
      is_one || (slope->dim() == 1 && holds(slope->sym_size(0).sym_eq(channels))),
      Expected(op) << "alpha to have one element or the sizes [" << channels << "], got "
                   << slope->sym_sizes());
}

inline void add_activation(ConvArguments& a, const EpilogueOptions& options) {
  a.activation = activation_of(a.op, options.activation);
  a.parameters = parameters_of(a.op, a.activation, options.alpha, options.beta);
}

// The slopes of an output of these sizes. `dtype`: that of the slopes.
inline void check_slopes(
    const ConvArguments& a,
    const EpilogueOptions& options,
    c10::SymIntArrayRef output_sizes,
    c10::ScalarType dtype,
    const at::Tensor& src) {
  if (a.activation == Activation::prelu)
    return check_slope(a.op, options.slope, dtype, output_sizes[a.image_at.channel], src);
  TORCH_CHECK_VALUE(
      !options.slope.has_value(),
      Expected(a.op) << "alpha to be no tensor with this activation, got a tensor");
}

inline void check_epilogue(
    const ConvArguments& a,
    const EpilogueOptions& options,
    c10::SymIntArrayRef output_sizes,
    const at::Tensor& src) {
  check_slopes(a, options, output_sizes, src.scalar_type(), src);
  if (options.residual.has_value()) {
    check_strided(a.op, "residual", *options.residual);
    check_alike(a.op, "residual", *options.residual, "src", src);
    check_residual_sizes(a, *options.residual, output_sizes);
  }
}

// The gradient that a backward operator gets is shaped as the forward's result.
inline void check_grad(
    const ConvArguments& a,
    const at::Tensor& grad,
    c10::SymIntArrayRef src_size,
    c10::SymIntArrayRef kernel,
    const char* name = "grad") {
  const Sizes expected = a.dst_size(src_size, kernel);
  const auto got = a.spatial_of(grad);
  TORCH_CHECK_VALUE(
      are_equal(got, expected),
      Expected(a.op) << name << " to have spatial sizes " << c10::SymIntArrayRef(expected)
                     << " (those of the convolution of sizes " << src_size << " with kernel sizes "
                     << kernel << "), got " << got);
}

// The sizes of a call's argument are those of the tensor that is passed as well.
inline void check_sizes_of_tensor(
    const char* op,
    const char* argument,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef of_tensor) {
  TORCH_CHECK_VALUE(
      are_equal(sizes, of_tensor),
      Expected(op) << argument << " to be the spatial sizes of the tensor, " << of_tensor
                   << ", got " << sizes);
}

// What a gradient of data is called: as one, and as a transposed convolution.
struct DataGradientNames {
  const char *grad, *src_size, *channels;
};
inline constexpr DataGradientNames kDataGradient{"grad", "src_size", "output channels"};
inline constexpr DataGradientNames kTransposed{"src", "dst_size", "input channels"};

// What the gradient of src is made of, beside grad, and the sizes of that gradient.
inline void add_data_gradient(
    ConvArguments& a,
    const at::Tensor& grad,
    const at::Tensor& weights,
    c10::SymIntArrayRef src_size,
    const DataGradientNames& names = kDataGradient) {
  check_weights(a, weights);
  check_alike(a.op, "weights", weights, names.grad, grad);
  check_list(a, names.src_size, src_size, 1, kMaxSize);
  TORCH_CHECK_VALUE(
      holds(a.channels(grad).sym_eq(a.oc(weights))),
      Expected(a.op) << names.grad << " to have " << a.oc(weights) << " channels (the "
                     << names.channels << " of weights), got " << a.channels(grad));
  check_grad(a, grad, src_size, a.kernel_of(weights), names.grad);
  const c10::SymInt ic = a.ic_per_group(weights) * a.groups;
  a.src = make_sizes(a.image_at, grad.sym_size(0), ic, src_size);
  check_result(a.op, "the result's sizes and weights", a.src);
}

// What the gradient of weights is made of, beside grad, and the sizes of that gradient.
inline void add_weights_gradient(
    ConvArguments& a,
    const at::Tensor& grad,
    const at::Tensor& src,
    c10::SymIntArrayRef kernel_size) {
  check_image(a, "src", src);
  check_alike(a.op, "src", src, "grad", grad);
  check_list(a, "kernel_size", kernel_size, 1);
  TORCH_CHECK_VALUE(
      holds(grad.sym_size(0).sym_eq(src.sym_size(0))),
      Expected(a.op) << "src to have the batch size of grad (" << grad.sym_size(0) << "), got "
                     << src.sym_size(0));
  check_grad(a, grad, a.spatial_of(src), kernel_size);
  a.weights = make_sizes(a.weights_at, a.channels(grad), a.channels(src) / a.groups, kernel_size);
  check_result(a.op, "kernel_size, grad and src", a.weights);
}

} // namespace conv_detail

// The arguments of each operator.

// Of both forward operators. convolution_fused is the end of a function that is called convolution:
// errors name that.
inline ConvArguments forward_arguments(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const ConvOptions& options,
    const EpilogueOptions& epilogue = {}) {
  using namespace conv_detail;
  ConvArguments a = attributes("convolution", src, "src", options);
  add_activation(a, epilogue);
  check_image(a, "src", src);
  check_weights(a, weights);
  check_alike(a.op, "weights", weights, "src", src);
  add_result(a, src, weights);
  if (bias.has_value()) {
    check_alike(a.op, "bias", *bias, "src", src);
    check_per_channel(a, "bias", *bias, a.oc(weights));
  }
  check_epilogue(a, epilogue, a.dst, src);
  return a;
}

// The attributes are those of the convolution whose gradient of data this is; a.src is the result.
inline ConvArguments transpose_arguments(
    const at::Tensor& src,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const ConvOptions& options,
    const EpilogueOptions& epilogue,
    c10::SymIntArrayRef dst_size) {
  using namespace conv_detail;
  ConvArguments a = attributes("convolution_transpose", src, "src", options);
  add_activation(a, epilogue);
  check_image(a, "src", src);
  add_data_gradient(a, src, weights, dst_size, kTransposed);
  if (bias.has_value()) {
    check_alike(a.op, "bias", *bias, "src", src);
    check_per_channel(a, "bias", *bias, a.ic_per_group(weights) * a.groups);
  }
  check_epilogue(a, epilogue, a.src, src);
  return a;
}

inline ConvArguments backward_data_arguments(
    const at::Tensor& grad,
    const at::Tensor& weights,
    c10::SymIntArrayRef src_size,
    const ConvOptions& options) {
  ConvArguments a = conv_detail::attributes("convolution_backward_data", grad, "grad", options);
  conv_detail::check_image(a, "grad", grad);
  conv_detail::add_data_gradient(a, grad, weights, src_size);
  return a;
}

inline ConvArguments backward_weights_arguments(
    const at::Tensor& grad,
    const at::Tensor& src,
    c10::SymIntArrayRef kernel_size,
    const ConvOptions& options) {
  ConvArguments a = conv_detail::attributes("convolution_backward_weights", grad, "grad", options);
  conv_detail::check_image(a, "grad", grad);
  conv_detail::add_weights_gradient(a, grad, src, kernel_size);
  return a;
}

// `weights` are there if the gradient of src is wanted, and the other way round.
inline ConvArguments fused_backward_arguments(
    const at::Tensor& grad,
    const at::Tensor& value,
    std::string_view activation,
    const std::optional<at::Tensor>& src,
    const std::optional<at::Tensor>& weights,
    c10::SymIntArrayRef src_size,
    c10::SymIntArrayRef kernel_size,
    const ConvOptions& options,
    std::optional<double> alpha,
    std::optional<double> beta) {
  using namespace conv_detail;
  ConvArguments a = attributes("convolution_fused_backward", grad, "grad", options);
  check_image(a, "grad", grad);
  check_like_output(a.op, "value", value, grad.sym_sizes(), "grad", grad);
  a.activation = activation_of(a.op, activation);
  TORCH_CHECK_VALUE(
      a.activation != Activation::prelu,
      Expected(a.op) << "an activation without gradients of its own, got \"prelu\"");
  a.parameters = parameters_of(a.op, a.activation, alpha, beta);
  check_list(a, "src_size", src_size, 1, kMaxSize);
  check_list(a, "kernel_size", kernel_size, 1);
  check_grad(a, grad, src_size, kernel_size);
  if (weights.has_value()) {
    add_data_gradient(a, grad, *weights, src_size);
    check_sizes_of_tensor(a.op, "kernel_size", kernel_size, a.kernel_of(*weights));
  }
  if (src.has_value()) {
    add_weights_gradient(a, grad, *src, kernel_size);
    check_sizes_of_tensor(a.op, "src_size", src_size, a.spatial_of(*src));
  }
  const auto sizes = grad.sym_sizes();
  a.dst = {sizes.begin(), sizes.end()};
  return a;
}

} // namespace torch_dnnl
