// The convolution problem: what the operators' arguments mean, whether they are
// valid, and what the result looks like. Meta, CPU, CUDA and backward calls all
// come through here.
//
// Convolution is one trilinear form in src, weights and dst; each of the three
// operators computes the gradient of that form with respect to one of them:
//   dst[n, o, x]     = sum over i, k of src[n, i, x S + k D - pad] weights[o, i, k]
//   src[n, i, y]     = sum over o, k, x with y = x S + k D - pad of dst[n, o, x] weights[o, i, k]
//   weights[o, i, k] = sum over n, x of dst[n, o, x] src[n, i, x S + k D - pad]
// and all four pairs of formats differ in strides only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <string_view>

#include "core/checks.h"
#include "core/dispatch.h"

namespace torch_dnnl {

// The attributes of all three operators.
struct ConvOptions {
  c10::SymIntArrayRef strides, pads_begin, pads_end, dilations;
  std::string_view auto_pad;
  c10::SymInt groups;
  std::string_view data_format, weights_format;
};

// Which of the three tensors is computed.
enum class ConvPass { forward, backward_data, backward_weights };

// Missing leading axes have size 1, so that kernels see three axes always.
struct ConvProblem {
  ConvPass pass;
  int64_t n, groups, ic, oc;                      // channels of one group
  int64_t src_size[3], dst_size[3], kernel[3];    // D, H, W
  int64_t stride[3], dilation[3], pad[3];         // pad: at the beginning
  int64_t src_stride[5], dst_stride[5];           // N, C, D, H, W, in elements
  int64_t weights_stride[5];                      // OC, IC, D, H, W
  int64_t bias_stride;
  c10::ScalarType dtype;
  const void *src, *weights, *dst;  // the one computed is `out`
  const void* bias;                 // forward only; may be null
  void* out;
};

namespace conv_detail {

using Sizes = c10::SmallVector<c10::SymInt, 5>;

// Products of two of these do not overflow.
inline constexpr int64_t kMaxAttribute = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxSize = int64_t(1) << 48;

// Where a tensor has its dimensions: (N, C, spatial...) of an image, (OC, IC, spatial...) of weights.
struct Dims {
  int64_t outer, channel, spatial;
};

inline Dims image_dims(bool nxc, int64_t rank) {
  return nxc ? Dims{0, rank - 1, 1} : Dims{0, 1, 2};
}

inline Dims weights_dims(bool xio, int64_t rank) {
  return xio ? Dims{rank - 1, rank - 2, 0} : Dims{0, 1, 2};
}

inline Sizes make_sizes(
    Dims dims, const c10::SymInt& outer, const c10::SymInt& channel, c10::SymIntArrayRef spatial) {
  Sizes sizes(spatial.size() + 2);
  sizes[dims.outer] = outer;
  sizes[dims.channel] = channel;
  std::copy(spatial.begin(), spatial.end(), sizes.begin() + dims.spatial);
  return sizes;
}

// `what` and `argument` name the list: "the spatial sizes of " "src", or "" "strides".
inline void check_within(
    const char* op, const char* what, const char* argument, c10::SymIntArrayRef list,
    int64_t least, int64_t most) {
  for (const auto& value : list) {
    TORCH_CHECK_VALUE(
        holds(value.sym_ge(least)) && holds(value.sym_le(most)), op, ": expected every entry of ",
        what, argument, " to be from ", least, " to ", most, ", got ", list);
  }
}

// One operator call, its tensors and attributes being checked.
class Call {
 public:
  Call(const char* op, const at::Tensor& image, const char* argument, const ConvOptions& options)
      : op(op), options(options), rank(image.dim()), spatial(rank - 2) {
    const bool nxc = is_channels_innermost(op, options.data_format);
    TORCH_CHECK_VALUE(
        options.weights_format == "OIX" || options.weights_format == "XIO", op,
        ": expected weights_format to be \"OIX\" or \"XIO\", got \"", options.weights_format, "\"");
    TORCH_CHECK_VALUE(
        options.auto_pad == "none" || options.auto_pad == "same_upper" ||
            options.auto_pad == "same_lower" || options.auto_pad == "valid",
        op, ": expected auto_pad to be one of \"none\", \"same_upper\", \"same_lower\", \"valid\", ",
        "got \"", options.auto_pad, "\"");
    TORCH_CHECK_VALUE(
        rank >= 3 && rank <= 5, op, ": expected ", argument, " to be 3-D to 5-D (",
        nxc ? "N, spatial..., C" : "N, C, spatial...", "), got ", rank, "-D with sizes ",
        image.sym_sizes());
    image_at = image_dims(nxc, rank);
    weights_at = weights_dims(options.weights_format == "XIO", rank);
    check_list("strides", options.strides, 1);
    check_list("pads_begin", options.pads_begin, 0);
    check_list("pads_end", options.pads_end, 0);
    check_list("dilations", options.dilations, 1);
    TORCH_CHECK_VALUE(
        holds(options.groups.sym_ge(1)) && holds(options.groups.sym_le(kMaxAttribute)), op,
        ": expected groups to be from 1 to ", kMaxAttribute, ", got ", options.groups);
  }

  void check_list(const char* argument, c10::SymIntArrayRef list, int64_t least) const {
    check_length(op, argument, list, spatial);
    check_within(op, "", argument, list, least, kMaxAttribute);
  }

  void check_image(const char* argument, const at::Tensor& image) const {
    check_tensor(argument, image);
    check_within(op, "the spatial sizes of ", argument, spatial_of(image), 1, kMaxSize);
    check_divisible(argument, channels(image));
  }

  void check_weights(const at::Tensor& weights) const {
    check_tensor("weights", weights);
    check_within(op, "the kernel sizes of ", "weights", kernel_of(weights), 1, kMaxAttribute);
    TORCH_CHECK_VALUE(
        holds(oc(weights).sym_gt(0)) && holds(ic_per_group(weights).sym_le(kMaxAttribute)), op,
        ": expected weights to have at least one output channel and at most ", kMaxAttribute,
        " input channels, got sizes ", weights.sym_sizes());
    check_divisible("weights", oc(weights));
  }

  // Both operands have one type and one device.
  void check_alike(
      const char* argument, const at::Tensor& tensor, const char* like_name,
      const at::Tensor& like) const {
    TORCH_CHECK_TYPE(
        tensor.scalar_type() == like.scalar_type(), op, ": expected ", argument,
        " to have the type of ", like_name, " (", like.scalar_type(), "), got ",
        tensor.scalar_type());
    check_same_device(op, argument, tensor, like_name, like);
  }

  // The padding at the beginning of spatial dimension d.
  c10::SymInt pad(size_t d, const c10::SymInt& in, const c10::SymInt& kernel) const {
    if (options.auto_pad == "none") return options.pads_begin[d];
    if (options.auto_pad == "valid") return 0;
    const c10::SymInt& stride = options.strides[d];
    const c10::SymInt last = (in + stride - 1) / stride - 1;
    const c10::SymInt total = (last * stride + reach(d, kernel) - in).max(0);
    return options.auto_pad == "same_lower" ? (total + 1) / 2 : total / 2;
  }

  // The spatial sizes of dst.
  Sizes dst_size(c10::SymIntArrayRef src_size, c10::SymIntArrayRef kernel) const {
    Sizes result(spatial);
    for (size_t d = 0; d < spatial; d++) {
      const c10::SymInt &in = src_size[d], &stride = options.strides[d];
      if (options.auto_pad == "same_upper" || options.auto_pad == "same_lower") {
        result[d] = (in + stride - 1) / stride;
        continue;
      }
      const bool pads = options.auto_pad == "none";
      const c10::SymInt padded = pads ? in + options.pads_begin[d] + options.pads_end[d] : in;
      const c10::SymInt covered = reach(d, kernel[d]);
      TORCH_CHECK_VALUE(
          holds(padded.sym_ge(covered)), op, ": expected the kernel to fit into the padded src, ",
          "got a kernel that covers ", covered, " and a padded size of ", padded,
          " in spatial dimension ", d, " (sizes ", src_size, ", kernel sizes ", kernel,
          ", dilations ", options.dilations, ")");
      result[d] = (padded - covered) / stride + 1;
    }
    return result;
  }

  // The gradient that a backward operator gets is shaped as the forward's result.
  void check_grad(
      const at::Tensor& grad, c10::SymIntArrayRef src_size, c10::SymIntArrayRef kernel) const {
    const auto expected = dst_size(src_size, kernel);
    const auto got = spatial_of(grad);
    for (size_t d = 0; d < spatial; d++) {
      TORCH_CHECK_VALUE(
          holds(got[d].sym_eq(expected[d])), op, ": expected grad to have spatial sizes ",
          c10::SymIntArrayRef(expected), " (those of the convolution of sizes ", src_size,
          " with kernel sizes ", kernel, "), got ", got);
    }
  }

  c10::SymIntArrayRef spatial_of(const at::Tensor& image) const {
    return image.sym_sizes().slice(image_at.spatial, spatial);
  }
  c10::SymIntArrayRef kernel_of(const at::Tensor& weights) const {
    return weights.sym_sizes().slice(weights_at.spatial, spatial);
  }
  c10::SymInt channels(const at::Tensor& image) const {
    return image.sym_size(image_at.channel);
  }
  c10::SymInt oc(const at::Tensor& weights) const {
    return weights.sym_size(weights_at.outer);
  }
  c10::SymInt ic_per_group(const at::Tensor& weights) const {
    return weights.sym_size(weights_at.channel);
  }

  const char* op;
  const ConvOptions& options;
  int64_t rank;
  size_t spatial;
  Dims image_at, weights_at;

 private:
  void check_tensor(const char* argument, const at::Tensor& tensor) const {
    check_strided(op, argument, tensor);
    TORCH_CHECK_VALUE(
        tensor.dim() == rank, op, ": expected ", argument, " to be ", rank, "-D, got ",
        tensor.dim(), "-D with sizes ", tensor.sym_sizes());
    TORCH_CHECK_TYPE(
        contains(FloatingTypes{}, tensor.scalar_type()), op, ": expected ", argument,
        " to be float64, float32, bfloat16 or float16, got ", tensor.scalar_type());
  }

  void check_divisible(const char* argument, const c10::SymInt& channels) const {
    TORCH_CHECK_VALUE(
        holds(channels.sym_le(kMaxAttribute)) && holds((channels % options.groups).sym_eq(0)), op,
        ": expected ", argument, " to have at most ", kMaxAttribute,
        " channels, divisible by groups (", options.groups, "), got ", channels);
  }

  // How many elements of src a kernel covers.
  c10::SymInt reach(size_t d, const c10::SymInt& kernel) const {
    return (kernel - 1) * options.dilations[d] + 1;
  }
};

inline at::Tensor empty_image(
    const Call& call, const at::Tensor& like, const c10::SymInt& channels,
    c10::SymIntArrayRef spatial) {
  const auto format = call.options.data_format == "NXC" ? at::MemoryFormat::Contiguous
                                                        : like.suggest_memory_format();
  return at::empty_symint(
      make_sizes(call.image_at, like.sym_size(0), channels, spatial),
      like.options().memory_format(format));
}

// Checks a call of convolution and returns the sizes of its output.
inline Sizes forward_sizes(
    const Call& call, const at::Tensor& src, const at::Tensor& weights,
    const std::optional<at::Tensor>& bias) {
  call.check_image("src", src);
  call.check_weights(weights);
  call.check_alike("weights", weights, "src", src);
  const c10::SymInt ic = call.channels(src) / call.options.groups, oc = call.oc(weights);
  TORCH_CHECK_VALUE(
      holds(call.ic_per_group(weights).sym_eq(ic)), call.op, ": expected weights to have ", ic,
      " input channels (the ", call.channels(src), " of src in ", call.options.groups,
      " groups), got ", call.ic_per_group(weights), " in sizes ", weights.sym_sizes());
  if (bias.has_value()) {
    check_strided(call.op, "bias", *bias);
    call.check_alike("bias", *bias, "src", src);
    TORCH_CHECK_VALUE(
        bias->dim() == 1 && holds(bias->sym_size(0).sym_eq(oc)), call.op,
        ": expected bias to be 1-D with ", oc, " elements (the output channels of weights), got ",
        bias->sym_sizes());
  }
  return make_sizes(
      call.image_at, src.sym_size(0), oc,
      call.dst_size(call.spatial_of(src), call.kernel_of(weights)));
}

}  // namespace conv_detail

// Checks a call of convolution and returns its empty output.
inline at::Tensor convolution_output(
    const at::Tensor& src, const at::Tensor& weights, const std::optional<at::Tensor>& bias,
    const ConvOptions& options) {
  const conv_detail::Call call("convolution", src, "src", options);
  const auto sizes = conv_detail::forward_sizes(call, src, weights, bias);
  const auto spatial = c10::SymIntArrayRef(sizes).slice(call.image_at.spatial, call.spatial);
  return conv_detail::empty_image(call, src, sizes[call.image_at.channel], spatial);
}

// Checks a call of convolution_backward_data and returns its empty output.
inline at::Tensor convolution_backward_data_output(
    const at::Tensor& grad, const at::Tensor& weights, c10::SymIntArrayRef src_size,
    const ConvOptions& options) {
  const conv_detail::Call call("convolution_backward_data", grad, "grad", options);
  call.check_image("grad", grad);
  call.check_weights(weights);
  call.check_alike("weights", weights, "grad", grad);
  check_length(call.op, "src_size", src_size, call.spatial);
  conv_detail::check_within(call.op, "", "src_size", src_size, 1, conv_detail::kMaxSize);
  TORCH_CHECK_VALUE(
      holds(call.channels(grad).sym_eq(call.oc(weights))), call.op, ": expected grad to have ",
      call.oc(weights), " channels (the output channels of weights), got ", call.channels(grad));
  call.check_grad(grad, src_size, call.kernel_of(weights));
  const c10::SymInt ic = call.ic_per_group(weights) * options.groups;
  return conv_detail::empty_image(call, grad, ic, src_size);
}

// Checks a call of convolution_backward_weights and returns its empty output.
inline at::Tensor convolution_backward_weights_output(
    const at::Tensor& grad, const at::Tensor& src, c10::SymIntArrayRef kernel_size,
    const ConvOptions& options) {
  const conv_detail::Call call("convolution_backward_weights", grad, "grad", options);
  call.check_image("grad", grad);
  call.check_image("src", src);
  call.check_alike("src", src, "grad", grad);
  call.check_list("kernel_size", kernel_size, 1);
  TORCH_CHECK_VALUE(
      holds(grad.sym_size(0).sym_eq(src.sym_size(0))), call.op, ": expected src to have the batch ",
      "size of grad (", grad.sym_size(0), "), got ", src.sym_size(0));
  call.check_grad(grad, call.spatial_of(src), kernel_size);
  const bool channels_last = options.data_format == "NCX" && options.weights_format == "OIX";
  const auto of_grad = grad.suggest_memory_format(), of_src = src.suggest_memory_format();
  const auto format = !channels_last ? at::MemoryFormat::Contiguous
      : of_grad == at::MemoryFormat::Contiguous ? of_src
                                                : of_grad;
  return at::empty_symint(
      conv_detail::make_sizes(
          call.weights_at, call.channels(grad), call.channels(src) / options.groups, kernel_size),
      grad.options().memory_format(format));
}

// The problem of a checked call; `dst` is the forward's result or its gradient.
inline ConvProblem conv_problem(
    ConvPass pass, const at::Tensor& src, const at::Tensor& weights, const at::Tensor& dst,
    const std::optional<at::Tensor>& bias, const ConvOptions& options) {
  const conv_detail::Call call("convolution", src, "src", options);
  const auto copy = [](const at::Tensor& tensor, conv_detail::Dims at, int64_t* sizes,
                       int64_t* strides) {
    strides[0] = tensor.stride(at.outer);
    strides[1] = tensor.stride(at.channel);
    for (int64_t a = 0; a < 3; a++) {
      const int64_t d = a - (5 - tensor.dim());
      sizes[a] = d < 0 ? 1 : tensor.size(at.spatial + d);
      strides[2 + a] = d < 0 ? 0 : tensor.stride(at.spatial + d);
    }
  };
  ConvProblem p{};
  p.pass = pass;
  p.n = src.size(0);
  p.groups = options.groups.expect_int();
  p.ic = src.size(call.image_at.channel) / p.groups;
  p.oc = dst.size(call.image_at.channel) / p.groups;
  copy(src, call.image_at, p.src_size, p.src_stride);
  copy(dst, call.image_at, p.dst_size, p.dst_stride);
  copy(weights, call.weights_at, p.kernel, p.weights_stride);
  for (int64_t a = 0; a < 3; a++) {
    const int64_t d = a - (3 - static_cast<int64_t>(call.spatial));
    p.stride[a] = d < 0 ? 1 : options.strides[d].expect_int();
    p.dilation[a] = d < 0 ? 1 : options.dilations[d].expect_int();
    p.pad[a] = d < 0 ? 0 : call.pad(d, p.src_size[a], p.kernel[a]).expect_int();
  }
  p.dtype = src.scalar_type();
  if (pass != ConvPass::backward_data) p.src = src.const_data_ptr();
  if (pass != ConvPass::backward_weights) p.weights = weights.const_data_ptr();
  if (pass != ConvPass::forward) p.dst = dst.const_data_ptr();
  if (bias.has_value()) {
    p.bias = bias->const_data_ptr();
    p.bias_stride = bias->stride(0);
  }
  const at::Tensor& out = pass == ConvPass::forward ? dst
      : pass == ConvPass::backward_data             ? src
                                                    : weights;
  p.out = out.mutable_data_ptr();
  return p;
}

// The operators' signatures, spelled once: `run` gets the checked call.
template <at::Tensor (*run)(
    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, const ConvOptions&)>
at::Tensor convolution_kernel(
    const at::Tensor& src, const at::Tensor& weights, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef strides, c10::SymIntArrayRef pads_begin, c10::SymIntArrayRef pads_end,
    c10::SymIntArrayRef dilations, std::string_view auto_pad, c10::SymInt groups,
    std::string_view data_format, std::string_view weights_format) {
  return run(
      src, weights, bias,
      {strides, pads_begin, pads_end, dilations, auto_pad, std::move(groups), data_format,
       weights_format});
}

template <at::Tensor (*run)(
    const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef, const ConvOptions&)>
at::Tensor convolution_backward_kernel(
    const at::Tensor& grad, const at::Tensor& other, c10::SymIntArrayRef size,
    c10::SymIntArrayRef strides, c10::SymIntArrayRef pads_begin, c10::SymIntArrayRef pads_end,
    c10::SymIntArrayRef dilations, std::string_view auto_pad, c10::SymInt groups,
    std::string_view data_format, std::string_view weights_format) {
  return run(
      grad, other, size,
      {strides, pads_begin, pads_end, dilations, auto_pad, std::move(groups), data_format,
       weights_format});
}

// What a device registers: check, allocate, and `compute` a problem that is not empty.
template <void (*compute)(const ConvProblem&)>
struct ConvOnDevice {
  static at::Tensor forward(
      const at::Tensor& src, const at::Tensor& weights, const std::optional<at::Tensor>& bias,
      const ConvOptions& options) {
    const at::Tensor dst = convolution_output(src, weights, bias, options);
    return fill(dst, ConvPass::forward, src, weights, dst, bias, options);
  }

  static at::Tensor backward_data(
      const at::Tensor& grad, const at::Tensor& weights, c10::SymIntArrayRef src_size,
      const ConvOptions& options) {
    const at::Tensor src = convolution_backward_data_output(grad, weights, src_size, options);
    return fill(src, ConvPass::backward_data, src, weights, grad, std::nullopt, options);
  }

  static at::Tensor backward_weights(
      const at::Tensor& grad, const at::Tensor& src, c10::SymIntArrayRef kernel_size,
      const ConvOptions& options) {
    const at::Tensor weights =
        convolution_backward_weights_output(grad, src, kernel_size, options);
    return fill(weights, ConvPass::backward_weights, src, weights, grad, std::nullopt, options);
  }

  static void register_in(torch::Library& m) {
    m.impl("convolution", convolution_kernel<forward>);
    m.impl("convolution_backward_data", convolution_backward_kernel<backward_data>);
    m.impl("convolution_backward_weights", convolution_backward_kernel<backward_weights>);
  }

 private:
  static at::Tensor fill(
      const at::Tensor& out, ConvPass pass, const at::Tensor& src, const at::Tensor& weights,
      const at::Tensor& dst, const std::optional<at::Tensor>& bias, const ConvOptions& options) {
    const c10::DeviceGuard guard(out.device());
    if (out.numel() > 0) compute(conv_problem(pass, src, weights, dst, bias, options));
    return out;
  }
};

}  // namespace torch_dnnl
