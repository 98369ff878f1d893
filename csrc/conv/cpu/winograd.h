// Convolution with 3x3 kernels by Winograd's minimal filtering F(4x4, 3x3) in float32, on the CPU:
// a tile of 4x4 outputs takes 36 products where the definition takes 144.
//
// Tiles of 6x6 inputs and the kernels are transformed, multiplied for each of the 36 positions as
// matrices of tiles and channels, and what comes out is transformed back; for backward weights, the
// inputs and tiles of 4x4 gradients. The transforms only add and multiply by small constants.
// Definition: Lavin and Gray, Fast Algorithms for Convolutional
// Neural Networks, CVPR 2016.
#pragma once

#include "conv/conv.h"

namespace torch_dnnl {

// All three passes, with a stride and dilation of 1. If it is for us to choose, with enough
// channels to make up for the transforms of tiles, and enough tiles to make up for those of the
// kernels.
bool can_run_winograd(const ConvProblem& p);

void run_winograd(const ConvProblem& p);

// The part of run_winograd() that computes backward weights.
void run_winograd_weights(const ConvProblem& p);

} // namespace torch_dnnl
