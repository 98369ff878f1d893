// The gradients of a convolution that ends in an activation, all in one call: with the gradient g
// of its result, h = g a'(u) is the gradient of the residual, its sums that of the bias, and those
// of src and weights are made of it.
//
// h is computed for a few images or rows at a time, and what is made of it while it is in the
// cache: it is in memory as a whole only if it is a result itself.
#pragma once

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "conv/conv.h"

namespace torch_dnnl {

// What convolution_fused_backward has beside the attributes.
struct FusedGradients {
  const at::Tensor &grad, &value; // value: the result or, where a' needs it, the preactivation
  std::string_view activation;
  const std::optional<at::Tensor>&src, &weights; // where the gradient of the other one is wanted
  c10::SymIntArrayRef src_size, kernel_size;
  bool bias, residual; // whether their gradients are wanted
};

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Checks a call of convolution_fused_backward, but for src and weights.
inline conv_detail::Call
checked_fused_backward(const FusedGradients& of, const ConvOptions& options) {
  conv_detail::Call call("convolution_fused_backward", of.grad, "grad", options);
  call.check_image("grad", of.grad);
  call.check_like_output("value", of.value, of.grad.sym_sizes(), "grad", of.grad);
  call.activation_of(of.activation);
  check_length(call.op, "src_size", of.src_size, call.spatial);
  conv_detail::check_within(call.op, "", "src_size", of.src_size, 1, conv_detail::kMaxSize);
  call.check_list("kernel_size", of.kernel_size, 1);
  call.check_grad(of.grad, of.src_size, of.kernel_size);
  return call;
}

// Checks a call of convolution_fused_backward and returns its empty outputs, the gradients of src,
// weights, bias and residual: tensors of no elements where they are not wanted.
inline FourTensors
convolution_fused_backward_outputs(const FusedGradients& of, const ConvOptions& options) {
  const auto& [grad, value, activation, src, weights, src_size, kernel_size, bias, residual] = of;
  const conv_detail::Call call = checked_fused_backward(of, options);
  const auto check_sizes =
      [&](const char* argument, c10::SymIntArrayRef sizes, c10::SymIntArrayRef of_tensor) {
        for (size_t d = 0; d < call.spatial; d++) {
          TORCH_CHECK_VALUE(
              holds(sizes[d].sym_eq(of_tensor[d])),
              call.op,
              ": expected ",
              argument,
              " to be the spatial sizes of the tensor, ",
              of_tensor,
              ", got ",
              sizes);
        }
      };
  // The result and its preactivation have the format that their gradient should have.
  const auto none = [&] { return empty({0}, grad.options()); };
  FourTensors outputs{none(), none(), none(), none()};
  if (weights.has_value()) {
    std::get<0>(outputs) =
        conv_detail::empty_data_gradient(call.op, value, *weights, src_size, options);
    check_sizes("kernel_size", kernel_size, call.kernel_of(*weights));
  }
  if (src.has_value()) {
    std::get<1>(outputs) =
        conv_detail::empty_weights_gradient(call.op, value, *src, kernel_size, options);
    check_sizes("src_size", src_size, call.spatial_of(*src));
  }
  if (bias)
    std::get<2>(outputs) = empty({call.channels(grad)}, grad.options());
  if (residual)
    std::get<3>(outputs) =
        conv_detail::empty_image(call, value, call.channels(grad), call.spatial_of(grad));
  return outputs;
}

// The operator's signature: `run` gets the call.
template <FourTensors (*run)(const FusedGradients&, const ConvOptions&)>
FourTensors convolution_fused_backward_kernel(
    const at::Tensor& grad,
    const at::Tensor& value,
    std::string_view activation,
    const std::optional<at::Tensor>& src,
    const std::optional<at::Tensor>& weights,
    c10::SymIntArrayRef src_size,
    c10::SymIntArrayRef kernel_size,
    c10::SymIntArrayRef strides,
    c10::SymIntArrayRef pads_begin,
    c10::SymIntArrayRef pads_end,
    c10::SymIntArrayRef dilations,
    std::string_view auto_pad,
    c10::SymInt groups,
    std::string_view data_format,
    std::string_view weights_format,
    std::string_view algorithm,
    bool bias,
    bool residual) {
  return run(
      {grad, value, activation, src, weights, src_size, kernel_size, bias, residual},
      {strides,
       pads_begin,
       pads_end,
       dilations,
       auto_pad,
       std::move(groups),
       data_format,
       weights_format,
       algorithm});
}

// Computes the gradients in parts of so many bytes of h as Device::part_bytes says.
template <class Device>
class FusedBackward {
 public:
  static FourTensors run(const FusedGradients& of, const ConvOptions& options) {
    const auto outputs = convolution_fused_backward_outputs(of, options);
    const c10::DeviceGuard guard(of.grad.device());
    FusedBackward(of, options, outputs).compute();
    return outputs;
  }

 private:
  // Rows: along the first spatial dimension that has several in the result.
  struct Part {
    int64_t image, images, row, rows;
  };

  FusedBackward(const FusedGradients& of, const ConvOptions& options, const FourTensors& outputs)
      : of_(of),
        options_(options),
        src_grad_(std::get<0>(outputs)),
        weights_grad_(std::get<1>(outputs)),
        bias_grad_(std::get<2>(outputs)),
        residual_grad_(std::get<3>(outputs)),
        call_("convolution_fused_backward", of.grad, "grad", options),
        activation_(call_.activation_of(of.activation)) {
    const auto sizes = call_.spatial_of(of.grad);
    while (axis_ + 1 < call_.spatial && sizes[axis_] == 1)
      axis_++;
    row_dim_ = call_.image_at.spatial + static_cast<int64_t>(axis_);
    rows_ = of.grad.size(row_dim_);
    src_rows_ = of.src_size[axis_].expect_int();
    stride_ = options.stride(axis_).expect_int();
    reach_ = ((of.kernel_size[axis_] - 1) * options.dilation(axis_)).expect_int();
    pad_ = call_.pad(axis_, of.src_size[axis_], of.kernel_size[axis_]).expect_int();
    halo_ = of.weights.has_value() ? (reach_ + stride_ - 1) / stride_ : 0;
    int64_t products = 0; // with each element of h
    if (of.weights.has_value()) {
      products = of.weights->numel() / call_.oc(*of.weights).expect_int();
    } else if (of.src.has_value()) {
      products = weights_grad_.numel() / std::max<int64_t>(call_.oc(weights_grad_).expect_int(), 1);
    }
    part_bytes_ = Device::part_bytes(products);
  }

  void compute() {
    if (of_.bias) {
      sums_ = at::zeros(bias_grad_.sizes(), bias_grad_.options().dtype(at::kDouble));
    }
    const auto all = parts();
    if (!of_.residual) {
      int64_t most = 0; // rows of images
      for (const Part& part : all)
        most = std::max(most, part.images * (part.rows + std::min(halo_, part.row)));
      const int64_t images = std::max<int64_t>(of_.grad.size(0), 1);
      scratch_ = empty({most * (of_.grad.numel() / images / rows_)}, of_.grad.options());
    }
    for (const Part& part : all)
      compute_part(part);
    if (of_.src.has_value() && !has_weights_grad_)
      weights_grad_.zero_();
    if (of_.bias)
      bias_grad_.copy_(sums_);
  }

  // One part, unless h is large. Of the gradients of weights each part has a summand, which would
  // take much memory itself, or be rounded to 16 bits.
  std::vector<Part> parts() const {
    const int64_t images = of_.grad.size(0), bytes = int64_t(of_.grad.nbytes());
    const bool can_add = !of_.src.has_value() ||
        (of_.grad.element_size() >= 4 && int64_t(weights_grad_.nbytes()) <= part_bytes_ / 2);
    if (images == 0)
      return {};
    if (bytes <= part_bytes_ || !can_add)
      return {{0, images, 0, rows_}};
    // As many for each, as far as that goes: (number, size).
    const auto divided = [this](int64_t count, int64_t bytes) {
      const int64_t most = std::max<int64_t>(part_bytes_ * count / bytes, 1);
      const int64_t parts = (count + most - 1) / most;
      return (count + parts - 1) / parts;
    };
    const int64_t at_once = divided(images, bytes);
    int64_t rows = rows_;
    if (at_once == 1)
      rows = divided(rows_, bytes / images);
    if (rows < 2 * halo_) // which is computed again for each part: then rather whole images
      rows = rows_;
    std::vector<Part> result;
    for (int64_t n = 0; n < images; n += at_once) {
      for (int64_t row = 0; row < rows_; row += rows)
        result.push_back({n, std::min(at_once, images - n), row, std::min(rows, rows_ - row)});
    }
    return result;
  }

  void compute_part(const Part& part) {
    const int64_t end = part.row + part.rows;
    const int64_t first =
        std::max<int64_t>(part.row - halo_, 0); // of the rows that meet part's src
    const auto of_part = [&](const at::Tensor& image, int64_t row, int64_t rows) {
      return image.narrow(0, part.image, part.images).narrow(row_dim_, row, rows);
    };
    const at::Tensor h = of_.residual ? of_part(residual_grad_, first, end - first)
                                      : scratch(part.images, end - first);
    const auto rows_of_h = [&](int64_t row, int64_t rows, const at::Tensor& sums) {
      const at::Tensor result = h.narrow(row_dim_, row - first, rows);
      multiply(of_part(of_.grad, row, rows), of_part(of_.value, row, rows), result, sums);
      return result;
    };
    if (first < part.row && !of_.residual) // else they are there
      rows_of_h(first, part.row - first, /*sums=*/{});
    const at::Tensor own = rows_of_h(part.row, part.rows, sums_);

    // The rows of src that no later row of h meets, and no part before has had.
    const auto src_row = [&](int64_t row) {
      return row == 0    ? 0
          : row == rows_ ? src_rows_
                         : std::clamp<int64_t>(row * stride_ - pad_, 0, src_rows_);
    };
    if (of_.weights.has_value() && src_row(end) > src_row(part.row)) {
      const int64_t begin = src_row(part.row);
      compute_gradient(
          ConvPass::backward_data,
          of_part(src_grad_, begin, src_row(end) - begin),
          *of_.weights,
          h,
          pad_ + begin - first * stride_);
    }
    if (of_.src.has_value()) {
      const int64_t begin = std::max<int64_t>(part.row * stride_ - pad_, 0);
      const int64_t past = std::min((end - 1) * stride_ - pad_ + reach_ + 1, src_rows_);
      if (past <= begin) // these rows meet pads only
        return;
      const at::Tensor summand = has_weights_grad_ ? at::empty_like(weights_grad_) : weights_grad_;
      compute_gradient(
          ConvPass::backward_weights,
          of_part(*of_.src, begin, past - begin),
          summand,
          own,
          pad_ + begin - part.row * stride_);
      if (has_weights_grad_)
        weights_grad_.add_(summand);
      has_weights_grad_ = true;
    }
  }

  void compute_gradient(
      ConvPass pass,
      const at::Tensor& src,
      const at::Tensor& weights,
      const at::Tensor& h,
      int64_t pad) const {
    if ((pass == ConvPass::backward_data ? src : weights).numel() == 0)
      return;
    auto p = conv_problem(pass, src, weights, h, std::nullopt, options_);
    p.pad[3 - call_.spatial + axis_] = pad;
    Device::compute(p);
  }

  void multiply(
      const at::Tensor& grad,
      const at::Tensor& value,
      const at::Tensor& h,
      const at::Tensor& sums) const {
    ActivationGradient p{};
    p.n = h.size(0);
    p.channels = h.size(call_.image_at.channel);
    conv_detail::copy_layout(grad, call_.image_at, p.size, p.grad_stride);
    conv_detail::copy_layout(value, call_.image_at, p.size, p.value_stride);
    conv_detail::copy_layout(h, call_.image_at, p.size, p.out_stride);
    p.grad = grad.const_data_ptr();
    p.value = value.const_data_ptr();
    p.out = h.mutable_data_ptr();
    p.activation = activation_;
    p.dtype = h.scalar_type();
    Device::compute(p, h, call_.image_at.channel, sums);
  }

  // Memory for h of so many images and rows, in the format of the value; the same for all parts.
  at::Tensor scratch(int64_t images, int64_t rows) const {
    auto sizes = of_.grad.sizes().vec();
    sizes[0] = images;
    sizes[row_dim_] = rows;
    const bool is_permuted = call_.options.data_format == "NCX" &&
        of_.value.suggest_memory_format() != at::MemoryFormat::Contiguous;
    if (is_permuted) // [N, C, ...] to [N, ..., C]
      std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
    const at::Tensor h = scratch_.narrow(0, 0, c10::multiply_integers(sizes)).view(sizes);
    return is_permuted ? h.movedim(-1, 1) : h;
  }

  const FusedGradients& of_;
  const ConvOptions& options_;
  const at::Tensor &src_grad_, &weights_grad_, &bias_grad_, &residual_grad_;
  const conv_detail::Call call_;
  const Activation activation_;
  size_t axis_ = 0; // of the rows, among the spatial dimensions
  int64_t row_dim_, rows_, src_rows_, stride_, reach_, pad_;
  int64_t part_bytes_;
  int64_t halo_; // rows before a part that meet the same rows of src
  at::Tensor sums_, scratch_;
  bool has_weights_grad_ = false;
};

} // namespace torch_dnnl
