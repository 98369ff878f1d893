// The kernels of quantized convolution on CUDA, as quantized_cuda.cpp lists them. The file that
// defines run_<name> says how the kernel works. All of them have the bits of the CPU's.
#pragma once

#include "conv/quantized/problem.h"

namespace torch_dnnl::cuda {

// Sums that int32 holds: words of four channels, for groups with few of them.
bool supports_quantized_depthwise(const QuantizedProblem& p);
void run_quantized_depthwise(const QuantizedProblem& p);

// Sums that int32 holds: products of matrices of bytes.
bool supports_quantized_dense(const QuantizedProblem& p);
void run_quantized_dense(const QuantizedProblem& p);

// The definition, a thread per element.
void run_quantized_reference(const QuantizedProblem& p);

} // namespace torch_dnnl::cuda
