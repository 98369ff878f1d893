// Convolution whose taps never meet in a pixel, on the CPU: 1x1 kernels with any stride, and
// patches side by side. Each of its three passes is one matrix product, whatever the layouts.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// Kernels that lie within the image, and no two of which meet in a pixel.
bool supports_gemm(const ConvProblem& p);

void run_gemm(const ConvProblem& p);

} // namespace torch_dnnl
