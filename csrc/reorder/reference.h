// The definition of reorder. The arithmetic is of one element or of several that go together: every
// kernel that is not vector code of the CPU computes with it. The reference is one function object,
// one call per element of the destination: the CPU runs it in a loop, CUDA with a thread per
// element.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/numeric.h"
#include "reorder/problem.h"

namespace torch_dnnl {

// ---- arithmetic ----
//
// Steps that would change nothing are left out, steps that are there are rounded one by one. `p`
// says which are there; operand(array, other) reads the scales, zero points and sums of n elements.

template <class C, int n, class Problem, class Operand>
TORCH_DNNL_HD inline void scale_values(const Problem& p, C (&value)[n], const Operand& operand) {
  using namespace reorder_arrays;
  C other[n];
  const auto step = [&](Array array, const auto& f) {
    if (!p.operand[array].present)
      return;
    operand(array, other);
    for (int k = 0; k < n; k++)
      value[k] = f(value[k], other[k]);
  };
  step(kSrcZeroPoint, [](C x, C zero_point) { return x - zero_point; });
  step(kScale, [](C x, C scale) { return mul(scale, x); });
  step(kAccumulate, [&](C x, C sum) { return x + mul(static_cast<C>(p.beta), sum); });
  if constexpr (requires { operand.divide(value); }) {
    if (p.operand[kDstScale].present)
      operand.divide(value); // what follows, in another way
  } else {
    step(kDstScale, [](C x, C scale) { return x / scale; });
  }
}

template <class C, int n, class Problem, class Operand>
TORCH_DNNL_HD inline void shift_values(const Problem& p, C (&value)[n], const Operand& operand) {
  if (!p.operand[reorder_arrays::kDstZeroPoint].present)
    return;
  C other[n];
  operand(reorder_arrays::kDstZeroPoint, other);
  for (int k = 0; k < n; k++)
    value[k] = (p.round_before_zero_point ? std::nearbyint(value[k]) : value[k]) + other[k];
}

// Processors differ in the NaN they produce.
template <class C>
TORCH_DNNL_HD inline C canonical_nan(C value) {
  if constexpr (!std::is_integral_v<C>)
    return value != value ? std::numeric_limits<C>::quiet_NaN() : value;
  return value;
}

// ---- reference ----

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
    C value[] = {0};
    if (!at.is_padding) {
      value[0] = load<C>(p.src, p.src_dtype, at.src);
      if constexpr (!std::is_integral_v<C>) {
        scale_values(p, value, Operands{p, at});
        shift_values(p, value, Operands{p, at});
      }
    }
    store(p.dst, p.dst_dtype, at.dst, canonical_nan(value[0]));
  }

  TORCH_DNNL_HD ReorderPosition position(int64_t i) const {
    ReorderPosition at{};
    for (int64_t k = p.dst_layout.digits - 1; k >= 0; k--) {
      const ReorderProblem::Digit& digit = p.dst_layout.digit[k];
      const int64_t value = i % digit.extent;
      i /= digit.extent;
      at.coordinate[digit.dim] += value * digit.step;
      at.dst += value * digit.stride;
      at.accumulate += value * digit.accumulate_stride;
    }
    for (int64_t d = 0; d < p.dims; d++)
      at.is_padding |= at.coordinate[d] >= p.size[d];
    for (const ReorderProblem::Digit& digit : p.src_layout)
      at.src += at.coordinate[digit.dim] / digit.step % digit.extent * digit.stride;
    return at;
  }

  // What belongs to an element, in the form that the arithmetic reads it.
  struct Operands {
    const ReorderProblem& p;
    const ReorderPosition& at;

    TORCH_DNNL_HD void operator()(int array, C (&value)[1]) const {
      const ReorderProblem::Operand& operand = p.operand[array];
      if (operand.data == nullptr) {
        value[0] = static_cast<C>(operand.number);
        return;
      }
      int64_t offset = at.accumulate;
      if (array != reorder_arrays::kAccumulate) {
        offset = 0;
        for (int64_t d = 0; d < p.dims; d++)
          offset += at.coordinate[d] / operand.group[d] * operand.stride[d];
      }
      value[0] = load<C>(operand.data, operand.dtype, offset);
    }
  };
};

} // namespace torch_dnnl
