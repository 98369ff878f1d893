// Convolution on CUDA: the kernels, in order of preference.
#include "core/cuda/launch.h"

#include <ATen/Context.h>
#include <torch/library.h>

#include "conv/conv.h"
#include "conv/cuda/dense.h"
#include "conv/cuda/depthwise.h"
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

void compute(const ConvProblem& p) {
  if (p.algorithm != ConvAlgorithm::reference && p.n > 0) { // else weights gradients are zeros
    for (const auto& kernel : kernels) {
      if (kernel(p))
        return;
    }
  }
  with_reference(
      p, [&](const auto& functor) { cuda::for_each_element(output_elements(p), functor); });
}

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  ConvOnDevice<compute>::register_in(m);
}

} // namespace
} // namespace torch_dnnl
