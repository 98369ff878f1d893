// How wide an access to an array may be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/cuda/vector.h"
#include "reorder/cuda/kernels.h"

namespace torch_dnnl::reorder_cuda {

// The largest power of two that divides all that was added, up to `widest`.
class Alignment {
 public:
  explicit Alignment(uint64_t widest) : bits_(widest) {}

  // Of all that lies along the innermost axis of an array of a box.
  Alignment(const boxes::Box& box, boxes::Array array, const void* data, int64_t element_size)
      : bits_(cuda::kWidestAccess) {
    add(data);
    add(box.offset[array] * element_size);
    for (size_t a = 0; a + 1 < box.axes.size(); a++)
      add(box.axes[a].stride[array] * element_size);
    const boxes::Axis& inner = box.axes.back();
    if (inner.extent > 1 && inner.stride[array] != 1)
      add(element_size);
  }

  void add(int64_t bytes) {
    bits_ |= static_cast<uint64_t>(bytes);
  }
  void add(const void* address) {
    bits_ |= reinterpret_cast<uintptr_t>(address);
  }
  int bytes() const {
    return static_cast<int>(bits_ & -bits_);
  }

 private:
  uint64_t bits_;
};

// Calls launch(std::integral_constant<int, width>) for the widest of these packs that have at most
// `most` elements, or one.
template <int... widths, class F>
void with_widest(int most, const F& launch) {
  const bool found =
      ((std::max(most, 1) >= widths && (launch(std::integral_constant<int, widths>{}), true)) ||
       ...);
  TORCH_INTERNAL_ASSERT(found);
}

} // namespace torch_dnnl::reorder_cuda
