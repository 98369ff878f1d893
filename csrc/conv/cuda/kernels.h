// The kernels of convolution on CUDA, as conv_cuda.cpp lists them: what each can compute
// (supports), and what runs it.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl::cuda {

// Few channels in a group, also those of depthwise convolution.
bool supports_depthwise(const ConvProblem& p);
void run_depthwise(const ConvProblem& p);

// cuDNN, where padding is alike at both ends. What follows the sums is a pass of its own, of sums
// that were rounded to the type.
bool supports_cudnn(const ConvProblem& p);
void run_cudnn(const ConvProblem& p);
// Whether there is one, and the user of torch wants it.
bool has_cudnn();

// Many channels on each side of a group: implicit matrix products.
bool supports_dense(const ConvProblem& p);
void run_dense(const ConvProblem& p);
// Whether factors of float32 may be rounded to TF32: what torch is told of cuDNN's convolutions.
bool allows_tf32();

// The definition, for what no other kernel takes.
void run_reference(const ConvProblem& p);

// Adds bias and residual to the sums that p.out has and applies the activation: a pass over an
// image without gaps, if there is anything to do.
bool can_complete(const ConvProblem& p);
void complete(const ConvProblem& p);

// The gradient of an activation, element by element.
void activation_gradient(const ActivationGradient& p);

} // namespace torch_dnnl::cuda
