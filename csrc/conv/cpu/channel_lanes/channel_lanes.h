// Depthwise convolution on the CPU, and grouped convolution with few channels in a group: too few
// for matrix products, so the lanes of a vector are channels of neighbouring groups, and a pixel is
// multiplied by a tap lane by lane. Images lie in scratch memory a few rows at a time, whatever
// their layout; blocks of channels and of rows are parallel.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// Every type and layout, where the rows that a task needs fit into the scratch memory.
bool supports_channel_lanes(const ConvProblem& p);

void run_channel_lanes(const ConvProblem& p);

// What run_channel_lanes does for backward weights.
void channel_lanes_weights_gradient(const ConvProblem& p);

} // namespace torch_dnnl
