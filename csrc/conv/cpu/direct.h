// Direct convolution on the CPU: small matrix products over the images as they lie. No image is
// copied; what is copied is weights (into panels, which packed_weights.h may keep) and, where the
// type or the strides demand it, tiles of a few KB.
#pragma once

#include "conv/conv.h"

namespace torch_dnnl {

// With enough channels to fill vectors.
bool can_run_direct(const ConvProblem& p);

void run_direct(const ConvProblem& p);

// The part of run_direct() that computes backward weights.
void run_weights_gradient(const ConvProblem& p);

} // namespace torch_dnnl
