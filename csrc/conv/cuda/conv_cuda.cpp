// Convolution on CUDA: the kernels, in order of preference, and when each of them is chosen
// (prefers). What it can compute is said by the kernel (supports).
#include <ATen/Context.h>
#include <torch/library.h>

#include <string_view>
#include <vector>

#include "conv/cuda/kernels.h"
#include "conv/on_device.h"
#include "core/cuda/device.h"
#include "core/math.h"
#include "core/torch/run_kernel.h"

namespace torch_dnnl {

bool cuda::allows_tf32() {
  return at::globalContext().allowTF32CuDNN(at::Float32Op::CONV);
}

namespace {

// More products of a tap are worth a matrix product.
bool prefers_depthwise(const ConvProblem& p) {
  constexpr int64_t few = 64;
  return p.ic * p.oc <= few;
}

// Whether tiles are filled well enough: the product's columns are computed 64 at a time, and what
// is summed is padded to 16 bytes. A thread per element takes about `times` as long for a product.
bool prefers_dense(const ConvProblem& p) {
  constexpr int64_t columns = 64, bytes = 16, times = 32;
  const bool is_data = p.pass == ConvPass::backward_data;
  const int64_t outputs = is_data ? p.ic : p.oc, inputs = is_data ? p.oc : p.ic;
  const auto element = static_cast<int64_t>(c10::elementSize(p.dtype));
  return round_up(outputs, columns) * round_up(inputs, bytes / element) <= times * p.ic * p.oc;
}

bool is_half(const ConvProblem& p) {
  return p.dtype == c10::kHalf || p.dtype == c10::kBFloat16;
}

// 1-D.
bool has_rows_only(const ConvProblem& p) {
  return p.kernel[0] * p.kernel[1] * p.src_size[0] * p.src_size[1] == 1;
}

// What a rule of thumb about cuDNN's speed asks for.
struct Shape {
  bool nxc, is_plane, is_padded, is_dense; // dense: without strides and dilations
  int64_t taps, pixels;

  explicit Shape(const ConvProblem& p)
      : nxc(p.src_stride[1] == 1),
        is_plane(p.src_size[0] == 1 && !has_rows_only(p)),
        is_padded(p.pad[1] > 0 && p.pad[2] > 0),
        is_dense(product(p.stride) * product(p.dilation) == 1),
        taps(product(p.kernel)),
        pixels(product(p.dst_size)) {}
};

// Few channels in a group. The rules are those of an H200, for half types and for float32.
bool half_prefers_cudnn_to_depthwise(const ConvProblem& p) {
  const Shape shape(p);
  const bool is_data = p.pass == ConvPass::backward_data;
  const bool is_weights = p.pass == ConvPass::backward_weights;
  if (p.ic * p.oc > 1)
    return !(is_weights && shape.nxc);
  if (has_rows_only(p))
    return !shape.nxc;
  if (!shape.is_plane || (is_data && !shape.is_dense) || (is_weights && !shape.nxc))
    return false;
  constexpr int64_t few_taps = 3 * 3, some_taps = 5 * 5, many_taps = 7 * 7;
  return shape.taps <= (is_data ? few_taps : shape.nxc ? many_taps : some_taps);
}

bool float_prefers_cudnn_to_depthwise(const ConvProblem& p) {
  const Shape shape(p);
  constexpr int64_t few_taps = 3 * 3, some_taps = 5 * 5;
  if (p.ic * p.oc > 1)
    return false;
  switch (p.pass) {
    case ConvPass::forward:
      return shape.nxc && shape.is_plane && shape.taps <= some_taps;
    case ConvPass::backward_data:
      return has_rows_only(p) && !shape.nxc;
    case ConvPass::backward_weights:
      return shape.nxc && shape.is_plane && shape.taps <= few_taps;
  }
  return false;
}

// Products of matrices in float32: cuDNN's Winograd, and gradients of data of few channels.
bool float_prefers_cudnn_to_dense(const ConvProblem& p) {
  const Shape shape(p);
  constexpr int64_t few = 8, many = 128;
  const bool is_window = shape.taps > 1 && shape.is_dense && shape.is_padded;
  switch (p.pass) {
    case ConvPass::forward:
      return !shape.nxc || (is_window && shape.pixels >= 14 * 14);
    case ConvPass::backward_data:
      return p.ic < few || (is_window && shape.is_plane && shape.pixels >= 28 * 28);
    case ConvPass::backward_weights:
      return is_window && shape.is_plane && std::min(p.ic, p.oc) >= many;
  }
  return false;
}

// Where it was the faster one on an H200: products of tensor cores, but for images of few channels
// and for rows of few channels, whose layers are short.
bool prefers_cudnn(const ConvProblem& p) {
  const bool is_float = p.dtype == c10::kFloat;
  if (!cuda::has_cudnn() || !(is_half(p) || is_float))
    return false;
  if (prefers_depthwise(p))
    return is_float ? float_prefers_cudnn_to_depthwise(p) : half_prefers_cudnn_to_depthwise(p);
  if (is_float && !cuda::allows_tf32())
    return float_prefers_cudnn_to_dense(p);
  constexpr int64_t few = 8, many = 128;
  if (has_rows_only(p))
    return p.ic * p.oc >= many * many || !prefers_dense(p);
  return p.pass != ConvPass::forward || p.ic >= few;
}

constexpr Kernel<ConvProblem> kernels[] = {
    {"cudnn", cuda::supports_cudnn, prefers_cudnn, cuda::run_cudnn},
    {"depthwise", cuda::supports_depthwise, prefers_depthwise, cuda::run_depthwise},
    {"dense", cuda::supports_dense, prefers_dense, cuda::run_dense},
    {"reference", always, always, cuda::run_reference},
};

struct Cuda {
  static constexpr bool kPreluIsAPass = true;

  static void compute(const ConvProblem& p, std::string_view algorithm) {
    // No kernel here is Winograd's, but cuDNN's may be: what is "direct" is computed without it.
    if (algorithm == "direct") {
      run(choose(
              kernels,
              p,
              [](auto& kernel, auto& q) {
                return kernel.supports != cuda::supports_cudnn && kernel.prefers(q);
              }),
          p);
      return;
    }
    run(kernel_named(kernels, algorithm == "winograd" ? "auto" : algorithm, name_of(p.pass), p), p);
  }

  // Each step fills the device, with all of h in memory.
  static void fused_backward(const FusedBackward& call) {
    const ConvArguments& args = call.args;
    const at::Tensor h =
        call.residual ? call.residual_grad : conv_detail::empty_image(args, args.dst, call.value);
    if (h.numel() > 0)
      cuda::activation_gradient(activation_gradient_problem(args, call.grad, call.value, h));
    if (call.weights.has_value() && call.src_grad.numel() > 0) {
      const at::Tensor &src = call.src_grad, &weights = *call.weights;
      compute(conv_problem(args, ConvPass::backward_data, src, weights, h), args.algorithm);
    }
    if (call.src.has_value() && call.weights_grad.numel() > 0) {
      const at::Tensor &src = *call.src, &weights = call.weights_grad;
      compute(conv_problem(args, ConvPass::backward_weights, src, weights, h), args.algorithm);
    }
    if (call.bias) {
      std::vector<int64_t> others;
      for (int64_t d = 0; d < h.dim(); d++)
        if (d != args.image_at.channel)
          others.push_back(d);
      call.bias_grad.copy_(h.sum(others, /*keepdim=*/false, at::kDouble));
    }
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  register_convolutions<Cuda>(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "convolution", TORCH_DNNL_CUDA_NAME, kernels);
}

} // namespace
} // namespace torch_dnnl
