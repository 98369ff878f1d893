// Integer arithmetic of sizes and positions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace torch_dnnl {

// a / b, rounded up; b is positive.
TORCH_DNNL_HD constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return b == 1 ? a : (a + b - 1) / b;
}

TORCH_DNNL_HD constexpr int64_t round_up(int64_t n, int64_t step) {
  return ceil_div(n, step) * step;
}

// Of three axes: D, H, W.
template <class Int>
TORCH_DNNL_HD inline int64_t product(const Int* size) {
  return static_cast<int64_t>(size[0]) * size[1] * size[2];
}

// Half-open: [begin, end).
struct Range {
  int64_t begin, end;

  TORCH_DNNL_HD int64_t count() const {
    return end - begin;
  }
  bool operator==(const Range&) const = default;
};

// The part `i` of what is cut into parts of this size: [i * size, (i + 1) * size), but not beyond
// the end.
inline Range nth_range(int64_t i, int64_t size, int64_t end) {
  return {i * size, std::min((i + 1) * size, end)};
}

// The part `i` of n that are cut into about equal parts.
inline Range nth_part(int64_t i, int64_t parts, int64_t n) {
  return {n * i / parts, n * (i + 1) / parts};
}

// The k in [0, count) with 0 <= first + k * step < limit.
TORCH_DNNL_HD inline Range within(int64_t first, int64_t step, int64_t limit, int64_t count) {
  const int64_t begin = first >= 0 ? 0 : ceil_div(-first, step);
  const int64_t end = first >= limit ? 0 : ceil_div(limit - first, step);
  return {begin, end < count ? end : count};
}

// The digits of a number, such as the index of a task; the first digit runs fastest.
struct Digits {
  int64_t rest;

  TORCH_DNNL_HD int64_t next(int64_t count) {
    const int64_t digit = rest % count;
    rest /= count;
    return digit;
  }
};

} // namespace torch_dnnl
