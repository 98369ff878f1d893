// Convolution with few channels per group on the CPU, of channels-first images above all: the lanes
// of a vector are neighbouring pixels of a row. Each vector that is loaded is multiplied for
// several outputs: the channels of a group or, of depthwise convolution, rows.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// Where rows, sums and the outputs of a task fit into the scratch memory.
bool supports_pixel_lanes(const ConvProblem& p);

// False, and nothing is computed, if values are not finite that are multiplied with the zeros
// around an image.
bool run_pixel_lanes(const ConvProblem& p);

// What run_pixel_lanes does for backward weights.
bool pixel_lanes_weights_gradient(const ConvProblem& p);

} // namespace torch_dnnl
