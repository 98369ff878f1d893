// Every operator of the library. Each is differentiable itself: the three
// families below are closed under differentiation.
#include <torch/library.h>

#include <string>
#include <vector>

namespace {

// clang-format off
TORCH_LIBRARY(torch_dnnl, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};

  // `size`: output sizes of the spatial dimensions, or None for floor(input size *
  // scale). `scales`: one factor per spatial dimension, or empty for the exact ratio
  // of the sizes. `coordinates` also takes ATen's variants: torch_linear,
  // torch_antialias_corners, torch_nearest, torch_nearest_exact, and these two with
  // _direct. `algorithm`: auto, or the name of a kernel of the device.
  // `window`: src and the result are parts of an image and of its resized image. For each spatial
  // dimension the size of that image; then where src begins in it; then the size of the whole resized
  // image; then where the result begins in it. Coordinates are those of the whole; rows outside of
  // the parts count as 0.
  m.def("resample(Tensor src, SymInt[]? size, float[] scales=[], str mode=\"linear\", "
        "str coordinates=\"half_pixel\", str nearest_mode=\"round_prefer_ceil\", "
        "bool antialias=False, float cubic_coeff_a=-0.75, bool exclude_outside=False, "
        "float[] roi=[], float extrapolation_value=0., str data_format=\"NCX\", "
        "ScalarType? dtype=None, str algorithm=\"auto\", SymInt[]? window=None) -> Tensor", tags);
  // The adjoint: `src_size` are the spatial sizes of the forward's source.
  m.def("resample_backward(Tensor grad, SymInt[] src_size, float[] scales=[], str mode=\"linear\", "
        "str coordinates=\"half_pixel\", str nearest_mode=\"round_prefer_ceil\", "
        "bool antialias=False, float cubic_coeff_a=-0.75, bool exclude_outside=False, "
        "float[] roi=[], str data_format=\"NCX\", ScalarType? dtype=None, "
        "str algorithm=\"auto\", SymInt[]? window=None) -> Tensor", tags);
  // Which rows of the source, in spatial dimension `axis`, the rows from `begin` to before `end` of
  // the resized image are made of; or, with `of_source`, which rows of the resized image are made of
  // these rows of the source. The first such row, and the one after the last. `is_double`: of float64
  // images, whose nearest rows differ.
  m.def("resample_rows(int begin, int end, bool of_source, int[] src_size, int[] dst_size, int axis, "
        "bool is_double, float[] scales, str mode, str coordinates, str nearest_mode, "
        "bool antialias, float cubic_coeff_a, bool exclude_outside, float[] roi) -> (int, int)", tags);

  // A scale or zero point is a tensor or, where that is None, a number. `algorithm`: auto or the
  // name of a kernel, here and below.
  m.def("reorder(Tensor src, str? dst_format=None, str? src_format=None, SymInt[]? size=None, "
        "ScalarType? dtype=None, Tensor? scale=None, Tensor? dst_scale=None, "
        "Tensor? src_zero_point=None, Tensor? dst_zero_point=None, Tensor? accumulate=None, "
        "float scale_value=1., float dst_scale_value=1., float src_zero_point_value=0., "
        "float dst_zero_point_value=0., float beta=1., bool round_before_zero_point=False, "
        "str algorithm=\"auto\") -> Tensor", tags);
  // The gradient with respect to src; `size` are src's logical sizes, None if it has no dimension.
  m.def("reorder_backward(Tensor grad, SymInt[]? size, str? dst_format=None, str? src_format=None, "
        "ScalarType? dtype=None, Tensor? scale=None, Tensor? dst_scale=None, "
        "float scale_value=1., float dst_scale_value=1., "
        "str algorithm=\"auto\") -> Tensor", tags);
  // Quantized to `dtype` and dequantized; and, as bits, what did not saturate: in the order of the
  // first output in memory, with the first `batch_dims` dimensions of that as dimensions.
  // `dst_format` is a plain tag, None for a contiguous result. `step_gradient`: instead of the
  // first output, its derivative by `dst_scale`.
  m.def("fake_reorder(Tensor src, ScalarType dtype, str? dst_format=None, "
        "Tensor? dst_scale=None, Tensor? dst_zero_point=None, float dst_scale_value=1., "
        "float dst_zero_point_value=0., bool round_before_zero_point=False, int batch_dims=0, "
        "bool step_gradient=False, str algorithm=\"auto\") -> (Tensor, Tensor)", tags);
  // `grad` where `mask` has a bit for it, else 0; `format` is the forward's `dst_format`.
  m.def("fake_reorder_backward(Tensor grad, Tensor mask, str? format=None, "
        "str algorithm=\"auto\") -> Tensor", tags);

  // What a format tag says: the dimensions, outermost first; the dimensions and the sizes of the
  // blocks, outermost first.
  m.def("parse_format(str tag) -> (int[], int[], int[])", tags);

  // The attributes of convolution. Lists have one entry per spatial dimension; None stands for
  // strides and dilations of 1, pads_begin of 0, pads_end as pads_begin. `algorithm`: auto, direct,
  // winograd or the name of a kernel, where the device has it.
  // An empty list means the same as None, here and in other optional lists: programs that were
  // exported before lists were optional have it. Traced calls have None, as AOTInductor loses lists
  // without entries (core/torch/autograd.cpp sees to that).
  const std::string attributes =
      "SymInt[]? strides=None, SymInt[]? pads_begin=None, SymInt[]? pads_end=None, "
      "SymInt[]? dilations=None, "
      "str auto_pad=\"none\", SymInt groups=1, str data_format=\"NXC\", str weights_format=\"XIO\", "
      "str algorithm=\"auto\"";
  const auto def = [&](const std::string& schema) { m.def(schema.c_str(), tags); };
  def("convolution(Tensor src, Tensor weights, Tensor? bias=None, " + attributes + ") -> Tensor");
  // activation(convolution + residual), and what the activation is applied to if that is kept, else
  // a tensor of no elements. A residual is broadcast over the batch and the spatial dimensions.
  // `activation`: None, relu, relu6, silu, gelu, gelu_tanh, sigmoid, tanh, hardswish, hardsigmoid,
  // mish, softplus, leaky_relu and elu (alpha), clamp (alpha to beta) or prelu (slope: of one
  // element or [O]).
  const std::string epilogue = "Tensor? residual=None, str? activation=None, float? alpha=None, "
      "float? beta=None, Tensor? slope=None";
  def("convolution_fused(Tensor src, Tensor weights, Tensor? bias=None, " + attributes + ", " +
      epilogue + ", bool keep_preactivation=False) -> (Tensor, Tensor)");
  // As convolution_fused, with the result of pack_weights for these weights and attributes. The
  // kernel reads `packed` where it is for the call, else it reads `weights`. Weights that are one
  // number in all their sizes (strides of 0) are not read.
  def("convolution_packed(Tensor src, Tensor weights, Tensor? bias=None, " + attributes + ", " +
      epilogue + ", bool keep_preactivation=False, Tensor? packed=None) -> (Tensor, Tensor)");
  // Weights in the layout of the kernel that computes a convolution of images of these sizes: bytes
  // for this version of the library and this CPU. No bytes where that kernel reads plain weights.
  def("pack_weights(Tensor weights, SymInt[] src_sizes, " + attributes + ") -> Tensor");
  // The gradient of data of a convolution as an operator of its own, which ends as convolution_fused
  // does. The attributes and the format of the weights are those of that convolution: weights are
  // [*K, channels of dst / groups, channels of src] in XIO, [channels of src, channels of dst /
  // groups, *K] in OIX. `dst_size`: the spatial sizes of the result.
  def("convolution_transpose(Tensor src, Tensor weights, Tensor? bias=None, " + attributes + ", " +
      epilogue + ", bool keep_preactivation=False, SymInt[]? dst_size=None) -> (Tensor, Tensor)");
  // `src_size`, `kernel_size`: spatial sizes of the gradient that is computed.
  def("convolution_backward_data(Tensor grad, Tensor weights, SymInt[] src_size, " + attributes +
      ") -> Tensor");
  def("convolution_backward_weights(Tensor grad, Tensor src, SymInt[] kernel_size, " + attributes +
      ") -> Tensor");
  // The gradients of the first output of convolution_fused: of src if there are `weights`, of weights
  // if there is `src`, of the bias and of the residual if these are asked for, else tensors of no
  // elements. `value`: that output or, of most activations, the second one.
  def("convolution_fused_backward(Tensor grad, Tensor value, str activation, Tensor? src, "
      "Tensor? weights, SymInt[] src_size, SymInt[] kernel_size, " + attributes +
      ", bool bias=False, bool residual=False, float? alpha=None, float? beta=None)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  // int8 or uint8 images by int8 weights, float32 bias; `dtype`: int8 if None. A scale or zero point
  // is a tensor or, where that is None, a number.
  const std::string quantized = "Tensor src, Tensor weights, Tensor? bias=None, " + attributes +
      ", " + epilogue + ", ScalarType? dtype=None, "
      "Tensor? src_scale=None, Tensor? src_zero_point=None, Tensor? weights_scale=None, "
      "Tensor? dst_scale=None, Tensor? dst_zero_point=None, Tensor? residual_scale=None, "
      "Tensor? residual_zero_point=None, float src_scale_value=1., float src_zero_point_value=0., "
      "float weights_scale_value=1., float dst_scale_value=1., float dst_zero_point_value=0., "
      "float residual_scale_value=1., float residual_zero_point_value=0.";
  def("quantized_convolution(" + quantized + ") -> Tensor");
  // As convolution_packed and pack_weights, of int8 weights.
  def("quantized_convolution_packed(" + quantized + ", Tensor? packed=None) -> Tensor");
  def("pack_quantized_weights(Tensor weights, SymInt[] src_sizes, " + attributes + ") -> Tensor");
}
// clang-format on

} // namespace
