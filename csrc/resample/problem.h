// What a kernel knows of a resize: plain numbers and raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "resample/axis_table.h"

namespace torch_dnnl {

// Missing leading axes have size 1, so that kernels see three axes always.
struct ResampleProblem {
  int64_t n, c;
  int64_t src_size[3], dst_size[3];     // D, H, W
  int64_t src_stride[5], dst_stride[5]; // N, C, D, H, W, in elements
  c10::ScalarType src_dtype, dst_dtype;
  const void* src;
  void* dst;
  AxisSpec axes[3];        // from the forward's source to its destination
  bool transposed;         // dst is the gradient of the forward's source
  bool channels_innermost; // how the elements of dst are best visited
  double extrapolation_value;
};

} // namespace torch_dnnl
