// Depthwise convolution on CUDA, and grouped convolution with few channels in a group. These are
// too few products for matrices, so the aim is to read and write memory once: a thread keeps the
// sums of neighbouring outputs in registers, and each input that it loads goes into all of them
// that it belongs to.
//
//   depthwise.cu         which problems these kernels take, and which of them takes a problem
//   gather.h             results and data gradients as one problem; the taps of a row
//   nxc.cu               the kernel for channels innermost
//   ncx.cu               the kernel for every other layout
//   weights_gradient.cu  the gradient of the weights
#pragma once

#include "conv/problem.h"

namespace torch_dnnl::cuda {

bool supports_depthwise(const ConvProblem& p);
void run_depthwise(const ConvProblem& p);

} // namespace torch_dnnl::cuda
