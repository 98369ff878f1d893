// What a kernel knows of a reorder: plain numbers and raw pointers.
//
// The memory layout of either side is a list of digits, as of a number in a mixed radix: a
// dimension of a strided tensor is one digit, a blocked dimension is several.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "core/dispatch.h"

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

struct ReorderProblem {
  // Part of the index of logical dimension `dim`: the digit times `step`. In memory one more of
  // the digit is `stride` elements further.
  struct Digit {
    int64_t dim, extent, step, stride;
  };
  struct Operand {
    bool present;
    const void* data; // null: `number`
    c10::ScalarType dtype;
    double number;
    int64_t group[kMaxDims]; // logical elements that share one entry
    int64_t stride[kMaxDims];
  };

  int64_t dims, src_digits, dst_digits;
  int64_t size[kMaxDims]; // without padding
  Digit src_digit[kMaxDigits];
  Digit dst_digit[kMaxDigits];           // in the order of memory, outermost first
  int64_t accumulate_stride[kMaxDigits]; // of the digits of dst
  c10::ScalarType src_dtype, dst_dtype, accumulate_dtype, compute_dtype;
  const void* src;
  void* dst;
  const void* accumulate; // or null
  Operand scale, dst_scale, src_zero_point, dst_zero_point;
  double beta;
  bool round_before_zero_point; // of an integer dst
};
static_assert(sizeof(ReorderProblem) <= 4000, "a kernel's parameters must fit in 4 KB");

} // namespace torch_dnnl
