// The arguments of a call of resample or resample_backward: what they mean, and whether they are
// valid. A call is parsed once; Meta, CPU and CUDA make the output and the problem of the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/checks.h"
#include "core/dispatch.h"
#include "resample/algorithms.h"
#include "resample/axis_table.h"

namespace torch_dnnl {

// The attributes of both operators.
struct ResampleOptions {
  c10::ArrayRef<double> scales;
  std::string_view mode, coordinates, nearest_mode;
  bool antialias;
  double cubic_coeff_a;
  bool exclude_outside;
  c10::ArrayRef<double> roi;
  double extrapolation_value;
  std::string_view data_format;
  std::optional<c10::ScalarType> dtype;
  std::string_view algorithm;
};

// A call that is valid. It refers to the operator's arguments.
struct ResampleArguments {
  bool transposed;                       // of resample_backward
  bool nxc;                              // channels are innermost
  AxisSpec axis;                         // what the axes share
  c10::SmallVector<c10::SymInt, 3> size; // of the output, spatial
  c10::ScalarType dtype;                 // of the output
  c10::ArrayRef<double> factors, roi;    // of the spatial dimensions, or empty
  double extrapolation_value;
  std::string_view algorithm;
};

namespace resample_detail {

template <class T, size_t N>
T choose(
    const char* op,
    const char* argument,
    std::string_view name,
    const std::pair<std::string_view, T> (&choices)[N]) {
  for (const auto& [choice, value] : choices) {
    if (choice == name)
      return value;
  }
  std::string known;
  for (const auto& [choice, value] : choices) {
    known += known.empty() ? "\"" : ", \"";
    known += choice;
    known += '"';
  }
  TORCH_CHECK_VALUE(
      false, op, ": expected ", argument, " to be one of ", known, ", got \"", name, "\"");
}

inline constexpr std::pair<std::string_view, Filter> filters[] = {
    {"nearest", Filter::nearest},
    {"linear", Filter::linear},
    {"cubic", Filter::cubic},
    {"lanczos3", Filter::lanczos3},
    {"lanczos5", Filter::lanczos5},
    {"area", Filter::area},
};
inline constexpr std::pair<std::string_view, Coordinates> coordinate_rules[] = {
    {"half_pixel", Coordinates::half_pixel},
    {"align_corners", Coordinates::align_corners},
    {"asymmetric", Coordinates::asymmetric},
    {"half_pixel_symmetric", Coordinates::half_pixel_symmetric},
    {"pytorch_half_pixel", Coordinates::pytorch_half_pixel},
    {"tf_half_pixel_for_nn", Coordinates::tf_half_pixel_for_nn},
    {"tf_crop_and_resize", Coordinates::tf_crop_and_resize},
    {"torch_linear", Coordinates::torch_linear},
    {"torch_antialias_corners", Coordinates::torch_antialias_corners},
    {"torch_nearest", Coordinates::torch_nearest},
    {"torch_nearest_exact", Coordinates::torch_nearest_exact},
    {"torch_nearest_direct", Coordinates::torch_nearest_direct},
    {"torch_nearest_exact_direct", Coordinates::torch_nearest_exact_direct},
};
inline constexpr std::pair<std::string_view, NearestMode> nearest_modes[] = {
    {"round_prefer_ceil", NearestMode::round_prefer_ceil},
    {"round_prefer_floor", NearestMode::round_prefer_floor},
    {"floor", NearestMode::floor},
    {"ceil", NearestMode::ceil},
};

// The attributes that all axes share, checked.
inline AxisSpec check_options(const char* op, const ResampleOptions& options, size_t spatial) {
  AxisSpec spec;
  spec.filter = choose(op, "mode", options.mode, filters);
  spec.coordinates = choose(op, "coordinates", options.coordinates, coordinate_rules);
  spec.nearest_mode = choose(op, "nearest_mode", options.nearest_mode, nearest_modes);
  spec.antialias = options.antialias;
  spec.exclude_outside = options.exclude_outside;
  spec.cubic_coeff_a = options.cubic_coeff_a;
  TORCH_CHECK_VALUE(
      std::abs(options.cubic_coeff_a) <= std::numeric_limits<float>::max(), // false for NaN
      op,
      ": expected cubic_coeff_a to be finite, in float32 too, got ",
      options.cubic_coeff_a);
  check_finite(op, "extrapolation_value", options.extrapolation_value);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !options.antialias || filter_support(spec.filter) > 0,
      op,
      ": expected mode to be linear, cubic, lanczos3 or lanczos5 with antialias=True, got \"",
      options.mode,
      "\"");
  if (!options.scales.empty()) {
    check_length(op, "scale_factor", options.scales, spatial);
    for (const double scale : options.scales) {
      TORCH_CHECK_VALUE(
          std::isfinite(scale) && scale > 0 && std::isfinite(1 / scale),
          op,
          ": expected every scale_factor to be positive and finite, got ",
          options.scales);
    }
  }
  if (spec.coordinates == Coordinates::tf_crop_and_resize || !options.roi.empty()) {
    TORCH_CHECK_VALUE(
        options.roi.size() == 2 * spatial,
        op,
        ": expected roi to hold the starts, then the ends, ",
        "of ",
        spatial,
        " spatial dimensions, got ",
        options.roi.size(),
        " values: ",
        options.roi);
  }
  for (const double bound : options.roi)
    check_finite(op, "roi", bound);
  check_algorithm(op, options.algorithm, kResampleAlgorithms);
  return spec;
}

// The factors, where given, against the sizes of the image and of the resized image.
inline void check_factors(
    const char* op,
    const AxisSpec& spec,
    c10::ArrayRef<double> factors,
    c10::SymIntArrayRef in,
    c10::SymIntArrayRef out) {
  const auto at_least = [](const c10::SymInt& size, double least) {
    return least < 0x1p62 && holds(size.sym_ge(static_cast<int64_t>(least)));
  };
  for (size_t d = 0; d < factors.size(); d++) {
    if (spec.coordinates == Coordinates::align_corners) {
      const double least = std::floor((1 + 1e-12) / factors[d]) + 1;
      TORCH_CHECK_VALUE(
          at_least(in[d], least) || holds(out[d].sym_eq(1)),
          op,
          ": expected scale_factor * input size to be above 1 with align_corners, got ",
          factors[d],
          " * ",
          in[d]);
    }
    if (spec.antialias) {
      const double least = least_size_to_antialias(factors[d]);
      TORCH_CHECK_VALUE(
          at_least(in[d], least),
          op,
          ": expected scale_factor * input size to be at least 0.5 with antialias, got ",
          factors[d],
          " * ",
          in[d]);
    }
  }
}

// The spatial dimensions of a tensor: 2, 3, ... or 1, 2, ... with channels last.
inline size_t first_spatial(bool channels_innermost) {
  return channels_innermost ? 1 : 2;
}

inline size_t check_image(
    const char* op,
    const char* argument,
    const at::Tensor& image,
    bool channels_innermost) {
  TORCH_CHECK_VALUE(
      image.dim() >= 3 && image.dim() <= 5,
      op,
      ": expected ",
      argument,
      " to be 3-D to 5-D (",
      channels_innermost ? "N, spatial..., C" : "N, C, spatial...",
      "), got ",
      image.dim(),
      "-D with sizes ",
      image.sym_sizes());
  check_strided(op, argument, image);
  const size_t spatial = image.dim() - 2;
  const auto sizes = image.sym_sizes().slice(first_spatial(channels_innermost), spatial);
  for (const auto& size : sizes) {
    TORCH_CHECK_VALUE(
        holds(size.sym_gt(0)),
        op,
        ": expected the spatial sizes of ",
        argument,
        " to be positive, got ",
        image.sym_sizes());
  }
  return spatial;
}

// floor(in * scale), in float64.
inline c10::SymInt scaled_size(const char* op, const c10::SymInt& in, double scale) {
  const c10::SymFloat size = static_cast<c10::SymFloat>(in) * scale;
  if (size.is_symbolic())
    return c10::SymInt(size.toSymNodeImpl()->floor());
  const double floor = std::floor(size.expect_float());
  TORCH_CHECK_VALUE(
      floor < 0x1p63,
      op,
      ": expected scale_factor * input size to fit in 64 bits, got ",
      scale,
      " * ",
      in);
  return static_cast<int64_t>(floor);
}

inline ResampleArguments arguments_of(
    const AxisSpec& axis,
    bool transposed,
    bool nxc,
    c10::SymIntArrayRef size,
    c10::ScalarType dtype,
    const ResampleOptions& options) {
  return {
      .transposed = transposed,
      .nxc = nxc,
      .axis = axis,
      .size = {size.begin(), size.end()},
      .dtype = dtype,
      .factors = options.scales,
      .roi = options.roi,
      .extrapolation_value = options.extrapolation_value,
      .algorithm = options.algorithm};
}

} // namespace resample_detail

inline ResampleArguments
parse_resample(const at::Tensor& src, c10::SymIntArrayRef size, const ResampleOptions& options) {
  constexpr const char* op = "resample";
  const bool nxc = is_channels_innermost(op, options.data_format);
  const size_t spatial = resample_detail::check_image(op, "src", src, nxc);
  const auto src_size = src.sym_sizes().slice(resample_detail::first_spatial(nxc), spatial);
  const AxisSpec spec = resample_detail::check_options(op, options, spatial);
  c10::SmallVector<c10::SymInt, 3> scaled;
  if (size.empty()) {
    for (size_t d = 0; d < options.scales.size(); d++)
      scaled.push_back(resample_detail::scaled_size(op, src_size[d], options.scales[d]));
    size = scaled;
  }
  check_length(op, "size", size, spatial);
  check_at_least(op, "size", size, 1);
  const auto dtype = options.dtype.value_or(src.scalar_type());
  TORCH_CHECK_TYPE(
      contains(ImageTypes{}, src.scalar_type()) && contains(ImageTypes{}, dtype),
      op,
      ": expected float64, float32, bfloat16, float16, uint8, int8, int16 or int32, got src of ",
      src.scalar_type(),
      " and dtype ",
      dtype);
  resample_detail::check_factors(op, spec, options.scales, src_size, size);
  return resample_detail::arguments_of(spec, false, nxc, size, dtype, options);
}

inline ResampleArguments parse_resample_backward(
    const at::Tensor& grad,
    c10::SymIntArrayRef src_size,
    const ResampleOptions& options) {
  constexpr const char* op = "resample_backward";
  const bool nxc = is_channels_innermost(op, options.data_format);
  const size_t spatial = resample_detail::check_image(op, "grad", grad, nxc);
  check_length(op, "src_size", src_size, spatial);
  check_at_least(op, "src_size", src_size, 1);
  const auto dtype = options.dtype.value_or(grad.scalar_type());
  TORCH_CHECK_TYPE(
      contains(FloatingTypes{}, grad.scalar_type()) && contains(FloatingTypes{}, dtype),
      op,
      ": expected float64, float32, bfloat16 or float16, got grad of ",
      grad.scalar_type(),
      " and dtype ",
      dtype);
  const AxisSpec spec = resample_detail::check_options(op, options, spatial);
  const auto out = grad.sym_sizes().slice(resample_detail::first_spatial(nxc), spatial);
  resample_detail::check_factors(op, spec, options.scales, src_size, out);
  return resample_detail::arguments_of(spec, true, nxc, src_size, dtype, options);
}

} // namespace torch_dnnl
