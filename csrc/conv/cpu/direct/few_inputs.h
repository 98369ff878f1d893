// Results of images with few channels on the CPU: the first layers of networks, and gradients of
// data of the last ones.
//
// A product with the input channels of one tap would be short. So the products of many taps are
// one, whose sums stay in registers. Rows of the image are copied with their pads, a few at a time;
// nothing is copied for each tap: the inputs of a tap are the same rows from another pixel on.
// Vectors are of output channels, or of pixels where these lie next to each other in the result.
// Tasks are pieces of rows of the result.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// Forward, and gradients of data where images can be exchanged (canonical.h).
bool supports_few_inputs(const ConvProblem& p);

void run_few_inputs(const ConvProblem& p);

} // namespace torch_dnnl
