// Convolution whose taps never meet in a pixel, on the CPU: 1x1 kernels with any stride, and
// patches side by side. Each of its three passes is one matrix product, whatever the layouts.
#pragma once

#include "conv/conv.h"

namespace torch_dnnl {

// Without padding, with enough channels to fill vectors.
bool can_run_patches(const ConvProblem& p);

void run_patches(const ConvProblem& p);

} // namespace torch_dnnl
