// When each kernel is the best choice for a problem that it supports: one rule for each row of the
// table in conv_cpu.cpp, in the same order. The rules were fitted to timings; `make bench-choices`
// shows where another kernel is faster.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// So little work that any kernel but the reference takes longer to get ready.
bool prefers_reference(const ConvProblem& p);

bool prefers_pixel_lanes(const ConvProblem& p);
bool prefers_channel_lanes(const ConvProblem& p);
bool prefers_gemm(const ConvProblem& p);
bool prefers_few_outputs(const ConvProblem& p);
bool prefers_winograd_2x2(const ConvProblem& p);
bool prefers_winograd_4x4(const ConvProblem& p);
bool prefers_few_inputs(const ConvProblem& p);
bool prefers_blocked(const ConvProblem& p);

// Which of the tiles of Winograd's algorithm takes less time.
bool prefers_tiles_2x2(const ConvProblem& p);

} // namespace torch_dnnl
