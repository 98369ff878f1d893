// The calls of convolution, of checked arguments: their empty outputs, and the Problems that
// kernels compute. And the adapter that turns the operators' arguments into ConvOptions.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/prelu.h>

#include <optional>
#include <string_view>
#include <utility>

#include "conv/arguments.h"
#include "conv/problem.h"
#include "core/torch/empty.h"
#include "core/torch/format.h"

namespace torch_dnnl {

namespace conv_detail {

// Whether a dimension of several elements has one in memory.
inline bool is_expanded(const at::Tensor& tensor, int64_t d) {
  return TORCH_GUARD_OR_FALSE(tensor.sym_stride(d).sym_eq(0).sym_and(tensor.sym_size(d).sym_gt(1)));
}
inline bool is_expanded(const at::Tensor& tensor) {
  bool result = false;
  for (int64_t d = 0; d < tensor.dim(); d++)
    result |= is_expanded(tensor, d);
  return result;
}

// Channels lie in memory where data_format says so or, with NCX, where a tensor has them.
inline at::Tensor empty_image(
    const ConvArguments& a,
    c10::SymIntArrayRef sizes,
    const at::Tensor& like,
    std::optional<at::MemoryFormat> format = std::nullopt) {
  if (a.is_nxc())
    format = at::MemoryFormat::Contiguous;
  return empty(sizes, like.options().memory_format(format.value_or(memory_format(like))));
}

// The format of the result: as torch has it, channels_last if `src` or the weights are.
inline at::MemoryFormat
result_format(const ConvArguments& a, const at::Tensor& src, const at::Tensor& weights) {
  const auto format = memory_format(src);
  const bool is_open = format == at::MemoryFormat::Contiguous && !a.is_nxc() && !a.is_xio();
  return is_open ? memory_format(weights) : format;
}

// `src` with its channels where the result has them: a model's channels are not to be moved in each
// layer after a concatenation that moved them.
inline at::Tensor
in_format(const ConvArguments& a, const at::Tensor& src, at::MemoryFormat format) {
  return a.is_nxc() || memory_format(src) == format ? src : src.contiguous(format);
}

// Whether a call has plain weights. Dropped weights are one number, expanded to the sizes.
inline bool has_weights(const at::Tensor& weights) {
  const auto strides = weights.sym_strides();
  return TORCH_GUARD_OR_FALSE(weights.sym_numel().sym_eq(1)) ||
      std::any_of(strides.begin(), strides.end(), [](const c10::SymInt& stride) {
           return !TORCH_GUARD_OR_FALSE(stride.sym_eq(0));
         });
}

inline void check_has_weights(const char* op, bool has_weights, const char* why) {
  TORCH_CHECK_VALUE(
      has_weights,
      Expected(op) << "packed weights with the plain weights beside them, as " << why
                   << ", got packed weights alone");
}

// Devices without Device::pack read plain weights.
template <class Device, class Problem>
void compute_packed(
    const Problem& p,
    const ConvArguments& a,
    const at::Tensor& packed,
    bool has_weights) {
  if constexpr (requires { &Device::pack; })
    return Device::compute_packed(p, a.algorithm, packed, has_weights);
  check_has_weights(a.op, has_weights, "the kernels of this device read these");
  Device::compute(p, a.algorithm);
}
inline void check_device_of_packed(
    const char* op,
    const std::optional<at::Tensor>& packed,
    const at::Tensor& src) {
  if (packed.has_value())
    check_same_device(op, "packed", *packed, "src", src);
}
inline void check_has_data(const at::Tensor& weights) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !weights.is_meta(),
      Expected("pack_weights") << "weights with data, as the size of a layout depends on the CPU, "
                                  "got a tensor without data");
}
template <class Device, class Problem>
at::Tensor pack(const Problem& p, const ConvArguments& a, const at::Tensor& weights) {
  if constexpr (requires { &Device::pack; })
    return Device::pack(p, a.algorithm);
  return empty({0}, weights.options().dtype(c10::kByte));
}

// An expanded gradient, such as that of a sum, has no format: it leaves that to weights.
inline at::Tensor
empty_data_gradient(const ConvArguments& a, const at::Tensor& grad, const at::Tensor& weights) {
  auto format = memory_format(grad);
  if (!a.is_nxc() && !a.is_xio() && is_expanded(grad))
    format = memory_format(weights);
  return empty_image(a, a.src, grad, format);
}

inline at::Tensor
empty_weights_gradient(const ConvArguments& a, const at::Tensor& grad, const at::Tensor& src) {
  auto format = at::MemoryFormat::Contiguous;
  if (!a.is_nxc() && !a.is_xio()) {
    format = memory_format(grad);
    if (format == at::MemoryFormat::Contiguous)
      format = memory_format(src);
  }
  return empty(a.weights, grad.options().memory_format(format));
}

// Missing leading axes have size 1 and stride 0.
inline void copy_layout(const at::Tensor& tensor, Dims at, int64_t* sizes, int64_t* strides) {
  strides[0] = tensor.stride(at.outer);
  strides[1] = tensor.stride(at.channel);
  for (int64_t a = 0; a < 3; a++) {
    const int64_t d = a - (5 - tensor.dim());
    sizes[a] = d < 0 ? 1 : tensor.size(at.spatial + d);
    strides[2 + a] = d < 0 ? 0 : tensor.stride(at.spatial + d);
  }
}

} // namespace conv_detail

// A checked call of convolution_fused_backward. With the gradient g of the result, h = g a'(u) is
// the gradient of the residual, its sums are that of the bias, and the gradients of src and weights
// are made of h. The outputs are allocated when the call is made.
struct FusedBackward {
  ConvArguments args;
  at::Tensor grad, value;                 // value: the result or, where a' needs it, u
  std::optional<at::Tensor> src, weights; // where the gradient of the other one is wanted
  c10::SymIntArrayRef src_size, kernel_size;
  bool bias, residual; // whether their gradients are wanted
  // The gradients that are wanted, else tensors of no elements. They have the format of the value,
  // which is that of the result.
  at::Tensor src_grad =
      weights.has_value() ? conv_detail::empty_data_gradient(args, value, *weights) : none();
  at::Tensor weights_grad =
      src.has_value() ? conv_detail::empty_weights_gradient(args, value, *src) : none();
  at::Tensor bias_grad = bias ? empty({args.channels(value)}, value.options()) : none();
  at::Tensor residual_grad = residual ? conv_detail::empty_image(args, args.dst, value) : none();

  at::Tensor none() const {
    return empty({0}, value.options());
  }
};

// The problem of these tensors; `dst` is the forward's result or its gradient.
inline ConvProblem conv_problem(
    const ConvArguments& args,
    ConvPass pass,
    const at::Tensor& src,
    const at::Tensor& weights,
    const at::Tensor& dst,
    const std::optional<at::Tensor>& bias = std::nullopt) {
  ConvProblem p{};
  p.pass = pass;
  p.n = src.size(0);
  p.groups = args.groups.expect_int();
  p.ic = src.size(args.image_at.channel) / p.groups;
  p.oc = dst.size(args.image_at.channel) / p.groups;
  conv_detail::copy_layout(src, args.image_at, p.src_size, p.src_stride);
  conv_detail::copy_layout(dst, args.image_at, p.dst_size, p.dst_stride);
  conv_detail::copy_layout(weights, args.weights_at, p.kernel, p.weights_stride);
  p.weights_group = p.oc * p.weights_stride[0];
  for (int64_t a = 0; a < 3; a++) {
    const int64_t d = a - (5 - args.rank);
    p.stride[a] = d < 0 ? 1 : args.strides[d].expect_int();
    p.dilation[a] = d < 0 ? 1 : args.dilations[d].expect_int();
    p.pad[a] = d < 0 ? 0 : args.pad(d, p.src_size[a], p.kernel[a]).expect_int();
  }
  p.dtype = src.scalar_type();
  if (pass != ConvPass::backward_data)
    p.src = src.const_data_ptr();
  if (pass != ConvPass::backward_weights)
    p.weights = weights.const_data_ptr();
  if (pass != ConvPass::forward)
    p.dst = dst.const_data_ptr();
  const at::Tensor& out = pass == ConvPass::forward ? dst
      : pass == ConvPass::backward_data             ? src
                                                    : weights;
  p.out = out.mutable_data_ptr();
  p.out_tensor = out.unsafeGetTensorImpl();
  if (bias.has_value()) {
    p.bias = bias->const_data_ptr();
    p.bias_stride = bias->stride(0);
  }
  return p;
}

// ATen's prelu, which is differentiable and has a batching rule.
inline at::Tensor prelu(const at::Tensor& image, const at::Tensor& slope, bool is_nxc) {
  return is_nxc ? at::prelu(image.movedim(-1, 1), slope.reshape({-1})).movedim(1, -1)
                : at::prelu(image, slope.reshape({-1}));
}

// The slopes of prelu, one for each channel of the image; else undefined.
inline at::Tensor slopes_of(const EpilogueOptions& options, int64_t channels) {
  return options.slope.has_value() ? options.slope->reshape({-1}).expand({channels}).contiguous()
                                   : at::Tensor();
}

// What is applied to the image that is computed, beside the bias. `slopes`: of slopes_of().
// `preactivation` has no elements where it is not kept.
inline void add_epilogue(
    ConvProblem& p,
    const ConvArguments& args,
    const std::optional<at::Tensor>& residual,
    const at::Tensor& slopes,
    const at::Tensor& preactivation = {}) {
  p.activation = args.activation;
  p.parameters = args.parameters;
  if (slopes.defined())
    p.slopes = slopes.const_data_ptr();
  if (residual.has_value()) {
    int64_t sizes[3];
    conv_detail::copy_layout(*residual, args.image_at, sizes, p.residual_stride);
    if (residual->size(0) == 1)
      p.residual_stride[0] = 0;
    for (int a = 0; a < 3; a++)
      if (sizes[a] == 1)
        p.residual_stride[2 + a] = 0;
    p.residual = residual->const_data_ptr();
  }
  if (preactivation.numel() > 0)
    p.preactivation = preactivation.mutable_data_ptr();
}

// h = grad a'(value).
inline ActivationGradient activation_gradient_problem(
    const ConvArguments& args,
    const at::Tensor& grad,
    const at::Tensor& value,
    const at::Tensor& h) {
  ActivationGradient p{};
  p.n = h.size(0);
  p.channels = h.size(args.image_at.channel);
  conv_detail::copy_layout(grad, args.image_at, p.size, p.grad_stride);
  conv_detail::copy_layout(value, args.image_at, p.size, p.value_stride);
  conv_detail::copy_layout(h, args.image_at, p.size, p.out_stride);
  p.grad = grad.const_data_ptr();
  p.value = value.const_data_ptr();
  p.out = h.mutable_data_ptr();
  p.activation = args.activation;
  p.parameters = args.parameters;
  p.dtype = h.scalar_type();
  return p;
}

namespace conv_detail {

template <class... T>
struct Types {};

// The members of the structs of options, as the operators get them.
using List = at::OptionalSymIntArrayRef;
using Text = std::string_view;
using Image = std::optional<at::Tensor>;
using Number = std::optional<double>;
template <class Options>
struct MembersOf;
template <>
struct MembersOf<ConvOptions> {
  using type = Types<List, List, List, List, Text, c10::SymInt, Text, Text, Text>;
};
template <>
struct MembersOf<EpilogueOptions> {
  using type = Types<const Image&, std::optional<Text>, Number, Number, const Image&>;
};

inline c10::SymIntArrayRef member(const List& list) {
  return list.value_or(c10::SymIntArrayRef());
}
template <class T>
T member(T value) {
  return value;
}

// A call with the members of `Options` in its place; the same call if `run` takes no `Options`.
template <auto run, class Options, class Members, class Leading, class... Rest>
struct WithOptions;

template <auto run, class Options, class... Member, class... Leading>
struct WithOptions<run, Options, Types<Member...>, Types<Leading...>> {
  static auto call(Leading... leading) {
    return run(leading...);
  }
};

template <auto run, class Options, class... Member, class... Leading, class Next, class... Rest>
struct WithOptions<run, Options, Types<Member...>, Types<Leading...>, Next, Rest...>
    : WithOptions<run, Options, Types<Member...>, Types<Leading..., Next>, Rest...> {};

template <auto run, class Options, class... Member, class... Leading, class... Trailing>
struct WithOptions<run, Options, Types<Member...>, Types<Leading...>, const Options&, Trailing...> {
  static auto call(Leading... leading, Member... members, Trailing... trailing) {
    return run(leading..., Options{member(std::move(members))...}, trailing...);
  }
};

template <auto run, class Options, class R, class... Args>
constexpr auto with_options(R (* /*run*/)(Args...)) {
  return &WithOptions<run, Options, typename MembersOf<Options>::type, Types<>, Args...>::call;
}

template <auto run, class Leading, class... Rest>
struct WithoutLast;

template <auto run, class... Leading, class Last>
struct WithoutLast<run, Types<Leading...>, Last> {
  static auto call(Leading... leading) {
    return run(leading..., std::decay_t<Last>());
  }
};

template <auto run, class... Leading, class Next, class... Rest>
struct WithoutLast<run, Types<Leading...>, Next, Rest...>
    : WithoutLast<run, Types<Leading..., Next>, Rest...> {};

template <auto run, class R, class... Args>
constexpr auto without_last(R (* /*run*/)(Args...)) {
  return &WithoutLast<run, Types<>, Args...>::call;
}

} // namespace conv_detail

// The function with a default in the place of its last argument.
template <auto run>
constexpr auto without_last = conv_detail::without_last<run>(run);

// The function of an operator's arguments as the schema lists them, made of one that takes
// ConvOptions and may take EpilogueOptions.
template <auto run>
constexpr auto with_options =
    conv_detail::with_options<conv_detail::with_options<run, ConvOptions>(run), EpilogueOptions>(
        conv_detail::with_options<run, ConvOptions>(run));

} // namespace torch_dnnl
