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

#include "conv/problem.h"

namespace torch_dnnl {

// Forward and backward data, with a stride and dilation of 1.
bool supports_winograd_2x2(const ConvProblem& p);

void run_winograd_2x2(const ConvProblem& p);

// All three passes.
bool supports_winograd_4x4(const ConvProblem& p);

void run_winograd_4x4(const ConvProblem& p);

// The part of run_winograd_4x4() that computes backward weights.
void run_winograd_weights(const ConvProblem& p);

} // namespace torch_dnnl
