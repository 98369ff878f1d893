// Convolution by its definition, and the gradients of its activations: a thread per element.
#include "conv/reference.h"

#include "conv/cuda/kernels.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {

void run_reference(const ConvProblem& p) {
  with_reference(p, [&](const auto& functor) {
    for_each_element<kReferenceBlocks>(output_elements(p), functor);
  });
}

void activation_gradient(const ActivationGradient& p) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    for_each_element(p.n * p.channels * product(p.size), ActivationGradientElement<T>{p});
  });
}

} // namespace torch_dnnl::cuda
