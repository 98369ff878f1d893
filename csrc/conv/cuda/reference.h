// The definition of convolution on CUDA, for what no other kernel takes.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl::cuda {

void run_reference(const ConvProblem& p);

// The gradient of an activation, element by element.
void activation_gradient(const ActivationGradient& p);

} // namespace torch_dnnl::cuda
