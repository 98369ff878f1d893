// Convolution on CUDA: the reference, one thread per element.
#include "core/cuda/launch.h"

#include <torch/library.h>

#include "conv/reference.h"

namespace torch_dnnl {
namespace {

void compute(const ConvProblem& p) {
  with_reference(
      p, [&](const auto& functor) { cuda::for_each_element(output_elements(p), functor); });
}

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  ConvOnDevice<compute>::register_in(m);
}

} // namespace
} // namespace torch_dnnl
