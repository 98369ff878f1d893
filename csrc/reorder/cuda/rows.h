// The rows of a box in packs: of what is next to each other in the source as in the destination.
#pragma once

#include "core/cuda/divide.h"
#include "reorder/cuda/pack.h"

namespace torch_dnnl::reorder_cuda {

// The innermost axis first, whose coordinates are packs. Strides and offsets of src and dst are in
// bytes.
struct RowBox {
  int axes;
  uint32_t packs;
  uint32_t row, width;               // elements: of a row, of a pack
  cuda::Divisor count[kMaxAxes + 1]; // with the bytes of an element
  Offsets stride[kMaxAxes + 1];
  Offsets offset;
  Offsets step; // of the elements of a pack

  // Where a pack is, and how many elements it has: the last one of a row may be a part.
  __device__ __forceinline__ int
  locate(uint32_t pack, bool has_tensors, PackPosition& position) const {
    position.step = &step;
    for (int array = 0; array < kArrays; array++)
      position.at[array] = offset[array];
    int elements = 0;
    const auto advance = [&](int a, uint32_t coordinate) {
      add_steps(position.at, coordinate, stride[a], has_tensors);
      elements = a == 0 ? static_cast<int>(min(width, row - coordinate * width)) : elements;
    };
    for (int a = 0; a + 1 < axes; a++)
      advance(a, count[a].split(pack));
    advance(axes - 1, pack);
    return elements;
  }
};

inline RowBox row_box(const boxes::Box& box, uint32_t width, int64_t src_size, int64_t dst_size) {
  RowBox result{};
  result.axes = static_cast<int>(box.axes.size());
  result.row = static_cast<uint32_t>(box.axes.back().extent);
  result.width = width;
  result.packs = 1;
  for (int a = 0; a < result.axes; a++) {
    const boxes::Axis& axis = box.axes[result.axes - 1 - a];
    const int64_t step = a == 0 ? width : 1, count = ceil_div(axis.extent, step);
    result.count[a] = cuda::Divisor(count);
    result.packs *= static_cast<uint32_t>(count);
    boxes::advance(result.stride[a], in_bytes(axis.stride, src_size, dst_size), step);
  }
  result.offset = in_bytes(box.offset, src_size, dst_size);
  result.step = box.axes.back().stride;
  return result;
}

constexpr int kThreads = 256;

// A kernel whose threads take `packs` packs of a plan's box each, a block's width apart.
template <int packs, class Plan>
void launch_packs(void (*kernel)(Plan), const Plan& plan) {
  const dim3 grid(ceil_div(plan.box.packs, kThreads * packs));
  cuda::launch(kernel, grid, dim3(kThreads), 0, plan);
}

} // namespace torch_dnnl::reorder_cuda
