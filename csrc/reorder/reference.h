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

// Where an element is, in every array.
struct ReorderPosition {
  int64_t coordinate[kMaxDims];
  int64_t src, dst, accumulate;
  bool is_padding;
};

// C: float, double, or int64_t where values are only moved.
template <class C>
struct ReorderElement {
  ReorderProblem p;

  // dst[i], in the order of the digits of dst.
  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ReorderPosition at = position(i);
    C value = 0;
    if (!at.is_padding) {
      value = canonical(shifted(scaled(load<C>(p.src, p.src_dtype, at.src), at), at));
    }
    store(p.dst, p.dst_dtype, at.dst, value);
  }

  TORCH_DNNL_HD ReorderPosition position(int64_t i) const {
    ReorderPosition at{};
    for (int64_t k = p.dst_digits - 1; k >= 0; k--) {
      const ReorderProblem::Digit& digit = p.dst_digit[k];
      const int64_t value = i % digit.extent;
      i /= digit.extent;
      at.coordinate[digit.dim] += value * digit.step;
      at.dst += value * digit.stride;
      at.accumulate += value * p.accumulate_stride[k];
    }
    for (int64_t d = 0; d < p.dims; d++) {
      at.is_padding |= at.coordinate[d] >= p.size[d];
    }
    for (int64_t k = 0; k < p.src_digits; k++) {
      const ReorderProblem::Digit& digit = p.src_digit[k];
      at.src += at.coordinate[digit.dim] / digit.step % digit.extent * digit.stride;
    }
    return at;
  }

  // Steps that would change nothing are left out, steps that are there are rounded one by one.
  TORCH_DNNL_HD C scaled(C value, const ReorderPosition& at) const {
    if constexpr (!std::is_integral_v<C>) {
      if (p.src_zero_point.present) {
        value -= operand(p.src_zero_point, at);
      }
      if (p.scale.present) {
        value = mul(operand(p.scale, at), value);
      }
      if (p.accumulate != nullptr) {
        const C sum = load<C>(p.accumulate, p.accumulate_dtype, at.accumulate);
        value += mul(static_cast<C>(p.beta), sum);
      }
      if (p.dst_scale.present) {
        value /= operand(p.dst_scale, at);
      }
    }
    return value;
  }

  TORCH_DNNL_HD C shifted(C value, const ReorderPosition& at) const {
    if constexpr (!std::is_integral_v<C>) {
      if (p.dst_zero_point.present) {
        if (p.round_before_zero_point) {
          value = std::nearbyint(value);
        }
        value += operand(p.dst_zero_point, at);
      }
    }
    return value;
  }

  // Processors differ in the NaN they produce.
  TORCH_DNNL_HD static C canonical(C value) {
    if constexpr (!std::is_integral_v<C>) {
      return value != value ? std::numeric_limits<C>::quiet_NaN() : value;
    }
    return value;
  }

  TORCH_DNNL_HD C operand(const ReorderProblem::Operand& operand, const ReorderPosition& at) const {
    return operand_at<C>(operand, p.dims, at.coordinate);
  }
};

} // namespace torch_dnnl
