#include "reorder/cpu/quantize_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/cpu/quotients.h"
#include "core/cpu/stream.h"
#include "core/dispatch.h"
#include "reorder/cpu/convert_vectors.h"
#include "reorder/fake_reference.h"

namespace torch_dnnl::reorder_cpu {
namespace {

// What is computed in float32 comes from these.
using Integers = TypeList<int32_t, int8_t, uint8_t>;
using Floats32 = TypeList<float, c10::BFloat16, c10::Half, c10::Float8_e4m3fn, c10::Float8_e5m2>;
using OftenComputedWith = TypeList<float, c10::BFloat16, c10::Half, int8_t, uint8_t>;

// A whole number of blocks of any kind.
constexpr int64_t kShortRow = 4 * kWidth;
static_assert(kShortRow <= kShortestRun);

// Vectors are named by constants: of an array that a loop runs over the compiler keeps a copy in
// memory wherever it does not know which operands there are.
template <int kVectors>
struct Block {
  Floats vector[kVectors];

  template <class F>
  C10_ALWAYS_INLINE void update(const F& f) {
    [&]<int... k>(std::integer_sequence<int, k...>) __attribute__((always_inline)) {
      ((vector[k] = f(vector[k], k)), ...);
    }(std::make_integer_sequence<int, kVectors>());
  }
  template <Known kKnown = Known::kNothing, class T>
  C10_ALWAYS_INLINE void store(T* to, bool streamed) const {
    [&]<int... k>(std::integer_sequence<int, k...>) __attribute__((always_inline)) {
      const Floats copy[] = {vector[k]...};
      narrow<kKnown>(copy, to, streamed);
    }(std::make_integer_sequence<int, kVectors>());
  }
};

class FloatRow {
 public:
  static constexpr Known kResult = Known::kNothing;

  FloatRow(const RowArgs<float>& s, int64_t row)
      : beta_(s.beta), round_before_zero_point_(s.round_before_zero_point) {
    for (int array = 0; array < kOperands; array++) {
      const auto operand = s.operand[array].in_row(row);
      if (!operand.present)
        continue;
      present_ |= 1 << array;
      data_[array] = operand.data;
      step_[array] = 1;
      if (operand.data == nullptr) {
        std::fill_n(numbers_[array], kShortRow, operand.number);
        data_[array] = numbers_[array];
        step_[array] = 0;
      }
    }
  }

  template <class B>
  C10_ALWAYS_INLINE void compute(int64_t begin, B& x) const {
    const Floats beta = all(beta_);
    step<kSrcZeroPoint>(begin, x, [](Floats v, Floats zero) { return v - zero; });
    step<kScale>(begin, x, [](Floats v, Floats scale) { return scale * v; });
    step<kAccumulate>(begin, x, [&](Floats v, Floats sum) { return v + beta * sum; });
    step<kDstScale>(begin, x, [](Floats v, Floats scale) { return v / scale; });
    if (round_before_zero_point_)
      x.update([&](Floats v, int) { return round_even(v); });
    step<kDstZeroPoint>(begin, x, [](Floats v, Floats zero) { return v + zero; });
  }

 private:
  template <Array kArray, class B, class F>
  C10_ALWAYS_INLINE void step(int64_t begin, B& x, const F& f) const {
    if ((present_ >> kArray & 1) != 0) {
      const float* data = data_[kArray] + begin * step_[kArray];
      x.update([&](Floats v, int k) { return f(v, widen(data + k * kWidth)); });
    }
  }

  uint32_t present_ = 0; // a bit for each operand, so that all are in one register
  const float* data_[kOperands];
  int64_t step_[kOperands]; // 0: the same block of a number again and again
  alignas(64) float numbers_[kOperands][kShortRow];
  float beta_;
  bool round_before_zero_point_;
};

// Dequantization and quantization by numbers, in registers. What is not there is a
// number that changes nothing, zeros' signs included.
struct Dequantize {
  static constexpr Known kResult = Known::kNotNan;
  Floats zero_point, scale;

  template <class B>
  C10_ALWAYS_INLINE void compute(int64_t /*begin*/, B& x) const {
    x.update([&](Floats v, int) { return scale * (v - zero_point); });
  }
  static bool is_exact(float scale, float zero_point) {
    return std::isfinite(scale) && std::fabs(zero_point) < 0x1p100f; // no difference is infinite
  }
};

#if defined(__FMA__)
// Quotients that are limited to what saturates in any case, so that nothing overflows.
class DivideBy {
 public:
  static constexpr bool kLimits = true;

  DivideBy(float scale, float largest)
      : quotients_(scale), most_(all(largest * std::fabs(scale))) {}

  C10_ALWAYS_INLINE Floats operator()(Floats v) const {
    return quotients_(at_least(at_most(v, most_), -most_));
  }
  static bool is_exact(float scale) {
    return Quotients::can_divide_by(scale);
  }

 private:
  Quotients quotients_;
  Floats most_;
};
#else
class DivideBy {
 public:
  static constexpr bool kLimits = false;

  DivideBy(float scale, float /*largest*/) : scale_(all(scale)) {}

  C10_ALWAYS_INLINE Floats operator()(Floats v) const {
    return v / scale_;
  }
  static bool is_exact(float /*scale*/) {
    return true;
  }

 private:
  Floats scale_;
};
#endif

template <class Dst>
class Quantize {
  static constexpr bool kToIntegers = DivideBy::kLimits && sizeof(Dst) == 1;

 public:
  static constexpr Known kResult = kToIntegers ? Known::kIntegers : Known::kNothing;

  Quantize(float scale, float zero_point, bool round_before_zero_point)
      : divide_(scale, kLargest),
        zero_point_(all(zero_point)),
        round_before_zero_point_(round_before_zero_point) {
    // Codes that are NaN's, the least int32, stay below all bytes.
    const bool is_integer = zero_point == std::nearbyint(zero_point) &&
        std::fabs(zero_point) < 0x1p22f && (std::is_signed_v<Dst> || zero_point >= 0);
    adds_integers_ = kToIntegers && round_before_zero_point && is_integer;
    integer_zero_point_ = all(adds_integers_ ? static_cast<int32_t>(zero_point) : 0);
  }

  template <class B>
  C10_ALWAYS_INLINE void compute(int64_t /*begin*/, B& x) const {
    x.update([&](Floats v, int) { return divide_(v); });
    if (adds_integers_) {
      // The conversion rounds, so that no other instruction has to. What becomes of NaN may wrap.
      using Sums = Register<uint32_t>;
      x.update([&](Floats v, int) {
        return code(v, Ints(Sums(to_ints(v)) + Sums(integer_zero_point_)));
      });
      return;
    }
    if (round_before_zero_point_)
      x.update([&](Floats v, int) { return round_even(v); });
    x.update([&](Floats v, int) {
      v += zero_point_;
      if constexpr (kToIntegers)
        return code(v, to_ints(v));
      return v;
    });
  }
  static bool is_exact(float scale, float zero_point) {
    return DivideBy::is_exact(scale) && std::fabs(zero_point) <= kLargest / 2;
  }

 private:
  // Larger quotients saturate, whatever the zero point is; of bytes, within the range of int32.
  static constexpr float kLargest = sizeof(Dst) == 1 ? 0x1p30f : 0x1p40f;

  // NaN's is 0; of unsigned bytes, to which it saturates.
  static C10_ALWAYS_INLINE Floats code(Floats v, Ints integer) {
    return Floats(std::is_signed_v<Dst> ? (v == v ? integer : Ints{}) : integer);
  }

  DivideBy divide_;
  Floats zero_point_;
  Ints integer_zero_point_;
  bool round_before_zero_point_, adds_integers_;
};

template <Known kKnown>
struct Nothing {
  static constexpr Known kResult = kKnown;

  template <class B>
  C10_ALWAYS_INLINE void compute(int64_t /*begin*/, B& /*x*/) const {}
};

// Where a row of elements comes from.
template <class Src>
struct Typed {
  const char* from;
  c10::ScalarType dtype;

  template <class B>
  C10_ALWAYS_INLINE void load(int64_t begin, B& x) const {
    const Src* row = reinterpret_cast<const Src*>(from);
    x.update([&](Floats, int k) { return widen(row + begin + k * kWidth); });
  }
};

// The same of a type that is seldom computed with. It is looked up for each block, which costs a
// few cycles, but less code than each type with each type of a destination.
struct Untyped {
  const char* from;
  c10::ScalarType dtype;

  template <class B>
  C10_ALWAYS_INLINE void load(int64_t begin, B& x) const {
    switch (dtype) { // a call of dispatch() would not be inlined
      case c10::kFloat8_e4m3fn:
        return Typed<c10::Float8_e4m3fn>{from, dtype}.load(begin, x);
      case c10::kFloat8_e5m2:
        return Typed<c10::Float8_e5m2>{from, dtype}.load(begin, x);
      default:
        return Typed<int32_t>{from, dtype}.load(begin, x);
    }
  }
};

// A row of at least a block; the last block overlaps the one before it.
template <int kVectors, class Arithmetic, class Src, class Dst>
C10_ALWAYS_INLINE void
run_row(const Arithmetic& arithmetic, const Src& src, Dst* to, const RowArgs<float>& rows) {
  constexpr int64_t kBlock = kVectors * kWidth;
  const int64_t run = rows.run;
  // The last block may begin anywhere.
  const bool is_streamed = rows.is_streamed && is_line(to) && run % kBlock == 0;
  const auto run_block = [&](int64_t i) __attribute__((always_inline)) {
    Block<kVectors> x;
    src.load(i, x);
    arithmetic.compute(i, x);
    x.template store<Arithmetic::kResult>(to + i, is_streamed);
  };
  for (int64_t i = 0; i < run; i += kBlock)
    run_block(std::min(i, run - kBlock));
}

// Every row, by the arithmetic that arithmetic_of(row) returns.
template <int kVectors, class Dst, class Source, class F>
C10_ALWAYS_INLINE void run_each_row(const RowArgs<float>& rows, const F& arithmetic_of) {
  const int64_t src_step = rows.src_row_step * c10::elementSize(rows.src_dtype);
  for (int64_t row = 0; row < rows.rows; row++) {
    const char* from = rows.src + row * src_step;
    // Where the next row is, the processor cannot guess.
    for (int64_t line = 0; line < 4; line++)
      __builtin_prefetch(from + src_step + line * kCacheLine);
    Dst* to = reinterpret_cast<Dst*>(rows.dst) + row * rows.dst_row_step;
    run_row<kVectors>(arithmetic_of(row), Source{from, rows.src_dtype}, to, rows);
  }
}

// The same of a source of one of these types.
template <int kVectors, class Dst, class Types, class F>
void run_typed_rows(Types types, const RowArgs<float>& rows, const F& arithmetic_of) {
  dispatch(types, rows.src_dtype, [&](auto tag) {
    run_each_row<kVectors, Dst, Typed<typename decltype(tag)::type>>(rows, arithmetic_of);
  });
}

// As many vectors as share the decisions about operands.
constexpr int kVectors = 4;

template <class Dst>
void run_rows(const RowArgs<float>& s) {
  const auto is_present = [&](Array array) { return s.operand[array].present; };
  const auto is_number = [&](Array array) {
    return s.operand[array].data == nullptr || s.operand[array].step == 0;
  };
  const auto number = [&](Array array, int64_t row, float neutral) {
    return is_present(array) ? s.operand[array].in_row(row).number : neutral;
  };
  const bool has_src_side = is_present(kSrcZeroPoint) || is_present(kScale);
  const bool has_dst_side = is_present(kDstScale) || is_present(kDstZeroPoint);
  const bool has_sum = is_present(kAccumulate);
  const bool from_integers = contains(Integers{}, s.src_dtype);
  if (!has_src_side && !has_dst_side && !has_sum) {
    // Only the conversion. No more vectors than fill a register in the end: loads and stores that
    // alternate are faster than many loads and then many stores.
    constexpr int kFew = sizeof(Dst) == 1 ? 4 : 2;
    if constexpr (!std::is_integral_v<Dst>) { // integers are not converted to others in float32
      if (from_integers)
        return run_typed_rows<kFew, Dst>(
            Integers{}, s, [](int64_t) { return Nothing<Known::kNotNan>{}; });
    }
    return run_typed_rows<kFew, Dst>(
        Floats32{}, s, [](int64_t) { return Nothing<Known::kNothing>{}; });
  }
  const auto is_exact = [&](Array scale, Array zero_point, auto of_numbers) {
    if (!is_number(scale) || !is_number(zero_point))
      return false;
    bool result = true;
    for (int64_t row = 0; row < s.rows; row++)
      result &= of_numbers(number(scale, row, 1.0f), number(zero_point, row, 0.0f));
    return result;
  };
  if constexpr (std::is_integral_v<Dst>) {
    if (!from_integers && !has_src_side && !has_sum &&
        is_exact(kDstScale, kDstZeroPoint, Quantize<Dst>::is_exact)) {
      return run_typed_rows<kVectors, Dst>(Floats32{}, s, [&](int64_t row) {
        const float scale = number(kDstScale, row, 1.0f);
        return Quantize<Dst>(scale, number(kDstZeroPoint, row, -0.0f), s.round_before_zero_point);
      });
    }
  } else if (
      from_integers && !has_dst_side && !has_sum &&
      is_exact(kScale, kSrcZeroPoint, Dequantize::is_exact)) {
    return run_typed_rows<kVectors, Dst>(Integers{}, s, [&](int64_t row) {
      return Dequantize{all(number(kSrcZeroPoint, row, 0.0f)), all(number(kScale, row, 1.0f))};
    });
  }
  const auto any = [&](int64_t row) { return FloatRow(s, row); };
  if (contains(OftenComputedWith{}, s.src_dtype))
    return run_typed_rows<kVectors, Dst>(OftenComputedWith{}, s, any);
  run_each_row<kVectors, Dst, Untyped>(s, any);
}

void run_rows(const RowArgs<float>& s) {
  dispatch(
      ReorderTypes{}, s.dst_dtype, [&](auto tag) { run_rows<typename decltype(tag)::type>(s); });
}

// A row that may be shorter than a block, in copies that are long enough.
void run_short_row(RowArgs<float> s, int64_t row) {
  alignas(64) char src[kShortRow * sizeof(float)] = {}, dst[kShortRow * sizeof(double)];
  alignas(64) float operands[kOperands][kShortRow];
  const int64_t src_size = c10::elementSize(s.src_dtype);
  const int64_t dst_size = c10::elementSize(s.dst_dtype);
  std::memcpy(src, s.src + row * s.src_row_step * src_size, s.run * src_size);
  for (int array = 0; array < kOperands; array++) {
    auto& operand = s.operand[array];
    if (operand.data != nullptr) {
      const float* from = operand.data + row * operand.row_step;
      std::fill_n(operands[array], kShortRow, 1.0f);
      std::memcpy(operands[array], from, (operand.step == 0 ? 1 : s.run) * sizeof(float));
      operand.data = operands[array];
    }
  }
  char* result = s.dst + row * s.dst_row_step * dst_size;
  const int64_t bytes = s.run * dst_size;
  s.src = src;
  s.dst = dst;
  s.run = kShortRow;
  s.rows = 1;
  s.is_streamed = false;
  run_rows(s);
  std::memcpy(result, dst, bytes);
}

template <class T>
Ints is_in_range(Floats x) {
  if constexpr (std::is_integral_v<T>) {
    const Floats rounded = round_even(x);
    return (rounded >= kInRangeFrom<T, float>)&(rounded < kInRangeBelow<T, float>);
  } else {
    return (x <= kFloat8Limit<T>)&(x >= -kFloat8Limit<T>);
  }
}

// What is fake-quantized in float32 becomes one of these types.
template <class B>
C10_ALWAYS_INLINE void store_result(const B& x, char* to, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBFloat16:
      return x.store(reinterpret_cast<c10::BFloat16*>(to), /*streamed=*/false);
    case c10::kHalf:
      return x.store(reinterpret_cast<c10::Half*>(to), /*streamed=*/false);
    default:
      return x.store(reinterpret_cast<float*>(to), /*streamed=*/false);
  }
}

template <class T>
void fake_quantize_row(const RowArgs<float>& s, uint8_t* mask) {
  constexpr int64_t kBlock = kVectors * kWidth;
  static_assert(kReadable % kBlock == 0 && kBlock % 8 == 0);
  RowArgs<float> back{};
  back.operand[kSrcZeroPoint] = s.operand[kDstZeroPoint];
  back.operand[kScale] = s.operand[kDstScale];
  const FloatRow quantize(s, 0), dequantize(back, 0);
  const auto run_block = [&](const float* from, int64_t i, char* to) {
    Block<kVectors> x;
    x.update([&](Floats, int k) { return widen(from + k * kWidth); });
    quantize.compute(i, x);
    uint64_t bits = 0;
    alignas(64) T codes[kBlock];
    x.store(codes, /*streamed=*/false);
    x.update([&](Floats v, int k) {
      bits |= static_cast<uint64_t>(bits_of(is_in_range<T>(v))) << (k * kWidth);
      return widen(codes + k * kWidth);
    });
    dequantize.compute(i, x);
    store_result(x, to, s.dst_dtype);
    return bits;
  };
  const float* src = reinterpret_cast<const float*>(s.src);
  const int64_t size = c10::elementSize(s.dst_dtype);
  int64_t i = 0;
  for (; i + kBlock <= s.run; i += kBlock) {
    const uint64_t bits = run_block(src + i, i, s.dst + i * size);
    std::memcpy(mask + i / 8, &bits, kBlock / 8);
  }
  if (const int64_t rest = s.run - i; rest > 0) {
    float from[kBlock] = {};
    alignas(64) char to[kBlock * sizeof(float)];
    std::copy_n(src + i, rest, from);
    const uint64_t bits = run_block(from, i, to) & ((uint64_t(1) << rest) - 1);
    std::memcpy(s.dst + i * size, to, rest * size);
    std::memcpy(mask + i / 8, &bits, (rest + 7) / 8);
  }
}

} // namespace

void fake_quantize_row(const RowArgs<float>& row, c10::ScalarType quantized, uint8_t* mask) {
  dispatch(FakeReorderTypes{}, quantized, [&](auto tag) {
    fake_quantize_row<typename decltype(tag)::type>(row, mask);
  });
}

void quantize_rows(const RowArgs<float>& rows) {
  if (rows.run >= kShortRow)
    return run_rows(rows);
  for (int64_t row = 0; row < rows.rows; row++)
    run_short_row(rows, row);
}

} // namespace torch_dnnl::reorder_cpu
