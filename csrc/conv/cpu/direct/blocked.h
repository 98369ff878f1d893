// Direct convolution on the CPU: small matrix products over the images as they lie. No image is
// copied; what is copied is weights (into panels) and, where the type or the strides demand it,
// tiles of a few KB.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

void run_blocked(const ConvProblem& p);

// The part of run_blocked() that computes backward weights.
void run_weights_gradient(const ConvProblem& p);

} // namespace torch_dnnl
