// What torch.autocast does with an operator.
#pragma once

#include <torch/library.h>

namespace torch_dnnl {

// The kernel for AutocastCPU or AutocastCUDA of an operator that runs in the lower precision:
// floating arguments other than float64 are cast to it (once per autocast region for parameters),
// as at::autocast does for matrix products and convolutions.
torch::CppFunction lower_precision(c10::DeviceType device);

} // namespace torch_dnnl
