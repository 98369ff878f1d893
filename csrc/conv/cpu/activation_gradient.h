// The derivative of a fused activation, and the sums that are the gradient of the bias, in one
// pass.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// sums, if there are any: one for each channel, to which those of the channel's outputs are added,
// in an order that does not depend on the number of threads.
void activation_gradient(const ActivationGradient& p, double* sums);

} // namespace torch_dnnl
