// What kernels need of torch and of CUDA's runtime: launches and memory. These are functions of
// their own, as torch's headers of streams take nvcc longer than most kernels.
#pragma once

#ifndef TORCH_DNNL_CUDA_ON_HOST
#include <vector_types.h>
#endif

#include <cstddef>
#include <memory>

namespace torch_dnnl::cuda {

#ifndef TORCH_DNNL_CUDA_ON_HOST
// Launches a kernel, given the addresses of its arguments, on the current stream of the current
// device.
void launch_kernel(
    const void* kernel,
    dim3 grid,
    dim3 block,
    size_t shared_bytes,
    void** arguments);
#endif

// Memory of the current device from torch's allocator, for what one kernel leaves to the next;
// later kernels of the current stream may have it once it is given back. On the host it is filled
// with 0xff bytes: NaN in every floating type.
class Scratch {
 public:
  explicit Scratch(size_t bytes);

  void* data() const {
    return memory_.get();
  }

 private:
  std::unique_ptr<void, void (*)(void*)> memory_;
};

} // namespace torch_dnnl::cuda
