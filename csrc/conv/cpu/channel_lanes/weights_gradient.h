// Backward weights of channel_lanes.h.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

void channel_lanes_weights_gradient(const ConvProblem& p);

} // namespace torch_dnnl
