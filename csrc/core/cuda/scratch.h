// Memory for what one kernel leaves to the next.
#pragma once

#include <ATen/ops/empty.h>

#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {

// Device memory that later kernels of the stream may have once it is given back.
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      : memory_(
            at::empty({bytes}, at::device(c10::DeviceType::TORCH_DNNL_CUDA_KEY).dtype(at::kByte))) {
  }

  void* data() const {
    return memory_.mutable_data_ptr();
  }

 private:
  at::Tensor memory_;
};

} // namespace torch_dnnl::cuda
