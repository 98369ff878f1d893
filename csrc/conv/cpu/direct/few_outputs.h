// Convolution to few channels on the CPU: what makes an image of features, and the gradient of one.
//
// Vectors of output channels would be mostly empty. So each input pixel is multiplied by all taps
// of a row of the kernel at once, in columns that are pairs of tap and output channel, and the
// products are then added to the outputs where they belong, in a row that is in the cache.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// Forward with a stride of 1 along the last axis, and backward data.
bool supports_few_outputs(const ConvProblem& p);

void run_few_outputs(const ConvProblem& p);

} // namespace torch_dnnl
