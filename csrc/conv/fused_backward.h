// The gradients of a convolution that ends in an activation, all in one call: with the gradient g
// of its result, h = g a'(u) is the gradient of the residual, its sums that of the bias, and those
// of src and weights are made of it.
//
// h is computed for a few images, rows or channels at a time, and what is made of it while it is in
// the cache: it is in memory as a whole only if it is a result itself.
#pragma once

#include <ATen/ExpandUtils.h>
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
  static constexpr int64_t kMostOfSummand = 4 << 20; // bytes
  static constexpr int64_t kWide = sizeof(float);

  // Rows: along the first spatial dimension that has several in the result.
  struct Part {
    int64_t image, images, row, rows;
  };

  FusedBackward(const FusedGradients& of, const ConvOptions& options, const FourTensors& outputs)
      : of_(of),
        options_(options),
        outputs_(outputs),
        src_grad_(std::get<0>(outputs)),
        weights_grad_(std::get<1>(outputs)),
        bias_grad_(std::get<2>(outputs)),
        residual_grad_(std::get<3>(outputs)),
        call_("convolution_fused_backward", of.grad, "grad", options),
        activation_(call_.activation_of(of.activation)),
        channels_(of.grad.size(call_.image_at.channel)),
        groups_(options.groups.expect_int()) {
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
      products = of.weights->numel() / channels_;
    } else if (of.src.has_value()) {
      products = weights_grad_.numel() / std::max<int64_t>(channels_, 1);
    }
    part_bytes_ = Device::part_bytes(products);
    is_widened_ = of.src.has_value() && of.grad.element_size() < kWide;
  }

  void compute() {
    const int64_t channels = channels_at_once();
    if (channels < channels_) {
      compute_by_channels(channels);
    } else {
      compute_by_rows();
    }
  }

  // What is widened takes time and memory, which less of h is not worth.
  bool is_small() const {
    return int64_t(of_.grad.nbytes()) <= (is_widened_ ? 2 : 1) * part_bytes_;
  }

  // Of the gradients of weights each part has a summand, which may take much memory itself.
  int64_t summand_bytes() const {
    return of_.src.has_value()
        ? weights_grad_.numel() * std::max<int64_t>(kWide, weights_grad_.element_size())
        : 0;
  }

  // Of h, and what is widened with it.
  int64_t bytes_of_image() const {
    const int64_t widened = is_widened_ ? (of_.grad.numel() + of_.src->numel()) * kWide : 0;
    return (int64_t(of_.grad.nbytes()) + widened) / of_.grad.size(0);
  }

  // Images and rows of a part: as many for each, as far as that goes.
  std::pair<int64_t, int64_t> images_and_rows() const {
    const auto divided = [this](int64_t count, int64_t bytes_of_one) {
      const int64_t most = std::max<int64_t>(part_bytes_ / bytes_of_one, 1);
      const int64_t parts = (count + most - 1) / most;
      return (count + parts - 1) / parts;
    };
    const int64_t images = divided(of_.grad.size(0), bytes_of_image());
    return {images, images > 1 ? rows_ : divided(rows_, bytes_of_image() / rows_)};
  }

  // Output channels of which gradients are made at once: all, unless a summand takes much memory
  // or, where a kernel reaches over more rows than a part has, an image of all groups.
  int64_t channels_at_once() const {
    if (of_.residual || is_small())
      return channels_;
    const auto fitting = [this](int64_t most, int64_t bytes) {
      return std::clamp<int64_t>(most * channels_ / bytes, 1, channels_);
    };
    const int64_t of_group = channels_ / groups_;
    int64_t channels =
        summand_bytes() > kMostOfSummand ? fitting(kMostOfSummand, summand_bytes()) : channels_;
    if (images_and_rows().second < std::min(halo_, rows_))
      channels = std::min(channels, std::max(fitting(part_bytes_, bytes_of_image()), of_group));
    const auto evenly = [](int64_t count, int64_t most) {
      constexpr int64_t whole = 16; // vectors
      const int64_t parts = (count + most - 1) / most, even = (count + parts - 1) / parts;
      return std::min(most, (even + whole - 1) / whole * whole);
    };
    return channels < of_group ? evenly(of_group, channels)
                               : evenly(groups_, channels / of_group) * of_group;
  }

  // All gradients of some groups at a time; or the gradient of src, to which all channels of a
  // group add, and then those of weights for some of these channels at a time.
  void compute_by_channels(int64_t at_once) const {
    const int64_t of_group = channels_ / groups_;
    const bool are_groups = at_once >= of_group;
    const bool is_src_apart = of_.weights.has_value() && !are_groups;
    const std::optional<at::Tensor> none;
    if (is_src_apart)
      compute_gradients(of_.grad, of_.value, none, of_.weights, of_.bias, options_, outputs_);
    const auto dim = call_.image_at.channel, weights_dim = call_.weights_at.outer;
    ConvOptions options = options_;
    for (int64_t c = 0, count; c < channels_; c += count) {
      const int64_t group = c / of_group;
      count = std::min(at_once, (are_groups ? channels_ : (group + 1) * of_group) - c);
      const int64_t groups = are_groups ? count / of_group : 1;
      const auto of_groups = [&](const at::Tensor& image) {
        const int64_t ic = image.size(dim) / groups_;
        return image.narrow(dim, group * ic, groups * ic);
      };
      FourTensors outputs;
      std::optional<at::Tensor> src, weights;
      if (of_.src.has_value()) {
        src = of_groups(*of_.src);
        std::get<1>(outputs) = weights_grad_.narrow(weights_dim, c, count);
      }
      if (of_.weights.has_value() && are_groups) {
        weights = of_.weights->narrow(weights_dim, c, count);
        std::get<0>(outputs) = of_groups(src_grad_);
      }
      const bool bias = of_.bias && !is_src_apart;
      if (bias)
        std::get<2>(outputs) = bias_grad_.narrow(0, c, count);
      options.groups = groups;
      compute_gradients(
          of_.grad.narrow(dim, c, count),
          of_.value.narrow(dim, c, count),
          src,
          weights,
          bias,
          options,
          outputs);
    }
  }

  void compute_gradients(
      const at::Tensor& grad,
      const at::Tensor& value,
      const std::optional<at::Tensor>& src,
      const std::optional<at::Tensor>& weights,
      bool bias,
      const ConvOptions& options,
      const FourTensors& outputs) const {
    const auto& [activation, src_size, kernel_size] =
        std::tie(of_.activation, of_.src_size, of_.kernel_size);
    FusedBackward(
        {grad, value, activation, src, weights, src_size, kernel_size, bias, /*residual=*/false},
        options,
        outputs)
        .compute();
  }

  void compute_by_rows() {
    if (of_.bias)
      sums_ = at::zeros(bias_grad_.sizes(), bias_grad_.options().dtype(at::kDouble));
    const auto all = parts();
    weights_total_ = weights_grad_;
    if (of_.src.has_value()) {
      // Lest each summand be rounded; and memory in which nothing is between them.
      const bool is_wide = is_widened_ && all.size() > 1;
      if (is_wide || !weights_grad_.is_non_overlapping_and_dense()) {
        const auto dtype = is_wide ? at::kFloat : weights_grad_.scalar_type();
        weights_total_ = at::empty_like(weights_grad_, weights_grad_.options().dtype(dtype));
      }
    }
    if (!of_.residual) {
      int64_t most = 0; // rows of images
      for (const Part& part : all)
        most = std::max(most, part.images * (part.rows + std::min(halo_, part.row)));
      const int64_t images = std::max<int64_t>(of_.grad.size(0), 1);
      scratch_ = empty({most * (of_.grad.numel() / images / rows_)}, of_.grad.options());
    }
    for (const Part& part : all)
      compute_part(part);
    if (of_.src.has_value()) {
      if (!has_weights_total_)
        weights_total_.zero_();
      if (!weights_total_.is_same(weights_grad_))
        weights_grad_.copy_(weights_total_);
    }
    if (of_.bias)
      bias_grad_.copy_(sums_);
  }

  // One, unless h is large.
  std::vector<Part> parts() const {
    const int64_t images = of_.grad.size(0);
    if (images == 0)
      return {};
    if (is_small() || summand_bytes() > kMostOfSummand)
      return {{0, images, 0, rows_}};
    auto [at_once, rows] = images_and_rows();
    if (rows < halo_) // which is computed again for each part: then rather whole images
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
      if (has_weights_total_ && !summand_.defined())
        summand_ = at::empty_like(weights_total_);
      const at::Tensor& summand = has_weights_total_ ? summand_ : weights_total_;
      compute_gradient(
          ConvPass::backward_weights,
          in_type_of_total(of_part(*of_.src, begin, past - begin), wide_src_),
          summand,
          in_type_of_total(own, wide_h_),
          pad_ + begin - part.row * stride_);
      if (has_weights_total_)
        weights_total_.add_(summand);
      has_weights_total_ = true;
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
    Device::compute(p, options_.algorithm);
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

  // `memory`: for all parts, as the system may take long to hand it out.
  at::Tensor in_type_of_total(const at::Tensor& part, at::Tensor& memory) const {
    if (part.scalar_type() == weights_total_.scalar_type())
      return part;
    if (!memory.defined() || memory.numel() < part.numel())
      memory = empty({part.numel()}, weights_total_.options());
    const auto strides = at::infer_dense_strides(part.sizes(), part.strides());
    return memory.as_strided(part.sizes(), strides).copy_(part);
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
  const FourTensors& outputs_;
  const at::Tensor &src_grad_, &weights_grad_, &bias_grad_, &residual_grad_;
  const conv_detail::Call call_;
  const Activation activation_;
  const int64_t channels_, groups_; // of outputs
  size_t axis_ = 0;                 // of the rows, among the spatial dimensions
  int64_t row_dim_, rows_, src_rows_, stride_, reach_, pad_;
  int64_t part_bytes_;
  int64_t halo_;    // rows before a part that meet the same rows of src
  bool is_widened_; // what parts of a gradient of weights are made of
  at::Tensor sums_, scratch_, wide_src_, wide_h_, weights_total_, summand_;
  bool has_weights_total_ = false;
};

} // namespace torch_dnnl
