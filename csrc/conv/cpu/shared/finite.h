// Whether values are finite, as products with zeros that no tap meets have to be 0.
#pragma once

#include <cstdint>

#include "core/cpu/vectors.h"

namespace torch_dnnl {

template <class C>
bool all_finite(const C* values, int64_t n) {
  constexpr int64_t lanes = kLanes<C>;
  Vector<C> zeros{};
  C sum = 0; // of zeros, or of what is not a number
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    zeros += load_vector(values + i) * C(0);
  for (; i < n; i++)
    sum += values[i] * C(0);
  for (int64_t lane = 0; lane < lanes; lane++)
    sum += zeros[lane];
  return sum == 0;
}

} // namespace torch_dnnl
