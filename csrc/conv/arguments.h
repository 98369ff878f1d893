// The arguments of a convolution: their meaning and their checks, in SymInt, for
// all three operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "conv/algorithms.h"
#include "conv/problem.h"
#include "core/checks.h"
#include "core/dispatch.h"

namespace torch_dnnl {

// The attributes of all three operators. An empty list stands for strides and dilations of 1, for
// pads_begin of 0 and for pads_end as pads_begin: most calls are spared the conversion of lists.
struct ConvOptions {
  c10::SymIntArrayRef strides, pads_begin, pads_end, dilations;
  std::string_view auto_pad;
  c10::SymInt groups;
  std::string_view data_format, weights_format, algorithm = "auto";

  c10::SymInt stride(size_t d) const {
    return entry(strides, d, 1);
  }
  c10::SymInt dilation(size_t d) const {
    return entry(dilations, d, 1);
  }
  c10::SymInt pad_begin(size_t d) const {
    return entry(pads_begin, d, 0);
  }
  c10::SymInt pad_end(size_t d) const {
    return entry(pads_end.empty() ? pads_begin : pads_end, d, 0);
  }

 private:
  static c10::SymInt entry(c10::SymIntArrayRef list, size_t d, int64_t otherwise) {
    return list.empty() ? c10::SymInt(otherwise) : list[d];
  }
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

inline Sizes make_sizes(
    Dims dims,
    const c10::SymInt& outer,
    const c10::SymInt& channel,
    c10::SymIntArrayRef spatial) {
  Sizes sizes(spatial.size() + 2);
  sizes[dims.outer] = outer;
  sizes[dims.channel] = channel;
  std::copy(spatial.begin(), spatial.end(), sizes.begin() + dims.spatial);
  return sizes;
}

inline Activation activation_of(const char* op, std::optional<std::string_view> name) {
  if (!name.has_value())
    return Activation::none;
  constexpr std::pair<std::string_view, Activation> names[] = {
      {"relu", Activation::relu},
      {"silu", Activation::silu},
      {"gelu", Activation::gelu},
      {"sigmoid", Activation::sigmoid},
      {"tanh", Activation::tanh},
      {"hardswish", Activation::hardswish},
  };
  for (const auto& [known, activation] : names) {
    if (*name == known)
      return activation;
  }
  TORCH_CHECK_VALUE(
      false,
      op,
      ": expected activation to be None, \"relu\", \"silu\", \"gelu\", \"sigmoid\", \"tanh\" or ",
      "\"hardswish\", got \"",
      *name,
      "\"");
}

// `what` and `argument` name the list: "the spatial sizes of " "src", or "" "strides".
inline void check_within(
    const char* op,
    const char* what,
    const char* argument,
    c10::SymIntArrayRef list,
    int64_t least,
    int64_t most) {
  for (const auto& value : list) {
    TORCH_CHECK_VALUE(
        holds(value.sym_ge(least)) && holds(value.sym_le(most)),
        op,
        ": expected every entry of ",
        what,
        argument,
        " to be from ",
        least,
        " to ",
        most,
        ", got ",
        list);
  }
}

// Pads of 2^31, say, make a result that cannot be. Sizes that are not known yet are not asked for.
inline void check_result(const char* op, const char* causes, c10::SymIntArrayRef sizes) {
  double elements = 1;
  for (const auto& size : sizes)
    elements *= static_cast<double>(std::max<int64_t>(size.maybe_as_int().value_or(1), 1));
  TORCH_CHECK_VALUE(
      elements <= kMaxSize,
      op,
      ": expected ",
      causes,
      " to give a result of at most 2^48 elements, got sizes ",
      sizes);
}

// One operator call, its tensors and attributes being checked.
class Call {
 public:
  Call(const char* op, const at::Tensor& image, const char* argument, const ConvOptions& options)
      : op(op), options(options), rank(image.dim()), spatial(rank - 2) {
    const bool nxc = is_channels_innermost(op, options.data_format);
    TORCH_CHECK_VALUE(
        options.weights_format == "OIX" || options.weights_format == "XIO",
        op,
        ": expected weights_format to be \"OIX\" or \"XIO\", got \"",
        options.weights_format,
        "\"");
    TORCH_CHECK_VALUE(
        options.auto_pad == "none" || options.auto_pad == "same_upper" ||
            options.auto_pad == "same_lower" || options.auto_pad == "valid",
        op,
        ": expected auto_pad to be one of \"none\", \"same_upper\", \"same_lower\", \"valid\", ",
        "got \"",
        options.auto_pad,
        "\"");
    check_algorithm(op, options.algorithm, kConvAlgorithms);
    TORCH_CHECK_VALUE(
        rank >= 3 && rank <= 5,
        op,
        ": expected ",
        argument,
        " to be 3-D to 5-D (",
        nxc ? "N, spatial..., C" : "N, C, spatial...",
        "), got ",
        rank,
        "-D with sizes ",
        image.sym_sizes());
    image_at = image_dims(nxc, rank);
    weights_at = weights_dims(options.weights_format == "XIO", rank);
    check_attribute("strides", options.strides, 1);
    check_attribute("pads_begin", options.pads_begin, 0);
    check_attribute("pads_end", options.pads_end, 0);
    check_attribute("dilations", options.dilations, 1);
    TORCH_CHECK_VALUE(
        holds(options.groups.sym_ge(1)) && holds(options.groups.sym_le(kMaxAttribute)),
        op,
        ": expected groups to be from 1 to ",
        kMaxAttribute,
        ", got ",
        options.groups);
  }

  Activation activation_of(std::optional<std::string_view> name) const {
    return conv_detail::activation_of(op, name);
  }

  // Of the type and on the device of another tensor, and of the sizes of the output.
  void check_like_output(
      const char* argument,
      const at::Tensor& tensor,
      c10::SymIntArrayRef output_sizes,
      const char* like_name,
      const at::Tensor& like) const {
    check_strided(op, argument, tensor);
    check_alike(argument, tensor, like_name, like);
    bool is_alike = tensor.dim() == rank;
    for (int64_t d = 0; is_alike && d < rank; d++)
      is_alike = holds(tensor.sym_size(d).sym_eq(output_sizes[d]));
    TORCH_CHECK_VALUE(
        is_alike,
        op,
        ": expected ",
        argument,
        " to have the sizes of the output, ",
        output_sizes,
        ", got ",
        tensor.sym_sizes());
  }

  void check_attribute(const char* argument, c10::SymIntArrayRef list, int64_t least) const {
    if (!list.empty())
      check_list(argument, list, least);
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
        holds(oc(weights).sym_gt(0)) && holds(ic_per_group(weights).sym_le(kMaxAttribute)),
        op,
        ": expected weights to have at least one output channel and at most ",
        kMaxAttribute,
        " input channels, got sizes ",
        weights.sym_sizes());
    check_divisible("weights", oc(weights));
  }

  // Both operands have one type and one device.
  void check_alike(
      const char* argument,
      const at::Tensor& tensor,
      const char* like_name,
      const at::Tensor& like) const {
    TORCH_CHECK_TYPE(
        tensor.scalar_type() == like.scalar_type(),
        op,
        ": expected ",
        argument,
        " to have the type of ",
        like_name,
        " (",
        like.scalar_type(),
        "), got ",
        tensor.scalar_type());
    check_same_device(op, argument, tensor, like_name, like);
  }

  // The padding at the beginning of spatial dimension d.
  c10::SymInt pad(size_t d, const c10::SymInt& in, const c10::SymInt& kernel) const {
    if (options.auto_pad == "none")
      return options.pad_begin(d);
    if (options.auto_pad == "valid")
      return 0;
    const c10::SymInt stride = options.stride(d);
    const c10::SymInt last = (in + stride - 1) / stride - 1;
    const c10::SymInt total = (last * stride + reach(d, kernel) - in).max(0);
    return options.auto_pad == "same_lower" ? (total + 1) / 2 : total / 2;
  }

  // The spatial sizes of dst.
  Sizes dst_size(c10::SymIntArrayRef src_size, c10::SymIntArrayRef kernel) const {
    Sizes result(spatial);
    for (size_t d = 0; d < spatial; d++) {
      const c10::SymInt in = src_size[d], stride = options.stride(d);
      if (options.auto_pad == "same_upper" || options.auto_pad == "same_lower") {
        result[d] = (in + stride - 1) / stride;
        continue;
      }
      const bool pads = options.auto_pad == "none";
      const c10::SymInt padded = pads ? in + options.pad_begin(d) + options.pad_end(d) : in;
      const c10::SymInt covered = reach(d, kernel[d]);
      TORCH_CHECK_VALUE(
          holds(padded.sym_ge(covered)),
          op,
          ": expected the kernel to fit into the padded src, ",
          "got a kernel that covers ",
          covered,
          " and a padded size of ",
          padded,
          " in spatial dimension ",
          d,
          " (sizes ",
          src_size,
          ", kernel sizes ",
          kernel,
          ", dilation ",
          options.dilation(d),
          ")");
      result[d] = (padded - covered) / stride + 1;
    }
    return result;
  }

  // The gradient that a backward operator gets is shaped as the forward's result.
  void check_grad(const at::Tensor& grad, c10::SymIntArrayRef src_size, c10::SymIntArrayRef kernel)
      const {
    const auto expected = dst_size(src_size, kernel);
    const auto got = spatial_of(grad);
    for (size_t d = 0; d < spatial; d++) {
      TORCH_CHECK_VALUE(
          holds(got[d].sym_eq(expected[d])),
          op,
          ": expected grad to have spatial sizes ",
          c10::SymIntArrayRef(expected),
          " (those of the convolution of sizes ",
          src_size,
          " with kernel sizes ",
          kernel,
          "), got ",
          got);
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
        tensor.dim() == rank,
        op,
        ": expected ",
        argument,
        " to be ",
        rank,
        "-D, got ",
        tensor.dim(),
        "-D with sizes ",
        tensor.sym_sizes());
    check_numel(op, argument, tensor);
    TORCH_CHECK_TYPE(
        contains(FloatingTypes{}, tensor.scalar_type()),
        op,
        ": expected ",
        argument,
        " to be float64, float32, bfloat16 or float16, got ",
        tensor.scalar_type());
  }

  void check_divisible(const char* argument, const c10::SymInt& channels) const {
    TORCH_CHECK_VALUE(
        holds(channels.sym_le(kMaxAttribute)) && holds((channels % options.groups).sym_eq(0)),
        op,
        ": expected ",
        argument,
        " to have at most ",
        kMaxAttribute,
        " channels, divisible by groups (",
        options.groups,
        "), got ",
        channels);
  }

  // How many elements of src a kernel covers.
  c10::SymInt reach(size_t d, const c10::SymInt& kernel) const {
    return (kernel - 1) * options.dilation(d) + 1;
  }
};

} // namespace conv_detail

} // namespace torch_dnnl
