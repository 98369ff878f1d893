// Quantized convolution by its definition: a thread per element.
#include "conv/quantized/reference.h"

#include "conv/cuda/quantized/kernels.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {

void run_quantized_reference(const QuantizedProblem& p) {
  with_reference(
      p, [&](const auto& functor) { for_each_element(output_elements(p.conv), functor); });
}

} // namespace torch_dnnl::cuda
