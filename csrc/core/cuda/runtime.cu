// Launching CUDA kernels, and memory for them: the one file that meets torch's streams, torch's
// allocators and CUDA's errors.
#include "core/cuda/launch.h"

#ifdef TORCH_DNNL_CUDA_ON_HOST
#include <c10/core/Allocator.h>

#include <cstring>
#else
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>
#include <utility>
#endif

namespace torch_dnnl::cuda {
namespace {

c10::Allocator& allocator() {
#ifdef TORCH_DNNL_CUDA_ON_HOST
  return *c10::GetAllocator(c10::DeviceType::CPU);
#else
  return *c10::cuda::CUDACachingAllocator::get();
#endif
}

} // namespace

Scratch::Scratch(size_t bytes)
    : memory_(allocator().raw_allocate(bytes), allocator().raw_deleter()) {
#ifdef TORCH_DNNL_CUDA_ON_HOST
  std::memset(data(), 0xff, bytes);
#endif
}

int64_t multiprocessors() {
  int count = 2; // on the host: so that blocks of small problems take several parts of them
#ifndef TORCH_DNNL_CUDA_ON_HOST
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, c10::cuda::current_device()));
#endif
  return count;
}

#ifndef TORCH_DNNL_CUDA_ON_HOST
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
#endif

} // namespace torch_dnnl::cuda
