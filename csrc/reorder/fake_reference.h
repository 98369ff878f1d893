// The definition of fake quantization: function objects, one call per byte of the mask, which is
// eight elements.
#pragma once

#include "core/dispatch.h"
#include "reorder/reference.h"

namespace torch_dnnl {

using FakeReorderTypes = TypeList<c10::Float8_e4m3fn, c10::Float8_e5m2, int32_t, int8_t, uint8_t>;

struct FakeReorderProblem {
  ReorderProblem reorder; // its destination is the result; the digits of dst are in memory's order
  c10::ScalarType dtype;  // quantized
  bool step_gradient;
  uint8_t* mask;                         // what fake_reorder writes
  const uint8_t* saved_mask;             // what fake_reorder_backward reads
  int64_t rows, row_bytes, row_elements; // of the mask
};
static_assert(sizeof(FakeReorderProblem) <= 4000, "a kernel's parameters must fit in 4 KB");

// What rounds to an integer T without saturating: kInRangeFrom <= round(x) < kInRangeBelow.
template <class T, class C>
inline constexpr C kInRangeFrom = static_cast<C>(std::numeric_limits<T>::min());
template <class T, class C>
inline constexpr C kInRangeBelow = static_cast<C>(std::numeric_limits<T>::max() / 2 + 1) * 2;
// What rounds to a float8 T: |x| <= kFloat8Limit. In the middle between the largest value and the
// next one up, ties go to the even one.
template <class T>
inline constexpr float kFloat8Limit =
    std::is_same_v<T, c10::Float8_e4m3fn> ? 464.0f : 61439.99609375f;

// Whether a value rounds to one in the range of T. NaN does not.
template <class T, class C>
TORCH_DNNL_HD inline bool is_in_range(C value) {
  if constexpr (std::is_integral_v<T>) {
    const C rounded = std::nearbyint(value);
    return rounded >= kInRangeFrom<T, C> && rounded < kInRangeBelow<T, C>;
  } else {
    return std::fabs(static_cast<float>(value)) <= kFloat8Limit<T>;
  }
}

// From the values w = src / t and u = w + z to the results and their bits of the mask.
template <class C, int n, class Problem, class Operand>
TORCH_DNNL_HD inline uint32_t quantize_and_back(
    const Problem& p,
    c10::ScalarType quantized,
    bool step_gradient,
    const C (&w)[n],
    const C (&u)[n],
    C (&value)[n],
    const Operand& operand) {
  uint32_t bits = 0;
  with_type(quantized, [&](auto tag) {
    using T = decltype(tag);
    for (int k = 0; k < n; k++) {
      value[k] = widened<C>(convert<T>(u[k]));
      bits |= static_cast<uint32_t>(is_in_range<T>(u[k])) << k;
    }
  });
  C other[n];
  if (p.operand[reorder_arrays::kDstZeroPoint].present) {
    operand(reorder_arrays::kDstZeroPoint, other);
    for (int k = 0; k < n; k++)
      value[k] -= other[k];
  }
  if (step_gradient) {
    for (int k = 0; k < n; k++)
      value[k] -= (bits >> k & 1) != 0 ? w[k] : C(0);
  } else if (p.operand[reorder_arrays::kDstScale].present) {
    operand(reorder_arrays::kDstScale, other);
    for (int k = 0; k < n; k++)
      value[k] = mul(other[k], value[k]);
  }
  for (int k = 0; k < n; k++)
    value[k] = canonical_nan(value[k]);
  return bits;
}

// f(std::type_identity<C>) for the type that is computed in.
template <class F>
void with_computed(const FakeReorderProblem& p, const F& f) {
  dispatch(TypeList<double, float>{}, p.reorder.compute_dtype, f);
}

// Calls run(k, i) for the elements of a byte of the mask: its bits k and their places i in memory.
template <class F>
TORCH_DNNL_HD inline void for_each_bit(const FakeReorderProblem& p, int64_t byte, const F& run) {
  const int64_t row = byte / p.row_bytes, first = byte % p.row_bytes * 8;
  for (int64_t k = 0; k < 8 && first + k < p.row_elements; k++)
    run(k, row * p.row_elements + first + k);
}

// C: float or double.
template <class C>
struct FakeReorderByte {
  FakeReorderProblem p;

  TORCH_DNNL_HD void operator()(int64_t byte) const {
    const ReorderElement<C, const ReorderProblem&> element{p.reorder};
    uint8_t bits = 0;
    for_each_bit(p, byte, [&](int64_t k, int64_t i) {
      const ReorderPosition at = element.position(i);
      const typename decltype(element)::Operands operands{p.reorder, at};
      C w[] = {load<C>(p.reorder.src, p.reorder.src_dtype, at.src)}, value[1];
      scale_values(p.reorder, w, operands);
      C u[] = {w[0]};
      shift_values(p.reorder, u, operands);
      bits |= quantize_and_back(p.reorder, p.dtype, p.step_gradient, w, u, value, operands) << k;
      store(p.reorder.dst, p.reorder.dst_dtype, at.dst, value[0]);
    });
    p.mask[byte] = bits;
  }
};

template <class C>
struct FakeReorderBackwardByte {
  FakeReorderProblem p;

  TORCH_DNNL_HD void operator()(int64_t byte) const {
    const ReorderElement<C, const ReorderProblem&> element{p.reorder};
    const uint8_t bits = p.saved_mask[byte];
    for_each_bit(p, byte, [&](int64_t k, int64_t i) {
      const ReorderPosition at = element.position(i);
      const C grad = load<C>(p.reorder.src, p.reorder.src_dtype, at.src);
      store(p.reorder.dst, p.reorder.dst_dtype, at.dst, (bits >> k & 1) != 0 ? grad : C(0));
    });
  }
};

} // namespace torch_dnnl
