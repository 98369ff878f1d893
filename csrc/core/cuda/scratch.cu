// Memory from torch's allocators: the one file that meets them.
#include "core/cuda/scratch.h"

#include <c10/core/Allocator.h>

#ifdef TORCH_DNNL_CUDA_ON_HOST
#include <cstring>
#else
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace torch_dnnl::cuda {
namespace {

c10::DataPtr allocate(size_t bytes) {
#ifdef TORCH_DNNL_CUDA_ON_HOST
  c10::DataPtr memory = c10::GetAllocator(c10::DeviceType::CPU)->allocate(bytes);
  std::memset(memory.get(), 0xff, bytes);
  return memory;
#else
  return c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
#endif
}

} // namespace

Scratch::Scratch(size_t bytes) : owner_(nullptr, nullptr) {
  c10::DataPtr memory = allocate(bytes);
  data_ = memory.get();
  const auto give_back = memory.get_deleter();
  owner_ = {memory.release_context(), give_back};
}

} // namespace torch_dnnl::cuda
