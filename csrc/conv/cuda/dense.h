// Convolution with many channels on each side of a group: implicit matrix products.
#pragma once

#include "conv/conv.h"

namespace torch_dnnl::cuda {

// Computes the problem if it is one for these kernels; whether it was.
bool dense(const ConvProblem& p);

} // namespace torch_dnnl::cuda
