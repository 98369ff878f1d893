// The kernels of quantized convolution on the CPU, as quantized_cpu.cpp lists them. The file that
// defines run_<name> says how the kernel works. All of them have the same bits.
#pragma once

#include "conv/cpu/shared/packed/packed.h"
#include "conv/quantized/problem.h"

namespace torch_dnnl {

extern const Packing<QuantizedProblem> quantized_depthwise_quads_packing,
    quantized_depthwise_packing, quantized_brgemm_packing, quantized_winograd_packing,
    quantized_pairs_packing;

// One channel in a group or a few, and sums that int32 holds.
bool supports_quantized_depthwise(const QuantizedProblem& p);
bool prefers_quantized_depthwise(const QuantizedProblem& p);
void run_quantized_depthwise(const QuantizedProblem& p);

// One channel in a group of channels-last images, rows of 3, 5 or 7 taps with strides of 1 and 2,
// and sums that int32 holds, on CPUs with dot4 of bytes.
bool supports_quantized_depthwise_quads(const QuantizedProblem& p);
bool prefers_quantized_depthwise_quads(const QuantizedProblem& p);
void run_quantized_depthwise_quads(const QuantizedProblem& p);

// Sums that int32 holds, where torch and the CPU have an int8 brgemm.
bool supports_quantized_brgemm(const QuantizedProblem& p);
void run_quantized_brgemm(const QuantizedProblem& p);

// Kernels of 3 x 3 without strides and dilations, and four times the sums in int32.
bool supports_quantized_winograd(const QuantizedProblem& p);
bool prefers_quantized_winograd(const QuantizedProblem& p);
void run_quantized_winograd(const QuantizedProblem& p);

// Sums that int32 holds.
bool supports_quantized_pairs(const QuantizedProblem& p);
void run_quantized_pairs(const QuantizedProblem& p);

} // namespace torch_dnnl
