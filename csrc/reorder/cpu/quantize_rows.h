// The arithmetic of a reorder over rows of elements that lie one after the other.
//
// In float32, a few vectors at a time go through all of the arithmetic in registers. Which operands
// there are is decided once per such block, which the processor predicts. float64, and integers
// that are only converted, go through one operation at a time in a buffer.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

#include "reorder/problem.h"

namespace torch_dnnl::reorder_cpu {

using namespace reorder_arrays;

// C: what is computed in; float, double, or int32_t from integer to integer.
template <class C>
struct RowArgs {
  struct Operand {
    bool present;
    const C* data; // null: `number`
    int64_t step;  // 1, or 0: one value for a row
    int64_t row_step;
    C number;

    Operand in_row(int64_t row) const {
      const C* at = data == nullptr ? nullptr : data + row * row_step;
      if (at != nullptr && step == 0)
        return {true, nullptr, 0, 0, *at};
      return {present, at, step, 0, number};
    }
  };
  int64_t run, rows = 1; // elements of a row, rows
  const char* src;
  char* dst;
  int64_t src_row_step, dst_row_step; // in elements
  c10::ScalarType src_dtype, dst_dtype;
  Operand operand[kOperands];
  C beta;
  bool round_before_zero_point;
  bool is_streamed; // as far as rows are whole lines
};

// A row in another type, which holds all its values.
template <class T, class C>
inline void widen_row(const T* __restrict from, int64_t step, C* __restrict to, int64_t n) {
  if (step == 1)
    for (int64_t i = 0; i < n; i++)
      to[i] = static_cast<C>(from[i]);
  else if (step == 0)
    std::fill_n(to, n, static_cast<C>(*from));
  else
    for (int64_t i = 0; i < n; i++)
      to[i] = static_cast<C>(from[i * step]);
}

// Rows that are shorter are slow; they should be brought together.
inline constexpr int64_t kShortestRun = 64;

void quantize_rows(const RowArgs<float>& rows);
void quantize_rows(const RowArgs<double>& rows);
void quantize_rows(const RowArgs<int32_t>& rows);

// One row of float32 to the type `quantized` and back, dst_scale and dst_zero_point undone, with a
// bit of `mask` for each element that does not saturate. Operands with a step are readable up to
// the next multiple of kReadable elements.
inline constexpr int64_t kReadable = 64;
void fake_quantize_row(const RowArgs<float>& row, c10::ScalarType quantized, uint8_t* mask);

} // namespace torch_dnnl::reorder_cpu
