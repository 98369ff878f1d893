// The device that this library's kernels are registered for: torch's dispatch key and its name. The
// tests compile the CUDA kernels for the host, where their library takes the CPU library's place.
#pragma once

#ifdef TORCH_DNNL_CUDA_ON_HOST
#define TORCH_DNNL_CUDA_KEY CPU
#define TORCH_DNNL_CUDA_NAME "cpu"
#else
#define TORCH_DNNL_CUDA_KEY CUDA
#define TORCH_DNNL_CUDA_NAME "cuda"
#endif
