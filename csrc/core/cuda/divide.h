// Division by a number that is known before the kernel starts: a multiplication and a shift.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace torch_dnnl::cuda {

// Of numerators and divisors below 2^31. With 2^s >= d, n / d is n * 2^(32+s) / d rounded up
// to an integer, of which 2^32 is left out of the multiplier and n added instead.
class Divisor {
 public:
  Divisor() = default;

  explicit Divisor(int64_t divisor) : divisor_(static_cast<uint32_t>(divisor)) {
    while ((uint64_t(1) << shift_) < divisor_)
      shift_++;
    const uint64_t excess = (uint64_t(1) << shift_) - divisor_;
    multiplier_ = static_cast<uint32_t>((excess << 32) / divisor_ + 1);
  }

  TORCH_DNNL_HD uint32_t divide(uint32_t n) const {
    const auto high = static_cast<uint32_t>(static_cast<uint64_t>(n) * multiplier_ >> 32);
    return (high + n) >> shift_;
  }

  // Divides n and returns the remainder.
  TORCH_DNNL_HD uint32_t split(uint32_t& n) const {
    const uint32_t quotient = divide(n), rest = n - quotient * divisor_;
    n = quotient;
    return rest;
  }

 private:
  uint32_t divisor_ = 1, multiplier_ = 1, shift_ = 0;
};

} // namespace torch_dnnl::cuda
