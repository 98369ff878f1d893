// What a kernel knows of a reorder: plain numbers and raw pointers.
//
// The memory layout of either side is a list of digits, as of a number in a mixed radix: a
// dimension of a strided tensor is one digit, a blocked dimension is several.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "core/dispatch.h"
#include "core/host_device.h"

namespace torch_dnnl {

using ReorderTypes = TypeList<
    double,
    float,
    c10::BFloat16,
    c10::Half,
    c10::Float8_e4m3fn,
    c10::Float8_e5m2,
    int32_t,
    int8_t,
    uint8_t>;
using ReorderFloatingTypes =
    TypeList<double, float, c10::BFloat16, c10::Half, c10::Float8_e4m3fn, c10::Float8_e5m2>;
// What values are computed in. int64_t: they are only moved and converted, exactly.
using ReorderComputeTypes = TypeList<double, float, int64_t>;

inline constexpr int kMaxDims = 12;   // logical dimensions
inline constexpr int kMaxDigits = 24; // dimensions of a physical tensor

// The arrays of a reorder: what is computed with, the source and the destination.
namespace reorder_arrays {
enum Array {
  kScale,
  kDstScale,
  kSrcZeroPoint,
  kDstZeroPoint,
  kAccumulate,
  kOperands,
  kSrc = kOperands,
  kDst,
  kArrays
};
}

struct ReorderProblem {
  // Part of the index of logical dimension `dim`: the digit times `step`. In memory one more of
  // the digit is `stride` elements further.
  struct Digit {
    int64_t dim, extent, step, stride;
    int64_t accumulate_stride; // the same in accumulate, of a digit of dst
  };
  struct Layout {
    int64_t digits;
    Digit digit[kMaxDigits];

    TORCH_DNNL_HD const Digit* begin() const {
      return digit;
    }
    TORCH_DNNL_HD const Digit* end() const {
      return digit + digits;
    }
  };
  struct Operand {
    bool present;
    c10::ScalarType dtype;
    const void* data; // null: `number`
    double number;
    // Of scales and zero points, along the logical dimensions.
    int64_t group[kMaxDims]; // elements that share one entry
    int64_t stride[kMaxDims];
  };

  int64_t dims;
  int64_t size[kMaxDims]; // without padding
  Layout src_layout;
  Layout dst_layout; // in the order of memory, outermost first
  c10::ScalarType src_dtype, dst_dtype, compute_dtype;
  const void* src;
  void* dst;
  Operand operand[reorder_arrays::kOperands];
  double beta;
  bool round_before_zero_point; // of an integer dst

  // Of dst, with padding.
  int64_t elements() const {
    int64_t product = 1;
    for (const Digit& digit : dst_layout)
      product *= digit.extent;
    return product;
  }
  // Whether elements are only moved.
  bool is_move() const {
    return compute_dtype == c10::kLong && src_dtype == dst_dtype;
  }
};
static_assert(sizeof(ReorderProblem) <= 4000, "a kernel's parameters must fit in 4 KB");

} // namespace torch_dnnl
