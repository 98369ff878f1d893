// The arithmetic of reorder and fake_reorder, of one element or of several that go together: every
// kernel that is not vector code of the CPU computes with this.
//
// Steps that would change nothing are left out, steps that are there are rounded one by one. `p`
// says which are there; operand(array, other) reads the scales, zero points and sums of n elements.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/numeric.h"
#include "reorder/box.h"

namespace torch_dnnl {

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
TORCH_DNNL_HD inline C canonical(C value) {
  if constexpr (!std::is_integral_v<C>) {
    return value != value ? std::numeric_limits<C>::quiet_NaN() : value;
  }
  return value;
}

} // namespace torch_dnnl
