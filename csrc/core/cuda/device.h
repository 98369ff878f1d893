// The device that kernels are registered for: torch's dispatch key and its name. On the host (see
// launch.h) the tests put these kernels in the place of the CPU's.
#pragma once

#ifdef TORCH_DNNL_CUDA_ON_HOST
#define TORCH_DNNL_CUDA_KEY CPU
#define TORCH_DNNL_CUDA_NAME "cpu"
#else
#define TORCH_DNNL_CUDA_KEY CUDA
#define TORCH_DNNL_CUDA_NAME "cuda"
#endif
