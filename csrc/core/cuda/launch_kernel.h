// What launch() of launch.h needs of torch and of CUDA's runtime: a function of its own, as torch's
// headers of streams take nvcc longer than most kernels.
#pragma once

#include <vector_types.h>

#include <cstddef>

namespace torch_dnnl::cuda {

// Launches a kernel, given the addresses of its arguments, on the current stream of the current
// device.
void launch_kernel(
    const void* kernel,
    dim3 grid,
    dim3 block,
    size_t shared_bytes,
    void** arguments);

} // namespace torch_dnnl::cuda
