// The definition of reorder. The arithmetic is of one element or of several that go together: every
// kernel that is not vector code of the CPU computes with it. The reference is one function object,
// one call per element of the destination: the CPU runs it in a loop, CUDA with a thread per
// element.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/numeric.h"
#include "reorder/box.h"
#include "reorder/problem.h"

namespace torch_dnnl {

// ---- arithmetic ----
//
// Steps that would change nothing are left out, steps that are there are rounded one by one. `p`
// says which are there; operand(array, other) reads the scales, zero points and sums of n elements.

template <class C, int n, class Problem, class Operand>
TORCH_DNNL_HD inline void scale_values(const Problem& p, C (&value)[n], const Operand& operand) {
  C other[n];
  if (p.src_zero_point.present) {
    operand(boxes::kSrcZeroPoint, other);
    for (int k = 0; k < n; k++) {
      value[k] -= other[k];
    }
  }
  if (p.scale.present) {
    operand(boxes::kScale, other);
    for (int k = 0; k < n; k++) {
      value[k] = mul(other[k], value[k]);
    }
  }
  if (p.accumulate != nullptr) {
    operand(boxes::kAccumulate, other);
    for (int k = 0; k < n; k++) {
      value[k] += mul(static_cast<C>(p.beta), other[k]);
    }
  }
  if (p.dst_scale.present) {
    operand(boxes::kDstScale, other);
    for (int k = 0; k < n; k++) {
      value[k] /= other[k];
    }
  }
}

template <class C, int n, class Problem, class Operand>
TORCH_DNNL_HD inline void shift_values(const Problem& p, C (&value)[n], const Operand& operand) {
  if (p.dst_zero_point.present) {
    C other[n];
    operand(boxes::kDstZeroPoint, other);
    for (int k = 0; k < n; k++) {
      value[k] = (p.round_before_zero_point ? std::nearbyint(value[k]) : value[k]) + other[k];
    }
  }
}

// Processors differ in the NaN they produce.
template <class C>
TORCH_DNNL_HD inline C canonical_nan(C value) {
  if constexpr (!std::is_integral_v<C>) {
    return value != value ? std::numeric_limits<C>::quiet_NaN() : value;
  }
  return value;
}

// ---- reference ----

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

// C: float, double, or int64_t where values are only moved. Problem: or a reference to one.
template <class C, class Problem = ReorderProblem>
struct ReorderElement {
  Problem p;

  // dst[i], in the order of the digits of dst.
  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ReorderPosition at = position(i);
    C value = 0;
    if (!at.is_padding) {
      value = canonical_nan(shifted(scaled(load<C>(p.src, p.src_dtype, at.src), at), at));
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

  TORCH_DNNL_HD C scaled(C value, const ReorderPosition& at) const {
    C values[] = {value};
    if constexpr (!std::is_integral_v<C>) {
      scale_values(p, values, Operands{*this, at});
    }
    return values[0];
  }

  TORCH_DNNL_HD C shifted(C value, const ReorderPosition& at) const {
    C values[] = {value};
    if constexpr (!std::is_integral_v<C>) {
      shift_values(p, values, Operands{*this, at});
    }
    return values[0];
  }

  // What belongs to an element, in the form that the arithmetic reads it.
  struct Operands {
    const ReorderElement& element;
    const ReorderPosition& at;

    TORCH_DNNL_HD void operator()(boxes::Array array, C (&value)[1]) const {
      value[0] = element.operand(array, at);
    }
  };

  TORCH_DNNL_HD C operand(boxes::Array array, const ReorderPosition& at) const {
    switch (array) {
      case boxes::kAccumulate:
        return load<C>(p.accumulate, p.accumulate_dtype, at.accumulate);
      case boxes::kSrcZeroPoint:
        return operand_at<C>(p.src_zero_point, p.dims, at.coordinate);
      case boxes::kScale:
        return operand_at<C>(p.scale, p.dims, at.coordinate);
      case boxes::kDstScale:
        return operand_at<C>(p.dst_scale, p.dims, at.coordinate);
      default:
        return operand_at<C>(p.dst_zero_point, p.dims, at.coordinate);
    }
  }
};

} // namespace torch_dnnl
