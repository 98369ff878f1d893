// Convolution on CUDA: the kernels, in order of preference. What each can compute is said by the
// kernel (supports), when it is chosen by choose.h (prefers).
#include <ATen/Context.h>
#include <torch/library.h>

#include <string_view>
#include <vector>

#include "conv/cuda/choose.h"
#include "conv/cuda/kernels.h"
#include "conv/on_device.h"
#include "core/cuda/launch.h"
#include "core/torch/run_kernel.h"

namespace torch_dnnl {

bool cuda::allows_tf32() {
  return at::globalContext().allowTF32CuDNN(at::Float32Op::CONV);
}

namespace {

constexpr Kernel<ConvProblem> kernels[] = {
    {"depthwise", cuda::supports_depthwise, cuda::prefers_depthwise, cuda::run_depthwise},
    {"dense", cuda::supports_dense, cuda::prefers_dense, cuda::run_dense},
    {"reference", always, always, cuda::run_reference},
};

struct Cuda {
  static void fused_backward(const FusedBackward& call) {
    fused_backward_at_once<Cuda>(call);
  }

  static void compute(const ConvProblem& p, std::string_view algorithm) {
    // No kernel here is Winograd's: every family means the device's own choice.
    const bool is_family = algorithm == "direct" || algorithm == "winograd";
    run(kernel_named(kernels, is_family ? "auto" : algorithm, name_of(p.pass), p), p);
  }
  static void compute(
      const ActivationGradient& p,
      const at::Tensor& h,
      int64_t channel,
      const at::Tensor& sums) {
    cuda::activation_gradient(p);
    if (sums.defined()) {
      std::vector<int64_t> others;
      for (int64_t d = 0; d < h.dim(); d++)
        if (d != channel)
          others.push_back(d);
      sums.add_(h.sum(others, /*keepdim=*/false, sums.scalar_type()));
    }
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  ConvOnDevice<Cuda>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "convolution", TORCH_DNNL_CUDA_NAME, kernels);
}

} // namespace
} // namespace torch_dnnl
