// The definition of reorder: one function object, one call per element of the destination. The CPU
// runs it in a loop, CUDA with a thread per element.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/numeric.h"
#include "reorder/problem.h"

namespace torch_dnnl {

// The element of a scale or zero point that belongs to a logical coordinate.
template <class C>
TORCH_DNNL_HD inline C
operand_at(const ReorderProblem::Operand& operand, int64_t dims, const int64_t* coordinate) {
  if (operand.data == nullptr) {
    return static_cast<C>(operand.number);
  }
  int64_t offset = 0;
  for (int64_t d = 0; d < dims; d++) {
    offset += coordinate[d] / operand.group[d] * operand.stride[d];
  }
  return load<C>(operand.data, operand.dtype, offset);
}

// C: float, double, or int64_t where values are only moved.
template <class C>
struct ReorderElement {
  ReorderProblem p;

  // dst[i], in the order of memory.
  TORCH_DNNL_HD void operator()(int64_t i) const {
    int64_t coordinate[kMaxDims] = {};
    int64_t dst = 0, accumulate = 0;
    for (int64_t k = p.dst_digits - 1; k >= 0; k--) {
      const ReorderProblem::Digit& digit = p.dst_digit[k];
      const int64_t value = i % digit.extent;
      i /= digit.extent;
      coordinate[digit.dim] += value * digit.step;
      dst += value * digit.stride;
      accumulate += value * p.accumulate_stride[k];
    }
    bool padding = false;
    for (int64_t d = 0; d < p.dims; d++) {
      padding |= coordinate[d] >= p.size[d];
    }
    if (padding) {
      store(p.dst, p.dst_dtype, dst, C(0));
      return;
    }
    int64_t src = 0;
    for (int64_t k = 0; k < p.src_digits; k++) {
      const ReorderProblem::Digit& digit = p.src_digit[k];
      src += coordinate[digit.dim] / digit.step % digit.extent * digit.stride;
    }
    const C value = load<C>(p.src, p.src_dtype, src);
    store(p.dst, p.dst_dtype, dst, transformed(value, coordinate, accumulate));
  }

  // Steps that would change nothing are left out, steps that are there are rounded one by one.
  TORCH_DNNL_HD C transformed(C value, const int64_t* coordinate, int64_t accumulate) const {
    if constexpr (!std::is_integral_v<C>) {
      if (p.src_zero_point.present) {
        value -= operand_at<C>(p.src_zero_point, p.dims, coordinate);
      }
      if (p.scale.present) {
        value = mul(operand_at<C>(p.scale, p.dims, coordinate), value);
      }
      if (p.accumulate != nullptr) {
        const C sum = load<C>(p.accumulate, p.accumulate_dtype, accumulate);
        value += mul(static_cast<C>(p.beta), sum);
      }
      if (p.dst_scale.present) {
        value /= operand_at<C>(p.dst_scale, p.dims, coordinate);
      }
      if (p.dst_zero_point.present) {
        if (p.round_before_zero_point) {
          value = std::nearbyint(value);
        }
        value += operand_at<C>(p.dst_zero_point, p.dims, coordinate);
      }
      // Processors differ in the NaN they produce.
      if (value != value) {
        value = std::numeric_limits<C>::quiet_NaN();
      }
    }
    return value;
  }
};

} // namespace torch_dnnl
