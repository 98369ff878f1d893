// Convolution on CUDA: the kernels, in order of preference.
#include "core/cuda/launch.h"

#include <ATen/Context.h>
#include <torch/library.h>

#include <vector>

#include "conv/cuda/dense/dense.h"
#include "conv/cuda/depthwise/depthwise.h"
#include "conv/on_device.h"
#include "conv/reference.h"

namespace torch_dnnl {

bool cuda::allows_tf32() {
  return at::globalContext().allowTF32CuDNN(at::Float32Op::CONV);
}

namespace {

// Each computes the problem if it can, and returns whether it could. The first that can has it.
constexpr bool (*kernels[])(const ConvProblem&) = {
    cuda::depthwise,
    cuda::dense,
};

void compute(const ConvProblem& p, std::string_view algorithm) {
  if (algorithm != "reference" && p.n > 0) { // else weights gradients are zeros
    for (const auto& kernel : kernels) {
      if (kernel(p))
        return;
    }
  }
  with_reference(
      p, [&](const auto& functor) { cuda::for_each_element(output_elements(p), functor); });
}

struct Cuda {
  static void fused_backward(const FusedBackward& call) {
    fused_backward_at_once<Cuda>(call);
  }

  static void compute(const ConvProblem& p, std::string_view algorithm) {
    torch_dnnl::compute(p, algorithm);
  }
  static void compute(
      const ActivationGradient& p,
      const at::Tensor& h,
      int64_t channel,
      const at::Tensor& sums) {
    dispatch(FloatingTypes{}, p.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      cuda::for_each_element(h.numel(), ActivationGradientElement<T>{p});
    });
    if (sums.defined()) {
      std::vector<int64_t> others;
      for (int64_t d = 0; d < h.dim(); d++) {
        if (d != channel)
          others.push_back(d);
      }
      sums.add_(h.sum(others, /*keepdim=*/false, sums.scalar_type()));
    }
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  ConvOnDevice<Cuda>::register_in(m);
}

} // namespace
} // namespace torch_dnnl
