// convolution_fused_backward on the CPU, in parts.
#pragma once

#include <string_view>

#include "conv/fused_backward.h"

namespace torch_dnnl {

// `compute` runs a problem of a part.
void fused_backward_in_parts(
    const FusedBackward& call,
    void (*compute)(const ConvProblem& p, std::string_view algorithm));

} // namespace torch_dnnl
