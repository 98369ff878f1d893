// Convolution with 3x3 kernels by Winograd's minimal filtering in float32, on the CPU: in F(4x4,
// 3x3) a tile of 4x4 outputs takes 36 products where the definition takes 144; in F(2x2, 3x3),
// which has small errors and quickly transformed kernels, one of 2x2 outputs takes 16 instead
// of 36.
//
// Tiles of inputs, 6x6 or 4x4, and the kernels are transformed, multiplied for each position as
// matrices of tiles and channels, and what comes out is transformed back; for backward weights, the
// inputs and tiles of 4x4 gradients. The transforms only add and multiply by small constants.
// Definition: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016.
#pragma once

#include "conv/conv.h"

namespace torch_dnnl {

// All three passes, with a stride and dilation of 1. If it is for us to choose, with enough
// channels to make up for the transforms of tiles, and enough outputs to make up for those of the
// kernels.
bool can_run_winograd(const ConvProblem& p);

void run_winograd(const ConvProblem& p);

// The part of run_winograd() that computes backward weights.
void run_winograd_weights(const ConvProblem& p);

} // namespace torch_dnnl
