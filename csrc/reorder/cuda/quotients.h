// Quotients of many floats by one: to the bit what dividing gives, in half of its instructions, and
// without those of which a multiprocessor has few.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/cuda/launch.h"

namespace torch_dnnl::reorder_cuda {

class Quotients {
 public:
  __device__ __forceinline__ explicit Quotients(float divisor)
      : divisor_(divisor), reciprocal_(1 / divisor) {}

  // The first step of Newton's method makes a neighbour of the quotient, the second one the rounded
  // quotient itself (Markstein, IA-64 and Elementary Functions, 2000, chapter 8), if nothing leaves
  // the range of normal numbers.
  template <int n>
  __device__ __forceinline__ void divide(float (&value)[n]) const {
    uint32_t most = size_of(divisor_), least = most;
    for (int k = 0; k < n; k++) {
      const uint32_t size = size_of(value[k]);
      most = max(most, size);
      least = min(least, size - 1); // 0 is not small
    }
    const bool is_quick = most <= size_of(kMost) && least >= size_of(kLeast);
    if (is_quick)
      for (int k = 0; k < n; k++)
        value[k] = quick(value[k]);
    else
      for (int k = 0; k < n; k++)
        value[k] = value[k] / divisor_;
  }

 private:
  static constexpr float kLeast = 0x1p-60f, kMost = 0x1p60f;

  __device__ __forceinline__ float quick(float value) const {
    const float first = value * reciprocal_;
    float quotient = first;
    for (int step = 0; step < 2; step++)
      quotient = std::fma(std::fma(-divisor_, quotient, value), reciprocal_, quotient);
    return std::copysign(quotient, first); // -0 too
  }

  // In the order of absolute values, with NaN as the largest one.
  static __device__ __forceinline__ uint32_t size_of(float value) {
    return std::bit_cast<uint32_t>(value) << 1;
  }

  float divisor_, reciprocal_;
};

} // namespace torch_dnnl::reorder_cuda
