// Launching CUDA kernels: the one file that meets torch's streams and CUDA's errors.
#ifndef TORCH_DNNL_CUDA_ON_HOST

#include "core/cuda/launch_kernel.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>
#include <utility>

namespace torch_dnnl::cuda {
namespace {

// Lets a kernel have so much dynamic shared memory on the current device. The driver is asked once
// for each kernel and device, not in each launch.
void allow_shared_bytes(const void* kernel, size_t bytes) {
  constexpr size_t kAllowedToAll = 48 * 1024;
  if (bytes <= kAllowedToAll)
    return;
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, size_t> allowed;
  const std::lock_guard lock(mutex);
  size_t& most = allowed[{kernel, c10::cuda::current_device()}];
  if (bytes > most) {
    C10_CUDA_CHECK(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    most = bytes;
  }
}

} // namespace

void launch_kernel(
    const void* kernel,
    dim3 grid,
    dim3 block,
    size_t shared_bytes,
    void** arguments) {
  allow_shared_bytes(kernel, shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel, arguments));
}

} // namespace torch_dnnl::cuda

#endif
