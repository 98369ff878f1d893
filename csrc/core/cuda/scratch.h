// Memory for what one kernel leaves to the next.
#pragma once

#include <cstddef>
#include <memory>

namespace torch_dnnl::cuda {

// Memory of the current device from torch's allocator; later kernels of the current stream may have
// it once it is given back. On the host it is filled with 0xff bytes: NaN in every floating type.
class Scratch {
 public:
  explicit Scratch(size_t bytes);

  void* data() const {
    return data_;
  }

 private:
  void* data_;
  std::unique_ptr<void, void (*)(void*)> owner_;
};

} // namespace torch_dnnl::cuda
