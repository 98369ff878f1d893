// Resize: torch_dnnl::resample and its adjoint. docs/resample.md has the formulas.
#pragma once

#include <torch_dnnl/call.h>

namespace torch_dnnl {

// The defaults are those of oneDNN's Resampling.
struct ResampleOptions {
  // The factor of each spatial dimension; empty: the ratio of the sizes.
  std::vector<double> scales = {};
  // nearest, linear, cubic, lanczos3, lanczos5 or area.
  std::string mode = "linear";
  // half_pixel, align_corners, asymmetric, half_pixel_symmetric, pytorch_half_pixel,
  // tf_half_pixel_for_nn or tf_crop_and_resize.
  std::string coordinates = "half_pixel";
  // round_prefer_ceil, round_prefer_floor, floor or ceil.
  std::string nearest_mode = "round_prefer_ceil";
  // Whether the filter is wider when the image becomes smaller (linear, cubic, lanczos).
  bool antialias = false;
  double cubic_coeff_a = -0.75;
  // Whether neighbours outside of the image have no weight, instead of the edge's value.
  bool exclude_outside = false;
  // With tf_crop_and_resize: starts, then ends, of each spatial dimension, in parts of it.
  std::vector<double> roi = {};
  // With tf_crop_and_resize: the value outside of the image.
  double extrapolation_value = 0.;
  // NCX: [N, C, spatial...]; NXC: [N, spatial..., C].
  std::string data_format = "NCX";
  // The type of the result; none: that of src.
  std::optional<at::ScalarType> dtype = {};
  // auto, or the name of a kernel of the device.
  std::string algorithm = "auto";
  // Where src and the result are parts of an image and of its resized image: of each spatial
  // dimension the size of that image; then where src begins in it; then both of the resized image.
  Sizes window = {};

  void pass(detail::Call& call) const {
    call("scales", scales)("mode", mode)("coordinates", coordinates)("nearest_mode", nearest_mode);
    call("antialias", antialias)("cubic_coeff_a", cubic_coeff_a);
    call("exclude_outside", exclude_outside)("roi", roi);
    call("extrapolation_value", extrapolation_value);
    call("data_format", data_format)("dtype", dtype)("algorithm", algorithm)("window", window);
  }
};

// Resizes the spatial dimensions of src, which is 3-D to 5-D. `size`: their new sizes; empty:
// floor(size * scale) of each.
//
//   resample(image, {480, 640}, {.mode = "cubic"})
//   resample(image, {}, {.scales = {0.5, 0.5}})
inline at::Tensor
resample(const at::Tensor& src, const Sizes& size, const ResampleOptions& options = {}) {
  static const auto op = detail::find("resample");
  return detail::Call(op)("src", src)("size", size).with(options).tensor();
}

// As ResampleOptions; there is no extrapolation_value, as it has no gradient.
struct ResampleBackwardOptions {
  std::vector<double> scales = {};
  std::string mode = "linear";
  std::string coordinates = "half_pixel";
  std::string nearest_mode = "round_prefer_ceil";
  bool antialias = false;
  double cubic_coeff_a = -0.75;
  bool exclude_outside = false;
  std::vector<double> roi = {};
  std::string data_format = "NCX";
  std::optional<at::ScalarType> dtype = {};
  std::string algorithm = "auto";
  Sizes window = {};

  void pass(detail::Call& call) const {
    call("scales", scales)("mode", mode)("coordinates", coordinates)("nearest_mode", nearest_mode);
    call("antialias", antialias)("cubic_coeff_a", cubic_coeff_a);
    call("exclude_outside", exclude_outside)("roi", roi);
    call("data_format", data_format)("dtype", dtype)("algorithm", algorithm)("window", window);
  }
};

// The gradient of resample's src, given that of its result. `src_size`: the spatial sizes of src.
inline at::Tensor resample_backward(
    const at::Tensor& grad,
    const Sizes& src_size,
    const ResampleBackwardOptions& options = {}) {
  static const auto op = detail::find("resample_backward");
  return detail::Call(op)("grad", grad)("src_size", src_size).with(options).tensor();
}

// The rows of the source, in spatial dimension `axis`, that the rows from `begin` to before `end`
// of the resized image are made of: the first, and the one after the last. With `of_source`: the
// rows of the resized image that are made of these rows of the source. The sizes are the spatial
// ones of whole images; `is_double`: of float64 images, whose nearest rows differ.
inline std::pair<int64_t, int64_t> resample_rows(
    int64_t begin,
    int64_t end,
    bool of_source,
    const Sizes& src_size,
    const Sizes& dst_size,
    int64_t axis,
    bool is_double,
    const std::vector<double>& scales,
    const std::string& mode,
    const std::string& coordinates,
    const std::string& nearest_mode,
    bool antialias,
    double cubic_coeff_a,
    bool exclude_outside,
    const std::vector<double>& roi) {
  static const auto op = detail::find("resample_rows");
  detail::Call call(op);
  call("begin", begin)("end", end)("of_source", of_source)("src_size", src_size);
  call("dst_size", dst_size)("axis", axis)("is_double", is_double)("scales", scales)("mode", mode);
  call("coordinates", coordinates)("nearest_mode", nearest_mode)("antialias", antialias);
  call("cubic_coeff_a", cubic_coeff_a)("exclude_outside", exclude_outside)("roi", roi);
  const auto rows = call.run();
  return {rows[0].toInt(), rows[1].toInt()};
}

} // namespace torch_dnnl
