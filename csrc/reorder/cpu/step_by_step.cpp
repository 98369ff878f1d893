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

// One step at a time, in pieces that stay in the first-level cache.
template <class C>
class StepByStep {
 public:
  explicit StepByStep(const RowArgs<C>& rows) : s_(rows) {}

  void run() {
    for (row_ = 0; row_ < s_.rows; row_++) {
      for (begin_ = 0; begin_ < s_.run; begin_ += kPiece) {
        size_ = std::min(kPiece, s_.run - begin_);
        load();
        if constexpr (std::is_floating_point_v<C>)
          compute();
        store();
      }
    }
  }

 private:
  static constexpr int64_t kPiece = 512;

  void load() {
    with_type(s_.src_dtype, [&](auto tag) {
      using T = decltype(tag);
      const T* from = reinterpret_cast<const T*>(s_.src) + row_ * s_.src_row_step;
      widen_row(from + begin_, 1, value_, size_);
    });
  }

  template <class F>
  void step(Array array, const F& f) {
    const auto operand = s_.operand[array].in_row(row_);
    if (!operand.present)
      return;
    if (operand.data == nullptr)
      for (int64_t i = 0; i < size_; i++)
        value_[i] = f(value_[i], operand.number);
    else
      for (int64_t i = 0; i < size_; i++)
        value_[i] = f(value_[i], operand.data[begin_ + i]);
  }

  void compute() {
    const C beta = s_.beta;
    step(kSrcZeroPoint, [](C x, C zero) { return x - zero; });
    step(kScale, [](C x, C scale) { return scale * x; });
    step(kAccumulate, [beta](C x, C sum) { return x + beta * sum; });
    step(kDstScale, [](C x, C scale) { return x / scale; });
    if (s_.round_before_zero_point)
      step(kDstZeroPoint, [](C x, C zero) { return round_even(x) + zero; });
    else
      step(kDstZeroPoint, [](C x, C zero) { return x + zero; });
  }

  void store() const {
    dispatch(ReorderTypes{}, s_.dst_dtype, [&]<class T>(std::type_identity<T>) {
      T* to = reinterpret_cast<T*>(s_.dst) + row_ * s_.dst_row_step + begin_;
      if constexpr (std::is_integral_v<T> || std::is_same_v<C, double>) {
        if constexpr (std::is_arithmetic_v<T>) {
          for (int64_t i = 0; i < size_; i++)
            if constexpr (std::is_floating_point_v<T>)
              to[i] = canonical_nan(static_cast<T>(value_[i]));
            else
              to[i] = convert<T>(value_[i]);
        } else {
          store_singles(to);
        }
      }
    });
  }

  template <class T>
  void store_singles(T* to) const {
    alignas(64) float singles[kPiece];
    for (int64_t i = 0; i < size_; i++) {
      // float8 is rounded from float32.
      singles[i] = is_float8_v<T> ? static_cast<float>(value_[i]) : narrow_to_odd(value_[i]);
    }
    RowArgs<float> row{};
    row.run = size_;
    row.rows = 1;
    row.src = reinterpret_cast<const char*>(singles);
    row.dst = reinterpret_cast<char*>(to);
    row.src_dtype = c10::kFloat;
    row.dst_dtype = s_.dst_dtype;
    quantize_rows(row);
  }

  const RowArgs<C>& s_;
  int64_t row_ = 0, begin_ = 0, size_ = 0;
  alignas(64) C value_[kPiece];
};

} // namespace

void quantize_rows(const RowArgs<double>& rows) {
  StepByStep<double>(rows).run();
}

void quantize_rows(const RowArgs<int32_t>& rows) {
  StepByStep<int32_t>(rows).run();
}

} // namespace torch_dnnl::reorder_cpu
