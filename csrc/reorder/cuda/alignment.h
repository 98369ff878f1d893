// How wide an access to an array may be.
#pragma once

#include <cstdint>

#include "reorder/cuda/kernels.h"

namespace torch_dnnl::reorder_cuda {

// The largest power of two that divides all that was added, up to `widest`.
class Alignment {
 public:
  explicit Alignment(uint64_t widest) : bits_(widest) {}

  void add(int64_t bytes) {
    bits_ |= static_cast<uint64_t>(bytes);
  }
  void add(const void* address) {
    bits_ |= reinterpret_cast<uintptr_t>(address);
  }
  // All that lies along the innermost axis begins as aligned as this.
  void add(const boxes::Box& box, boxes::Array array, int64_t element_size) {
    add(box.offset[array] * element_size);
    for (size_t a = 0; a + 1 < box.axes.size(); a++) {
      add(box.axes[a].stride[array] * element_size);
    }
    const boxes::Axis& inner = box.axes.back();
    if (inner.extent > 1 && inner.stride[array] != 1) {
      add(element_size);
    }
  }
  int bytes() const {
    return static_cast<int>(bits_ & -bits_);
  }

 private:
  uint64_t bits_;
};

} // namespace torch_dnnl::reorder_cuda
