// Depthwise convolution on the CPU, and grouped convolution with few channels in a group: too few
// for matrix products, so the lanes of a vector are channels of neighbouring groups, and a pixel is
// multiplied by a tap lane by lane.
#pragma once

#include "conv/conv.h"

namespace torch_dnnl {

bool can_run_depthwise(const ConvProblem& p);

void run_depthwise(const ConvProblem& p);

} // namespace torch_dnnl
