// Layout, type, scale and zero point in one pass: torch_dnnl::reorder, its adjoint, and
// quantization that gives floating values. docs/reorder.md has the formulas and the format tags.
#pragma once

#include <torch_dnnl/call.h>

#include <tuple>

namespace torch_dnnl {

// A scale or a zero point is a tensor, of src's rank, each of whose sizes is 1, src's or a divisor
// of src's; without a tensor, it is the number.
struct ReorderOptions {
  // oneDNN's tags, such as nhwc, acdb or aBcd16b. No dst_format: src's layout. A src_format says
  // that src is the physical tensor of a blocked tag.
  std::optional<std::string> dst_format = {};
  std::optional<std::string> src_format = {};
  // The logical sizes of src, where its blocks have padding.
  Sizes size = {};
  // The type of the result; none: that of src.
  std::optional<at::ScalarType> dtype = {};
  std::optional<at::Tensor> scale = {};
  std::optional<at::Tensor> dst_scale = {};
  std::optional<at::Tensor> src_zero_point = {};
  std::optional<at::Tensor> dst_zero_point = {};
  // Is added, times beta: a tensor of the result's shape and layout.
  std::optional<at::Tensor> accumulate = {};
  double scale_value = 1.;
  double dst_scale_value = 1.;
  double src_zero_point_value = 0.;
  double dst_zero_point_value = 0.;
  double beta = 1.;
  // Whether integers are rounded before the zero point is added.
  bool round_before_zero_point = false;
  // auto, or the name of a kernel of the device.
  std::string algorithm = "auto";

  void pass(detail::Call& call) const {
    call("dst_format", dst_format)("src_format", src_format)("size", size)("dtype", dtype);
    call("scale", scale)("dst_scale", dst_scale);
    call("src_zero_point", src_zero_point)("dst_zero_point", dst_zero_point);
    call("accumulate", accumulate);
    call("scale_value", scale_value)("dst_scale_value", dst_scale_value);
    call("src_zero_point_value", src_zero_point_value);
    call("dst_zero_point_value", dst_zero_point_value)("beta", beta);
    call("round_before_zero_point", round_before_zero_point)("algorithm", algorithm);
  }
};

// scale * (src - src_zero_point) + beta * accumulate, divided by dst_scale, plus dst_zero_point; to
// integers rounded to nearest even and saturated; in dst_format. src has 1 to 12 dimensions.
//
//   reorder(image, {.dst_format = "nhwc", .dtype = at::kFloat, .scale_value = 1. / 255})
inline at::Tensor reorder(const at::Tensor& src, const ReorderOptions& options = {}) {
  static const auto op = detail::find("reorder");
  return detail::Call(op)("src", src).with(options).tensor();
}

// Those of ReorderOptions on which the gradient of src depends.
struct ReorderBackwardOptions {
  std::optional<std::string> dst_format = {};
  std::optional<std::string> src_format = {};
  std::optional<at::ScalarType> dtype = {};
  std::optional<at::Tensor> scale = {};
  std::optional<at::Tensor> dst_scale = {};
  double scale_value = 1.;
  double dst_scale_value = 1.;
  std::string algorithm = "auto";

  void pass(detail::Call& call) const {
    call("dst_format", dst_format)("src_format", src_format)("dtype", dtype);
    call("scale", scale)("dst_scale", dst_scale);
    call("scale_value", scale_value)("dst_scale_value", dst_scale_value);
    call("algorithm", algorithm);
  }
};

// The gradient of reorder's src, given that of its result. `size`: the logical sizes of src.
inline at::Tensor reorder_backward(
    const at::Tensor& grad,
    const Sizes& size,
    const ReorderBackwardOptions& options = {}) {
  static const auto op = detail::find("reorder_backward");
  return detail::Call(op)("grad", grad)("size", size).with(options).tensor();
}

// As those of ReorderOptions.
struct FakeReorderOptions {
  // A plain tag; none: a contiguous result.
  std::optional<std::string> dst_format = {};
  std::optional<at::Tensor> dst_scale = {};
  std::optional<at::Tensor> dst_zero_point = {};
  double dst_scale_value = 1.;
  double dst_zero_point_value = 0.;
  bool round_before_zero_point = false;
  // How many dimensions the mask has beside that of its bytes: the first ones of the result.
  int64_t batch_dims = 0;
  // Whether the first result is the derivative by dst_scale instead.
  bool step_gradient = false;
  std::string algorithm = "auto";

  void pass(detail::Call& call) const {
    call("dst_format", dst_format)("dst_scale", dst_scale)("dst_zero_point", dst_zero_point);
    call("dst_scale_value", dst_scale_value)("dst_zero_point_value", dst_zero_point_value);
    call("round_before_zero_point", round_before_zero_point);
    call("batch_dims", batch_dims)("step_gradient", step_gradient)("algorithm", algorithm);
  }
};

// src quantized to `dtype`, an integer or float8 type, and dequantized; and, in bits, which
// elements did not saturate.
inline std::pair<at::Tensor, at::Tensor>
fake_reorder(const at::Tensor& src, at::ScalarType dtype, const FakeReorderOptions& options = {}) {
  static const auto op = detail::find("fake_reorder");
  return detail::Call(op)("src", src)("dtype", dtype).with(options).tensors();
}

// grad where fake_reorder's `mask` has a bit, else 0. `format`: fake_reorder's dst_format.
inline at::Tensor fake_reorder_backward(
    const at::Tensor& grad,
    const at::Tensor& mask,
    const std::optional<std::string>& format = {},
    const std::string& algorithm = "auto") {
  static const auto op = detail::find("fake_reorder_backward");
  return detail::Call(op)("grad", grad)("mask", mask)("format", format)("algorithm", algorithm)
      .tensor();
}

// What a format tag says: the dimensions, outermost first; the dimensions of the blocks, and their
// sizes, outermost first.
inline std::tuple<Sizes, Sizes, Sizes> parse_format(const std::string& tag) {
  static const auto op = detail::find("parse_format");
  const auto results = detail::Call(op)("tag", tag).run();
  return {results[0].toIntVector(), results[1].toIntVector(), results[2].toIntVector()};
}

} // namespace torch_dnnl
