// Memory for what one kernel leaves to the next.
#pragma once

#include <c10/core/Allocator.h>

#include <cstring>

#include "core/cuda/launch.h"

#ifndef TORCH_DNNL_CUDA_ON_HOST
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace torch_dnnl::cuda {

// Memory of the current device from torch's allocator; later kernels of the current stream may have
// it once it is given back. On the host it is filled with 0xff bytes: NaN in every floating type.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
#ifdef TORCH_DNNL_CUDA_ON_HOST
    memory_ = c10::GetAllocator(c10::DeviceType::CPU)->allocate(bytes);
    std::memset(memory_.get(), 0xff, bytes);
#else
    memory_ = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
#endif
  }

  void* data() const {
    return memory_.get();
  }

 private:
  c10::DataPtr memory_;
};

} // namespace torch_dnnl::cuda
