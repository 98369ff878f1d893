// Rows in float64, and of integers that are only converted: one operation at a time in a buffer.
#include <algorithm>
#include <cmath>

#include "core/dispatch.h"
#include "core/numeric.h"
#include "reorder/cpu/quantize_rows.h"
#include "reorder/reference.h"

namespace torch_dnnl::reorder_cpu {
namespace {

// To the nearest integer, ties to even: adding 2^52 leaves no room for a fraction.
double round_even(double x) {
  const double magic = std::copysign(0x1p52, x);
  return std::fabs(x) < 0x1p52 ? (x + magic) - magic : x;
}

constexpr int64_t kPiece = 512; // elements, which stay in the first-level cache

template <class C>
void compute(const RowArgs<C>& s, int64_t row, int64_t begin, int64_t size, C* value) {
  const auto step = [&](Array array, const auto& f) {
    const auto operand = s.operand[array].in_row(row);
    if (!operand.present)
      return;
    if (operand.data == nullptr)
      for (int64_t i = 0; i < size; i++)
        value[i] = f(value[i], operand.number);
    else
      for (int64_t i = 0; i < size; i++)
        value[i] = f(value[i], operand.data[begin + i]);
  };
  step(kSrcZeroPoint, [](C x, C zero) { return x - zero; });
  step(kScale, [](C x, C scale) { return scale * x; });
  step(kAccumulate, [beta = s.beta](C x, C sum) { return x + beta * sum; });
  step(kDstScale, [](C x, C scale) { return x / scale; });
  if (s.round_before_zero_point)
    step(kDstZeroPoint, [](C x, C zero) { return round_even(x) + zero; });
  else
    step(kDstZeroPoint, [](C x, C zero) { return x + zero; });
}

// T: a type narrower than float32, which rows of float32 are rounded to.
template <class T>
void store_narrow(const double* value, int64_t size, T* to) {
  alignas(64) float singles[kPiece];
  for (int64_t i = 0; i < size; i++) {
    // float8 is rounded from float32.
    singles[i] = is_float8_v<T> ? static_cast<float>(value[i]) : narrow_to_odd(value[i]);
  }
  RowArgs<float> row{};
  row.run = size;
  row.src = reinterpret_cast<const char*>(singles);
  row.dst = reinterpret_cast<char*>(to);
  row.src_dtype = c10::kFloat;
  row.dst_dtype = c10::CppTypeToScalarType<T>::value;
  quantize_rows(row);
}

template <class C, class T>
void store_piece(const C* value, int64_t size, T* to) {
  if constexpr (std::is_integral_v<T>)
    for (int64_t i = 0; i < size; i++)
      to[i] = convert<T>(value[i]);
  else if constexpr (std::is_integral_v<C>)
    return; // integers only become integers
  else if constexpr (std::is_floating_point_v<T>)
    for (int64_t i = 0; i < size; i++)
      to[i] = canonical_nan(static_cast<T>(value[i]));
  else
    store_narrow(value, size, to);
}

template <class C>
void run_rows(const RowArgs<C>& s) {
  alignas(64) C value[kPiece];
  for (int64_t row = 0; row < s.rows; row++) {
    for (int64_t begin = 0; begin < s.run; begin += kPiece) {
      const int64_t size = std::min(kPiece, s.run - begin);
      with_type(s.src_dtype, [&](auto tag) {
        const auto* from = reinterpret_cast<const decltype(tag)*>(s.src) + row * s.src_row_step;
        widen_row(from + begin, 1, value, size);
      });
      if constexpr (std::is_floating_point_v<C>)
        compute(s, row, begin, size, value);
      dispatch(ReorderTypes{}, s.dst_dtype, [&]<class T>(std::type_identity<T>) {
        store_piece(value, size, reinterpret_cast<T*>(s.dst) + row * s.dst_row_step + begin);
      });
    }
  }
}

} // namespace

void quantize_rows(const RowArgs<double>& rows) {
  run_rows(rows);
}

void quantize_rows(const RowArgs<int32_t>& rows) {
  run_rows(rows);
}

} // namespace torch_dnnl::reorder_cpu
