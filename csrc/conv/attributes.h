// The attributes of a convolution, checked and laid out, in SymInt: what they mean for sizes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "conv/problem.h"
#include "core/checks.h"

namespace torch_dnnl {

// What `algorithm` may be.
inline constexpr std::string_view kConvAlgorithms[] = {
    // Families: the device's own choice; sums of products alone; Winograd wherever that is
    // possible.
    "auto",
    "direct",
    "winograd",
    // The kernels of all devices.
    "reference",
    "pixel_lanes",
    "channel_lanes",
    "brgemm",
    "gemm",
    "few_outputs",
    "winograd_2x2",
    "winograd_4x4",
    "few_inputs",
    "blocked",
    "depthwise",
    "dense",
    "cudnn",
    // Of quantized convolution alone.
    "depthwise_quads",
    "pairs",
};

// The attributes of all operators, as they are passed. An empty list, or None, stands for strides
// and dilations of 1, for pads_begin of 0 and for pads_end as pads_begin.
struct ConvOptions {
  c10::SymIntArrayRef strides, pads_begin, pads_end, dilations;
  std::string_view auto_pad;
  c10::SymInt groups;
  std::string_view data_format, weights_format, algorithm;
};

// The epilogue of a call. `slope`: the slopes of prelu.
struct EpilogueOptions {
  std::optional<at::Tensor> residual;
  std::optional<std::string_view> activation;
  std::optional<double> alpha, beta;
  std::optional<at::Tensor> slope;
};

namespace conv_detail {

using Sizes = c10::SmallVector<c10::SymInt, 5>;

// Products of two of these do not overflow.
inline constexpr int64_t kMaxAttribute = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxSize = int64_t(1) << 48;

// Where a tensor has its dimensions: (N, C, spatial...) of an image, (OC, IC, spatial...) of
// weights.
struct Dims {
  int64_t outer, channel, spatial;
};

inline Dims image_dims(bool nxc, int64_t rank) {
  return nxc ? Dims{0, rank - 1, 1} : Dims{0, 1, 2};
}

inline Dims weights_dims(bool xio, int64_t rank) {
  return xio ? Dims{rank - 1, rank - 2, 0} : Dims{0, 1, 2};
}

// The sizes of a tensor.
inline Sizes make_sizes(
    Dims at,
    const c10::SymInt& outer,
    const c10::SymInt& channel,
    c10::SymIntArrayRef spatial) {
  Sizes sizes(spatial.size() + 2);
  sizes[at.outer] = outer;
  sizes[at.channel] = channel;
  std::copy(spatial.begin(), spatial.end(), sizes.begin() + at.spatial);
  return sizes;
}

inline Activation activation_of(const char* op, std::optional<std::string_view> name) {
  if (!name.has_value())
    return Activation::none;
  constexpr std::pair<std::string_view, Activation> names[] = {
      {"relu", Activation::relu},
      {"relu6", Activation::relu6},
      {"silu", Activation::silu},
      {"gelu", Activation::gelu},
      {"gelu_tanh", Activation::gelu_tanh},
      {"sigmoid", Activation::sigmoid},
      {"tanh", Activation::tanh},
      {"hardswish", Activation::hardswish},
      {"hardsigmoid", Activation::hardsigmoid},
      {"mish", Activation::mish},
      {"softplus", Activation::softplus},
      {"leaky_relu", Activation::leaky_relu},
      {"elu", Activation::elu},
      {"clamp", Activation::clamp},
      {"prelu", Activation::prelu},
  };
  for (const auto& [known, activation] : names)
    if (*name == known)
      return activation;
  std::string known;
  for (const auto& each : names)
    known += "\"" + std::string(each.first) + (each.second == Activation::last ? "\"" : "\", ");
  TORCH_CHECK_VALUE(
      false,
      Expected(op) << "activation to be None or one of " << known << ", got \"" << *name << "\"");
}

// leaky_relu has alpha = 0.01 by default, elu 1, clamp no bounds.
inline ActivationParameters parameters_of(
    const char* op,
    Activation activation,
    std::optional<double> alpha,
    std::optional<double> beta) {
  const bool is_clamp = activation == Activation::clamp;
  const bool has_alpha =
      is_clamp || activation == Activation::leaky_relu || activation == Activation::elu;
  const auto check = [&](const char* argument, std::optional<double> number, bool is_taken) {
    TORCH_CHECK_VALUE(
        !number.has_value() || is_taken,
        Expected(op) << argument << " to be None with this activation, got " << *number);
    TORCH_CHECK_VALUE(
        !number.has_value() || (is_clamp ? !std::isnan(*number) : std::isfinite(*number)),
        Expected(op) << argument << " to be " << (is_clamp ? "a number" : "finite") << ", got "
                     << *number);
  };
  check("alpha", alpha, has_alpha);
  check("beta", beta, is_clamp);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double by_default = is_clamp ? -infinity : activation == Activation::elu ? 1 : 0.01;
  return {alpha.value_or(by_default), beta.value_or(infinity)};
}

enum class AutoPad { none, same_upper, same_lower };

} // namespace conv_detail

// The arguments of a call, checked and laid out: outputs and Problems are made of this.
struct ConvArguments {
  using Sizes = conv_detail::Sizes;

  const char* op;
  int64_t rank;
  conv_detail::Dims image_at, weights_at;
  Sizes strides, pads_begin, pads_end, dilations; // of each spatial dimension
  conv_detail::AutoPad auto_pad;                  // "valid" is none, with pads of 0
  c10::SymInt groups;
  std::string_view algorithm;
  Activation activation = Activation::none;
  ActivationParameters parameters{};
  Sizes src, weights, dst; // the sizes of the tensors that the call computes

  size_t spatial() const {
    return rank - 2;
  }
  bool is_nxc() const {
    return image_at.spatial == 1;
  }
  bool is_xio() const {
    return weights_at.spatial == 0;
  }
  c10::SymIntArrayRef spatial_of(const at::Tensor& image) const {
    return image.sym_sizes().slice(image_at.spatial, spatial());
  }
  c10::SymIntArrayRef kernel_of(const at::Tensor& weights) const {
    return weights.sym_sizes().slice(weights_at.spatial, spatial());
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

  // How many elements of src a kernel covers along spatial dimension d.
  c10::SymInt reach(size_t d, const c10::SymInt& kernel) const {
    return (kernel - 1) * dilations[d] + 1;
  }

  // The padding at the beginning of spatial dimension d.
  c10::SymInt pad(size_t d, const c10::SymInt& in, const c10::SymInt& kernel) const {
    if (auto_pad == conv_detail::AutoPad::none)
      return pads_begin[d];
    const c10::SymInt last = (in + strides[d] - 1) / strides[d] - 1;
    const c10::SymInt total = (last * strides[d] + reach(d, kernel) - in).max(0);
    return auto_pad == conv_detail::AutoPad::same_lower ? (total + 1) / 2 : total / 2;
  }

  // The spatial sizes of dst; ValueError where the kernel does not fit.
  Sizes dst_size(c10::SymIntArrayRef src_size, c10::SymIntArrayRef kernel) const {
    Sizes result(spatial());
    for (size_t d = 0; d < spatial(); d++) {
      const c10::SymInt in = src_size[d], stride = strides[d];
      if (auto_pad != conv_detail::AutoPad::none) {
        result[d] = (in + stride - 1) / stride;
        continue;
      }
      const c10::SymInt padded = in + pads_begin[d] + pads_end[d], covered = reach(d, kernel[d]);
      TORCH_CHECK_VALUE(
          holds(padded.sym_ge(covered)),
          Expected(op) << "the kernel to fit into the padded src, got a kernel that covers "
                       << covered << " and a padded size of " << padded << " in spatial dimension "
                       << d << " (sizes " << src_size << ", kernel sizes " << kernel
                       << ", dilation " << dilations[d] << ")");
      result[d] = (padded - covered) / stride + 1;
    }
    return result;
  }
};

namespace conv_detail {

inline void check_list(
    const ConvArguments& a,
    const char* argument,
    c10::SymIntArrayRef list,
    int64_t least,
    int64_t most = kMaxAttribute) {
  check_length(a.op, argument, list, a.spatial());
  check_within(a.op, "", argument, list, least, most);
}

// A list attribute, checked and copied; an empty one leaves what is in `to`.
inline void take_list(
    Sizes& to,
    const ConvArguments& a,
    const char* argument,
    c10::SymIntArrayRef list,
    int64_t least) {
  if (list.empty())
    return;
  check_list(a, argument, list, least);
  std::copy(list.begin(), list.end(), to.begin());
}

// The attributes, and the rank of `image`, the first tensor, whose name is `argument`.
inline ConvArguments attributes(
    const char* op,
    const at::Tensor& image,
    const char* argument,
    const ConvOptions& options) {
  ConvArguments a{.op = op, .rank = image.dim(), .algorithm = options.algorithm};
  const bool is_nxc = is_channels_innermost(op, options.data_format);
  const bool is_xio = options.weights_format == "XIO";
  TORCH_CHECK_VALUE(
      is_xio || options.weights_format == "OIX",
      Expected(op) << "weights_format to be \"OIX\" or \"XIO\", got \"" << options.weights_format
                   << "\"");
  const bool is_valid = options.auto_pad == "valid";
  a.auto_pad = options.auto_pad == "same_upper" ? AutoPad::same_upper
      : options.auto_pad == "same_lower"        ? AutoPad::same_lower
                                                : AutoPad::none;
  TORCH_CHECK_VALUE(
      is_valid || a.auto_pad != AutoPad::none || options.auto_pad == "none",
      Expected(op)
          << "auto_pad to be one of \"none\", \"same_upper\", \"same_lower\", \"valid\", got \""
          << options.auto_pad << "\"");
  check_algorithm(op, options.algorithm, kConvAlgorithms);
  TORCH_CHECK_VALUE(
      a.rank >= 3 && a.rank <= 5,
      Expected(op) << argument << " to be 3-D to 5-D ("
                   << (is_nxc ? "N, spatial..., C" : "N, C, spatial...") << "), got " << a.rank
                   << "-D with sizes " << image.sym_sizes());
  a.image_at = image_dims(is_nxc, a.rank);
  a.weights_at = weights_dims(is_xio, a.rank);
  a.strides.assign(a.spatial(), 1);
  a.pads_begin.assign(a.spatial(), 0);
  a.dilations.assign(a.spatial(), 1);
  take_list(a.strides, a, "strides", options.strides, 1);
  take_list(a.pads_begin, a, "pads_begin", options.pads_begin, 0);
  a.pads_end = a.pads_begin;
  take_list(a.pads_end, a, "pads_end", options.pads_end, 0);
  take_list(a.dilations, a, "dilations", options.dilations, 1);
  if (is_valid) {
    a.pads_begin.assign(a.spatial(), 0);
    a.pads_end = a.pads_begin;
  }
  TORCH_CHECK_VALUE(
      holds(options.groups.sym_ge(1)) && holds(options.groups.sym_le(kMaxAttribute)),
      Expected(op) << "groups to be from 1 to " << kMaxAttribute << ", got " << options.groups);
  a.groups = options.groups;
  return a;
}

} // namespace conv_detail

} // namespace torch_dnnl
