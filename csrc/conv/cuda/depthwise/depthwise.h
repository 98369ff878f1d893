// Depthwise convolution on CUDA, and grouped convolution with few channels in a group. These are
// too few products for matrices, so the aim is to read and write memory once: a thread keeps the
// sums of neighbouring outputs in registers, and each input that it loads goes into all of them
// that it belongs to.
//
//   depthwise.cu          which kernel takes a problem
//   depthwise_image.h     results and data gradients as one problem; the taps of a row
//   depthwise_nxc.cu      the kernel for channels innermost
//   depthwise_ncx.cu      the kernel for every other layout
//   depthwise_weights.cu  the gradient of the weights
#pragma once

#include "conv/problem.h"

namespace torch_dnnl::cuda {

// Computes the problem if it is one for these kernels; whether it was.
bool depthwise(const ConvProblem& p);

} // namespace torch_dnnl::cuda
