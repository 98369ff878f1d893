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

  void pass(detail::Call& call) const {
    call("scales", scales)("mode", mode)("coordinates", coordinates)("nearest_mode", nearest_mode);
    call("antialias", antialias)("cubic_coeff_a", cubic_coeff_a);
    call("exclude_outside", exclude_outside)("roi", roi);
    call("extrapolation_value", extrapolation_value);
    call("data_format", data_format)("dtype", dtype)("algorithm", algorithm);
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

  void pass(detail::Call& call) const {
    call("scales", scales)("mode", mode)("coordinates", coordinates)("nearest_mode", nearest_mode);
    call("antialias", antialias)("cubic_coeff_a", cubic_coeff_a);
    call("exclude_outside", exclude_outside)("roi", roi);
    call("data_format", data_format)("dtype", dtype)("algorithm", algorithm);
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

} // namespace torch_dnnl
