// The reference on CUDA: one thread per element, every type and stride.
#pragma once

#include "resample/resample.h"

namespace torch_dnnl::cuda {

// `like`: where memory for tables comes from.
void run_reference(const ResampleProblem& problem, bool transposed, const at::Tensor& like);

} // namespace torch_dnnl::cuda
