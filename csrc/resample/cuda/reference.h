// The reference on CUDA: one thread per element, every type and stride.
#pragma once

#include "resample/problem.h"

namespace torch_dnnl::cuda {

void run_reference(const ResampleProblem& problem);

} // namespace torch_dnnl::cuda
