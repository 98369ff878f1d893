// The kernels of convolution on the CPU, as conv_cpu.cpp lists them: what each can compute
// (supports), when it is the best choice (prefers; all of these are in choose.cpp), and what runs
// it. The file that defines run_<name> says how the kernel works.
#pragma once

#include <string_view>

#include "conv/cpu/shared/packed/packed.h"
#include "conv/problem.h"

namespace torch_dnnl {

extern const Packing<ConvProblem> pixel_lanes_packing, channel_lanes_packing, brgemm_packing,
    gemm_packing, few_outputs_packing, winograd_2x2_packing, winograd_4x4_packing, direct_packing;

// Where rows, sums and the outputs of a task fit into the scratch memory.
bool supports_pixel_lanes(const ConvProblem& p);
bool prefers_pixel_lanes(const ConvProblem& p);
// False, and nothing is computed, if values are not finite that are multiplied with the zeros
// around an image.
bool run_pixel_lanes(const ConvProblem& p);
bool pixel_lanes_weights_gradient(const ConvProblem& p); // its part

// Every type and layout, where the rows that a task needs fit into the scratch memory.
bool supports_channel_lanes(const ConvProblem& p);
bool prefers_channel_lanes(const ConvProblem& p);
void run_channel_lanes(const ConvProblem& p);
void channel_lanes_weights_gradient(const ConvProblem& p);

// Every type but float64; gradients of data with few strides, and of weights where images do not
// grow much when they are packed.
bool supports_brgemm(const ConvProblem& p);
bool prefers_brgemm(const ConvProblem& p);
// False if gradients of weights are not finite: zeros between lines are multiplied, too.
bool run_brgemm(const ConvProblem& p);
bool supports_brgemm_weights(const ConvProblem& p); // its part
bool brgemm_weights_gradient(const ConvProblem& p);

// Kernels that lie within the image, and no two of which meet in a pixel.
bool supports_gemm(const ConvProblem& p);
bool prefers_gemm(const ConvProblem& p);
void run_gemm(const ConvProblem& p);

// Forward with a stride of 1 along the last axis, and backward data.
bool supports_few_outputs(const ConvProblem& p);
bool prefers_few_outputs(const ConvProblem& p);
void run_few_outputs(const ConvProblem& p);

// Kernels of 3x3 with a stride and dilation of 1; tiles of 2x2 have no backward weights.
bool supports_winograd_2x2(const ConvProblem& p);
bool supports_winograd_4x4(const ConvProblem& p);
bool prefers_winograd_2x2(const ConvProblem& p);
bool prefers_winograd_4x4(const ConvProblem& p);
bool prefers_tiles_2x2(const ConvProblem& p); // which of the tiles takes less time
void run_winograd_2x2(const ConvProblem& p);
void run_winograd_4x4(const ConvProblem& p);
void winograd_weights_gradient(const ConvProblem& p);

// Forward, and gradients of data where images can be exchanged (canonical.h).
bool supports_few_inputs(const ConvProblem& p);
bool prefers_few_inputs(const ConvProblem& p);
void run_few_inputs(const ConvProblem& p);

// Every problem.
bool prefers_blocked(const ConvProblem& p);
void run_blocked(const ConvProblem& p);
void blocked_weights_gradient(const ConvProblem& p);

// So little work that any kernel but the reference takes longer to get ready.
bool prefers_reference(const ConvProblem& p);

// The derivative of a fused activation and, in one pass, the sums that are the gradient of the
// bias. sums, if there are any: one for each channel, to which those of the channel's outputs are
// added, in an order that does not depend on the number of threads.
void activation_gradient(const ActivationGradient& p, double* sums);

// All gradients of a fused call, in parts, whose problems `compute` runs.
struct FusedBackward;
void fused_backward_in_parts(
    const FusedBackward& call,
    void (*compute)(const ConvProblem& p, std::string_view algorithm));

} // namespace torch_dnnl
