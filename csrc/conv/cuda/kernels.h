// The kernels of convolution on CUDA, as conv_cuda.cu lists them: what each can compute (supports),
// and what runs it.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl::cuda {

// Few channels in a group, also those of depthwise convolution.
bool supports_depthwise(const ConvProblem& p);
void run_depthwise(const ConvProblem& p);

// Many channels on each side of a group: implicit matrix products.
bool supports_dense(const ConvProblem& p);
void run_dense(const ConvProblem& p);
// Whether factors of float32 may be rounded to TF32: what torch is told of cuDNN's convolutions.
bool allows_tf32();

// The definition, for what no other kernel takes.
void run_reference(const ConvProblem& p);

// The gradient of an activation, element by element.
void activation_gradient(const ActivationGradient& p);

} // namespace torch_dnnl::cuda
