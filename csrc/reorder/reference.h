// The definition of reorder: one function object, one call per element of the destination. The CPU
// runs it in a loop, CUDA with a thread per element.
#pragma once

#include "reorder/arithmetic.h"
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

// C: float, double, or int64_t where values are only moved. Problem: or a reference to one.
template <class C, class Problem = ReorderProblem>
struct ReorderElement {
  Problem p;

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
