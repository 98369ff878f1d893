// The gradient of the weights of a depthwise convolution.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl::cuda {

// False where a grid would have too many blocks.
bool depthwise_weights(const ConvProblem& p);

} // namespace torch_dnnl::cuda
