// The rows of a box in packs: of what is next to each other in the source as in the destination.
#pragma once

#include "core/cuda/divide.h"
#include "reorder/cuda/kernels.h"
#include "reorder/cuda/pack.h"

namespace torch_dnnl::reorder_cuda {

// The innermost axis first, whose coordinates are packs. Strides and offsets of src and dst are in
// bytes.
struct RowBox {
  int axes;
  uint32_t packs;
  uint32_t row, width;               // elements: of a row, of a pack
  cuda::Divisor count[kMaxAxes + 1]; // with the bytes of an element
  int64_t stride[kMaxAxes + 1][kArrays];
  int64_t offset[kArrays];
  int64_t step[kArrays]; // of the elements of a pack

  // f(axis, coordinate) for the coordinates of a pack.
  template <class F>
  __device__ __forceinline__ void for_each_coordinate(uint32_t pack, const F& f) const {
    for (int a = 0; a + 1 < axes; a++)
      f(a, count[a].split(pack));
    f(axes - 1, pack);
  }

  // The last pack of a row may be a part.
  __device__ __forceinline__ int elements(uint32_t pack_of_row) const {
    return static_cast<int>(min(width, row - pack_of_row * width));
  }

  // Where a pack is, and how many elements it has.
  __device__ __forceinline__ int
  locate(uint32_t pack, bool has_tensors, PackPosition& position) const {
    position.step = step;
    for (int array = 0; array < kArrays; array++)
      position.at[array] = offset[array];
    int elements_of_pack = 0;
    for_each_coordinate(pack, [&](int a, uint32_t coordinate) {
      position.at[kSrc] += coordinate * stride[a][kSrc];
      position.at[kDst] += coordinate * stride[a][kDst];
      if (has_tensors)
        for (int array = 0; array < kOperands; array++)
          position.at[array] += coordinate * stride[a][array];
      elements_of_pack = a == 0 ? elements(coordinate) : elements_of_pack;
    });
    return elements_of_pack;
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
    for (int array = 0; array < kArrays; array++)
      result.stride[a][array] = in_bytes(array, axis.stride[array] * step, src_size, dst_size);
  }
  for (int array = 0; array < kArrays; array++) {
    result.offset[array] = in_bytes(array, box.offset[array], src_size, dst_size);
    result.step[array] = box.axes.back().stride[array];
  }
  return result;
}

} // namespace torch_dnnl::reorder_cuda
