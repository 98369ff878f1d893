// Convolution with many channels on each side of a group: implicit matrix products.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl::cuda {

bool supports_dense(const ConvProblem& p);
void run_dense(const ConvProblem& p);

// Whether factors of float32 may be rounded to TF32: what torch is told of cuDNN's convolutions.
bool allows_tf32();

} // namespace torch_dnnl::cuda
