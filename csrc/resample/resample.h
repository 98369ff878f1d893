// The calls of resample: what the operators' arguments mean, whether they are
// valid, and what the result looks like. Meta, CPU, CUDA and backward calls all
// come through here.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "core/checks.h"
#include "core/dispatch.h"
#include "core/torch/empty.h"
#include "resample/axis_table.h"
#include "resample/problem.h"

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

// A tensor like `image` with other spatial sizes and type. channels_last stays so.
inline at::Tensor resized_like(
    const at::Tensor& image,
    c10::SymIntArrayRef size,
    bool channels_innermost,
    c10::ScalarType dtype) {
  c10::SmallVector<c10::SymInt, 5> sizes(image.sym_sizes().begin(), image.sym_sizes().end());
  std::copy(size.begin(), size.end(), sizes.begin() + first_spatial(channels_innermost));
  const auto format =
      channels_innermost ? at::MemoryFormat::Contiguous : image.suggest_memory_format();
  return empty(sizes, image.options().dtype(dtype).memory_format(format));
}

} // namespace resample_detail

// Checks a call of resample and returns its empty output.
inline at::Tensor
resample_output(const at::Tensor& src, c10::SymIntArrayRef size, const ResampleOptions& options) {
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
  return resample_detail::resized_like(src, size, nxc, dtype);
}

// Checks a call of resample_backward and returns its empty output.
inline at::Tensor resample_backward_output(
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
  return resample_detail::resized_like(grad, src_size, nxc, dtype);
}

// Whether this is a pass of interpolate over bytes, which takes the axes of antialiased filters
// that overshoot one by one, as Pillow does.
inline bool is_pass_over_bytes(const AxisSpec& a, c10::ScalarType src, c10::ScalarType dst) {
  return a.antialias && a.filter != Filter::linear && src == c10::ScalarType::Byte && dst == src &&
      (a.coordinates == Coordinates::torch_linear ||
       a.coordinates == Coordinates::torch_antialias_corners);
}

// The problem of a checked call. `forward`: dst is the resized image; otherwise
// dst is the gradient of the source image. Axes always lead from source image to
// resized image.
inline ResampleProblem resample_problem(
    const at::Tensor& src,
    const at::Tensor& dst,
    const ResampleOptions& options,
    bool forward) {
  const bool nxc = options.data_format == "NXC";
  const int64_t spatial = src.dim() - 2;
  const int64_t channel = nxc ? src.dim() - 1 : 1;
  const int64_t first = resample_detail::first_spatial(nxc);
  const AxisSpec shared =
      resample_detail::check_options(forward ? "resample" : "resample_backward", options, spatial);

  ResampleProblem p{};
  p.n = src.size(0);
  p.c = src.size(channel);
  p.src_dtype = src.scalar_type();
  p.dst_dtype = dst.scalar_type();
  p.src = src.const_data_ptr();
  p.dst = dst.mutable_data_ptr();
  p.transposed = !forward;
  p.extrapolation_value = options.extrapolation_value;
  p.channels_innermost = p.c > 1 && dst.stride(channel) == 1;
  p.src_stride[0] = src.stride(0), p.dst_stride[0] = dst.stride(0);
  p.src_stride[1] = src.stride(channel), p.dst_stride[1] = dst.stride(channel);
  for (int64_t a = 0; a < 3; a++) {
    const int64_t d = a - (3 - spatial);
    p.src_size[a] = p.dst_size[a] = 1;
    if (d < 0)
      continue;
    p.src_size[a] = src.size(first + d), p.dst_size[a] = dst.size(first + d);
    p.src_stride[2 + a] = src.stride(first + d), p.dst_stride[2 + a] = dst.stride(first + d);
    p.axes[a] = shared;
    p.axes[a].float64_index = p.src_dtype == c10::ScalarType::Double;
    p.axes[a].fixed_point = is_pass_over_bytes(shared, p.src_dtype, p.dst_dtype);
    p.axes[a].in = forward ? p.src_size[a] : p.dst_size[a];
    p.axes[a].out = forward ? p.dst_size[a] : p.src_size[a];
    if (!options.scales.empty())
      p.axes[a].factor = options.scales[d];
    if (shared.coordinates == Coordinates::tf_crop_and_resize) {
      p.axes[a].roi_begin = options.roi[d];
      p.axes[a].roi_end = options.roi[spatial + d];
    }
  }
  return p;
}

// How many elements a copy takes in the time of fetching one element of the result one by one.
constexpr int64_t kCopiedPerFetched = 64;

// `src` with dense rows in the layout of `dst`, for kernels that need them. It is copied, unless it
// is so much larger than the result (an expanded one may have any size) that the copy would take
// longer than the rest.
inline at::Tensor
with_dense_rows(const at::Tensor& src, const at::Tensor& dst, const ResampleOptions& options) {
  if (src.numel() / kCopiedPerFetched > dst.numel())
    return src;
  const bool nxc = options.data_format == "NXC";
  return src.contiguous(nxc ? at::MemoryFormat::Contiguous : dst.suggest_memory_format());
}

// The operators' signatures, spelled once: `run` gets the checked call.
template <at::Tensor (*run)(const at::Tensor&, c10::SymIntArrayRef, const ResampleOptions&)>
at::Tensor resample_kernel(
    const at::Tensor& src,
    c10::SymIntArrayRef size,
    c10::ArrayRef<double> scales,
    std::string_view mode,
    std::string_view coordinates,
    std::string_view nearest_mode,
    bool antialias,
    double cubic_coeff_a,
    bool exclude_outside,
    c10::ArrayRef<double> roi,
    double extrapolation_value,
    std::string_view data_format,
    std::optional<c10::ScalarType> dtype) {
  return run(
      src,
      size,
      {scales,
       mode,
       coordinates,
       nearest_mode,
       antialias,
       cubic_coeff_a,
       exclude_outside,
       roi,
       extrapolation_value,
       data_format,
       dtype});
}

template <at::Tensor (*run)(const at::Tensor&, c10::SymIntArrayRef, const ResampleOptions&)>
at::Tensor resample_backward_kernel(
    const at::Tensor& grad,
    c10::SymIntArrayRef src_size,
    c10::ArrayRef<double> scales,
    std::string_view mode,
    std::string_view coordinates,
    std::string_view nearest_mode,
    bool antialias,
    double cubic_coeff_a,
    bool exclude_outside,
    c10::ArrayRef<double> roi,
    std::string_view data_format,
    std::optional<c10::ScalarType> dtype) {
  return run(
      grad,
      src_size,
      {scales,
       mode,
       coordinates,
       nearest_mode,
       antialias,
       cubic_coeff_a,
       exclude_outside,
       roi,
       /*extrapolation_value=*/0,
       data_format,
       dtype});
}

} // namespace torch_dnnl
