// Marks functions that run on the CPU and on the GPU from one source.
#pragma once

#if defined(__CUDACC__)
#define TORCH_DNNL_HD __host__ __device__
#else
#define TORCH_DNNL_HD
#endif
