// Convolution with few channels per group on the CPU, of channels-first images above all: the lanes
// of a vector are neighbouring pixels of a row. Each vector that is loaded is multiplied for
// several outputs: the channels of a group or, of depthwise convolution, rows.
#pragma once

#include "conv/conv.h"

namespace torch_dnnl {

// Few output channels in a group whose vectors would be all but empty; and what depthwise
// convolution can run, if images are channels-first, their rows fill vectors well, and kernels have
// few rows.
bool can_run_planes(const ConvProblem& p);

void run_planes(const ConvProblem& p);

} // namespace torch_dnnl
