// Backward weights of pixel_lanes.h.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

bool pixel_lanes_weights_gradient(const ConvProblem& p);

} // namespace torch_dnnl
