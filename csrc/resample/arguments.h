// The arguments of a call of resample or resample_backward: what they mean, and whether they are
// valid. A call is parsed once; Meta, CPU and CUDA make the output and the problem of the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checks.h"
#include "core/dispatch.h"
#include "resample/axis_table.h"

namespace torch_dnnl {

// What `algorithm` may be.
inline constexpr std::string_view kResampleAlgorithms[] = {
    "auto", // the device's own choice
    // The kernels of all devices.
    "reference",
    "rows",
    "copy",
    "sliding_window",
    "sum_windows",
    "sum_rows",
    "sum_pixels",
};

// The arguments of resample and, but for extrapolation_value, of resample_backward, in the order of
// their schemas.
namespace resample_arg {
enum Name {
  image,
  size,
  scales,
  mode,
  coordinates,
  nearest_mode,
  antialias,
  cubic_coeff_a,
  exclude_outside,
  roi,
  extrapolation_value,
  data_format,
  dtype,
  algorithm,
  window,
  count
};

inline size_t position(Name argument, bool transposed) {
  return argument - (transposed && argument > extrapolation_value);
}
} // namespace resample_arg

// A call that is valid. It refers to the operator's arguments.
struct ResampleArguments {
  bool transposed;                       // of resample_backward
  bool nxc;                              // channels are innermost
  AxisSpec axis;                         // what the axes share
  c10::SmallVector<c10::SymInt, 3> size; // of the output, spatial
  c10::ScalarType dtype;                 // of the output
  std::vector<double> factors, roi;      // of the spatial dimensions, or empty
  double extrapolation_value;
  std::string_view algorithm;
  // Of a part of a resize, for each spatial dimension: the sizes of the whole source, where the
  // part of it begins, and both of the whole resized image. Or empty.
  c10::SmallVector<c10::SymInt, 12> window;
};

namespace resample_detail {

template <class T, size_t N>
T choose(
    const char* op,
    const char* argument,
    std::string_view name,
    const std::pair<std::string_view, T> (&choices)[N]) {
  for (const auto& [choice, value] : choices)
    if (choice == name)
      return value;
  TORCH_CHECK_VALUE(
      false,
      Expected(op) << argument << " to be one of "
                   << listed(choices, [](const auto& choice) { return choice.first; }) << ", got \""
                   << name << "\"");
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

// linear, cubic, lanczos3 or lanczos5
inline std::string antialiased_filters() {
  const auto name = [](const auto& filter) {
    return filter_support(filter.second) > 0 ? filter.first : "";
  };
  std::string names = listed(filters, name, /*quote=*/"");
  return names.replace(names.rfind(", "), 2, " or ");
}

// The attributes that are not of one axis alone: `argument(name)` is one of the operator's. Factors
// and the region are checked, too.
template <class F>
AxisSpec check_options(
    const char* op,
    const F& argument,
    c10::ArrayRef<double> factors,
    c10::ArrayRef<double> roi,
    size_t spatial) {
  using namespace resample_arg;
  const std::string_view mode_name = argument(mode).toStringView();
  AxisSpec spec;
  spec.filter = choose(op, "mode", mode_name, filters);
  spec.coordinates =
      choose(op, "coordinates", argument(coordinates).toStringView(), coordinate_rules);
  spec.nearest_mode =
      choose(op, "nearest_mode", argument(nearest_mode).toStringView(), nearest_modes);
  spec.antialias = argument(antialias).toBool();
  spec.exclude_outside = argument(exclude_outside).toBool();
  spec.cubic_coeff_a = argument(cubic_coeff_a).toDouble();
  TORCH_CHECK_VALUE(
      std::abs(spec.cubic_coeff_a) <= std::numeric_limits<float>::max(), // false for NaN
      Expected(op) << "cubic_coeff_a to be finite, in float32 too, got " << spec.cubic_coeff_a);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !spec.antialias || filter_support(spec.filter) > 0,
      Expected(op) << "mode to be " << antialiased_filters() << " with antialias=True, got \""
                   << mode_name << "\"");
  if (!factors.empty()) {
    check_length(op, "scale_factor", factors, spatial);
    for (const double scale : factors) {
      TORCH_CHECK_VALUE(
          std::isfinite(scale) && scale > 0 && std::isfinite(1 / scale),
          Expected(op) << "every scale_factor to be positive and finite, got " << factors);
    }
  }
  if (spec.coordinates == Coordinates::tf_crop_and_resize || !roi.empty()) {
    TORCH_CHECK_VALUE(
        roi.size() == 2 * spatial,
        Expected(op) << "roi to hold the starts, then the ends, " << "of " << spatial
                     << " spatial dimensions, got " << roi.size() << " values: " << roi);
  }
  for (const double bound : roi)
    check_finite(op, "roi", bound);
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
          Expected(op) << "scale_factor * input size to be above 1 with align_corners, got "
                       << factors[d] << " * " << in[d]);
    }
    if (spec.antialias) {
      const double least = least_size_to_antialias(factors[d]);
      TORCH_CHECK_VALUE(
          at_least(in[d], least),
          Expected(op) << "scale_factor * input size to be at least 0.5 with antialias, got "
                       << factors[d] << " * " << in[d]);
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
      Expected(op) << argument << " to be 3-D to 5-D ("
                   << (channels_innermost ? "N, spatial..., C" : "N, C, spatial...") << "), got "
                   << image.dim() << "-D with sizes " << image.sym_sizes());
  check_strided(op, argument, image);
  const size_t spatial = image.dim() - 2;
  const auto sizes = image.sym_sizes().slice(first_spatial(channels_innermost), spatial);
  for (const auto& size : sizes) {
    TORCH_CHECK_VALUE(
        holds(size.sym_gt(0)),
        Expected(op) << "the spatial sizes of " << argument << " to be positive, got "
                     << image.sym_sizes());
  }
  return spatial;
}

// The whole sizes, of the source or of the resized image, in `window`, against the part's.
inline c10::SymIntArrayRef check_part(
    const char* op,
    const char* name,
    c10::SymIntArrayRef window,
    c10::SymIntArrayRef part,
    bool is_resized) {
  const size_t spatial = part.size();
  const auto whole = window.slice(is_resized ? 2 * spatial : 0, spatial);
  const auto begin = window.slice(is_resized ? 3 * spatial : spatial, spatial);
  for (size_t d = 0; d < spatial; d++) {
    TORCH_CHECK_VALUE(
        holds((begin[d] + part[d]).sym_le(whole[d])),
        Expected(op) << "window to have a whole " << name << " of at least " << begin[d] + part[d]
                     << " in spatial dimension " << d << ", where the part of it ends, got "
                     << whole[d]);
  }
  return whole;
}

// floor(in * scale), in float64.
inline c10::SymInt scaled_size(const char* op, const c10::SymInt& in, double scale) {
  // Of a symbol, whole numbers where they are exact: the result is a term like others then.
  const double kilo = scale * 1024;
  if (in.is_symbolic() && kilo == std::floor(kilo) && kilo < 0x1p30)
    return in * static_cast<int64_t>(kilo) / 1024;
  const c10::SymFloat size = static_cast<c10::SymFloat>(in) * scale;
  // Not floor, by which torch has every division within the term leave no remainder.
  if (size.is_symbolic())
    return c10::SymInt(size.toSymNodeImpl()->neg()->ceil()->neg());
  const double floor = std::floor(size.expect_float());
  TORCH_CHECK_VALUE(
      floor < 0x1p63,
      Expected(op) << "scale_factor * input size to fit in 64 bits, got " << scale << " * " << in);
  return static_cast<int64_t>(floor);
}

} // namespace resample_detail

// `args`: the call of resample or, if `transposed`, of resample_backward.
inline ResampleArguments parse_resample(c10::ArrayRef<c10::IValue> args, bool transposed) {
  using namespace resample_arg;
  const auto argument = [&](Name name) -> const c10::IValue& {
    return args[position(name, transposed)];
  };
  const char* const op = transposed ? "resample_backward" : "resample";
  const char* const image_name = transposed ? "grad" : "src";
  const char* const size_name = transposed ? "src_size" : "size";
  const at::Tensor& src = args[image].toTensor();
  const bool nxc = is_channels_innermost(op, argument(data_format).toStringView());
  const size_t spatial = resample_detail::check_image(op, image_name, src, nxc);
  const auto src_size = src.sym_sizes().slice(resample_detail::first_spatial(nxc), spatial);
  ResampleArguments call{
      .transposed = transposed,
      .nxc = nxc,
      .dtype = argument(dtype).toOptional<c10::ScalarType>().value_or(src.scalar_type()),
      .factors = args[scales].toDoubleVector(),
      .roi = args[roi].toDoubleVector(),
      .extrapolation_value = transposed ? 0 : args[extrapolation_value].toDouble(),
      .algorithm = argument(algorithm).toStringView()};
  if (!args[size].isNone())
    for (const c10::IValue& each : args[size].toListRef())
      call.size.push_back(each.toSymInt());
  check_finite(op, "extrapolation_value", call.extrapolation_value);
  check_algorithm(op, call.algorithm, kResampleAlgorithms);
  call.axis = resample_detail::check_options(op, argument, call.factors, call.roi, spatial);
  if (call.size.empty() && !transposed)
    for (size_t d = 0; d < call.factors.size(); d++)
      call.size.push_back(resample_detail::scaled_size(op, src_size[d], call.factors[d]));
  const c10::SymIntArrayRef size_of_result = call.size;
  check_length(op, size_name, size_of_result, spatial);
  check_within(op, "", size_name, size_of_result, 1);
  const auto is_taken = [&](c10::ScalarType type) {
    return transposed ? contains(FloatingTypes{}, type) : contains(ImageTypes{}, type);
  };
  TORCH_CHECK_TYPE(
      is_taken(src.scalar_type()) && is_taken(call.dtype),
      Expected(op) << "float64, float32, bfloat16"
                   << (transposed ? " or float16" : ", float16, uint8, int8, int16 or int32")
                   << ", got " << image_name << " of " << src.scalar_type() << " and dtype "
                   << call.dtype);
  c10::SymIntArrayRef in = transposed ? size_of_result : src_size;
  c10::SymIntArrayRef out = transposed ? src_size : size_of_result;
  if (!argument(window).isNone()) {
    for (const c10::IValue& each : argument(window).toListRef())
      call.window.push_back(each.toSymInt());
    const c10::SymIntArrayRef numbers = call.window;
    TORCH_CHECK_VALUE(
        numbers.size() == 4 * spatial,
        Expected(op) << "window to have four entries per spatial dimension (" << spatial
                     << "), got " << numbers.size() << ": " << numbers);
    check_within(op, "", "window", numbers, 0, int64_t(1) << 48); // sums do not overflow
    in = resample_detail::check_part(op, "source", numbers, in, /*is_resized=*/false);
    out = resample_detail::check_part(op, "resized image", numbers, out, /*is_resized=*/true);
  }
  resample_detail::check_factors(op, call.axis, call.factors, in, out);
  return call;
}

} // namespace torch_dnnl
