// Quotients of many floats by one, at a fraction of what divisions take.
#pragma once

#include <cmath>

#include "core/cpu/vectors.h"

namespace torch_dnnl {

#if defined(__FMA__)
// One step of Newton's method from the product with the reciprocal gives the rounded quotient
// (Markstein, IA-64 and Elementary Functions, 2000, chapter 8), if nothing leaves the range of
// normal numbers; so dividends are to be below 2^100. Where it does at the lower end, the quotient
// is below 2^-60, and may differ in its last bits. A zero may lose its sign.
// (tests/reorder/test_reorder_quotients.py divides all mantissas.)
class Quotients {
 public:
  explicit Quotients(float divisor)
      : divisor_(broadcast(divisor)), reciprocal_(broadcast(1 / divisor)) {}

  Vector<float> operator()(const Vector<float>& dividend) const {
    const Vector<float> quotient = dividend * reciprocal_;
    const Vector<float> rest = multiply_add(-quotient, divisor_, dividend);
    return multiply_add(rest, reciprocal_, quotient);
  }
  static bool can_divide_by(float divisor) {
    return std::fabs(divisor) > 0x1p-60f && std::fabs(divisor) < 0x1p60f;
  }

 private:
  Vector<float> divisor_, reciprocal_;
};
#endif

} // namespace torch_dnnl
