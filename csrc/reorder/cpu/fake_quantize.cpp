// Fake quantization on the CPU, of every problem whose digits, scales and zero points have a common
// refinement. Pieces of the result, in the order of memory, go from a buffer to the quantized type
// and back through the arithmetic of a reorder. The gradient is masked in the same pieces.
#include "reorder/cpu/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "core/math.h"
#include "reorder/cpu/quantize_rows.h"
#include "reorder/decompose.h"

namespace torch_dnnl {
namespace reorder_cpu {
namespace {

using namespace boxes;

constexpr int64_t kPiece = 1024; // elements; whole bytes of the mask
static_assert(kPiece % kReadable == 0);

// Whether an array lies in memory as the positions of a box follow each other.
bool is_dense(const Box& box, Array array) {
  int64_t stride = 1;
  for (auto axis = box.axes.rbegin(); axis != box.axes.rend(); axis++) {
    if (axis->stride[array] != stride)
      return false;
    stride *= axis->extent;
  }
  return true;
}

// The elements of an array that belong to the positions [begin, begin + count) of a box.
template <class T, class C>
void gather(const Box& box, Array array, const T* from, int64_t begin, int64_t count, C* to) {
  c10::SmallVector<int64_t, 8> index(box.axes.size());
  from += box.offset[array];
  for (size_t a = box.axes.size(); a-- > 0;) {
    index[a] = begin % box.axes[a].extent;
    begin /= box.axes[a].extent;
    from += index[a] * box.axes[a].stride[array];
  }
  const size_t inner = box.axes.size() - 1;
  const int64_t step = box.axes[inner].stride[array];
  for (C* const end = to + count; to < end;) {
    const int64_t run = std::min<int64_t>(box.axes[inner].extent - index[inner], end - to);
    widen_row(from, step, to, run);
    to += run;
    from += run * step;
    index[inner] += run;
    for (size_t a = inner; a > 0 && index[a] == box.axes[a].extent; a--) {
      from += box.axes[a - 1].stride[array] - index[a] * box.axes[a].stride[array];
      index[a] = 0;
      index[a - 1]++;
    }
  }
}

// Calls f(begin, count, byte) for pieces of the result: their elements and bytes of the mask.
template <class F>
void for_each_piece(const FakeReorderProblem& p, const F& f) {
  const int64_t pieces = ceil_div(p.row_elements, kPiece); // of a row of the mask
  at::parallel_for(0, p.rows * pieces, 32, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const int64_t row = i / pieces, begin = i % pieces * kPiece;
      f(row * p.row_elements + begin,
        std::min(kPiece, p.row_elements - begin),
        row * p.row_bytes + begin / 8);
    }
  });
}

// Bit k of byte i is whether element 8 i + k is true.
void pack_bits(const bool* from, uint8_t* to, int64_t count) {
  for (int64_t i = 0; i < count; i += 8) {
    uint64_t flags = 0;
    std::memcpy(&flags, from + i, std::min<int64_t>(8, count - i));
    to[i / 8] = flags * 0x0102040810204080 >> 56; // moves the flags together in the highest byte
  }
}

template <class C>
class FakeRows {
 public:
  explicit FakeRows(const FakeReorderProblem& p)
      : p_(p),
        box_(decompose(p.reorder).front()),
        is_in_place_(p.reorder.src_dtype == kType && is_dense(box_, kSrc)) {}

  void run() const {
    for_each_piece(p_, [&](int64_t begin, int64_t count, int64_t byte) {
      run_piece(begin, count, p_.mask + byte);
    });
  }

 private:
  using Operand = typename RowArgs<C>::Operand;
  static constexpr c10::ScalarType kType = c10::CppTypeToScalarType<C>::value;

  void run_piece(int64_t begin, int64_t count, uint8_t* mask) const {
    alignas(64) C buffer[kPiece], scales[kPiece], zero_points[kPiece];
    const ReorderProblem& r = p_.reorder;
    const C* src = buffer;
    if (is_in_place_)
      src = static_cast<const C*>(r.src) + box_.offset[kSrc] + begin;
    else
      widen(r.src, r.src_dtype, kSrc, begin, count, buffer);
    RowArgs<C> row{};
    row.run = count;
    row.src = reinterpret_cast<const char*>(src);
    row.src_dtype = kType;
    row.dst = static_cast<char*>(r.dst) + begin * c10::elementSize(r.dst_dtype);
    row.dst_dtype = r.dst_dtype;
    row.operand[kDstScale] = operand(kDstScale, begin, count, scales);
    row.operand[kDstZeroPoint] = operand(kDstZeroPoint, begin, count, zero_points);
    row.round_before_zero_point = r.round_before_zero_point && row.operand[kDstZeroPoint].present;
    if (std::is_same_v<C, double> || p_.step_gradient)
      run_operation_by_operation(row, mask);
    else if constexpr (std::is_same_v<C, float>)
      fake_quantize_row(row, p_.dtype, mask);
    if ((begin + count) % p_.row_elements == 0)
      mask[(count + 7) / 8] = 0;
  }

  void run_operation_by_operation(const RowArgs<C>& all, uint8_t* mask) const {
    alignas(64) C w[kPiece], u[kPiece];
    alignas(64) char q[kPiece * sizeof(int32_t)];
    alignas(64) bool inside[kPiece];
    RowArgs<C> row{};
    row.run = all.run;
    const auto convert = [&](const void* from, auto from_dtype, void* to, auto to_dtype) {
      row.src = static_cast<const char*>(from);
      row.src_dtype = from_dtype;
      row.dst = static_cast<char*>(to);
      row.dst_dtype = to_dtype;
      quantize_rows(row);
      std::fill_n(row.operand, kOperands, Operand{});
    };
    row.operand[kDstScale] = all.operand[kDstScale];
    convert(all.src, kType, w, kType);
    row.round_before_zero_point = all.round_before_zero_point;
    row.operand[kDstZeroPoint] = all.operand[kDstZeroPoint];
    convert(w, kType, u, kType);
    row.round_before_zero_point = false;
    with_type(p_.dtype, [&](auto tag) {
      for (int64_t i = 0; i < all.run; i++)
        inside[i] = is_in_range<decltype(tag)>(u[i]);
    });
    pack_bits(inside, mask, all.run);
    convert(u, kType, q, p_.dtype);
    row.operand[kSrcZeroPoint] = all.operand[kDstZeroPoint];
    if (!p_.step_gradient) {
      row.operand[kScale] = all.operand[kDstScale];
      convert(q, p_.dtype, all.dst, all.dst_dtype);
      return;
    }
    convert(q, p_.dtype, u, kType);
    C* result = reinterpret_cast<C*>(all.dst);
    for (int64_t i = 0; i < all.run; i++)
      result[i] = u[i] - (inside[i] ? w[i] : C(0));
  }

  // In the type that is computed in.
  void
  widen(const void* data, c10::ScalarType dtype, Array array, int64_t begin, int64_t count, C* to)
      const {
    with_type(dtype, [&](auto tag) {
      gather(box_, array, static_cast<const decltype(tag)*>(data), begin, count, to);
    });
  }

  Operand operand(Array array, int64_t begin, int64_t count, C* buffer) const {
    const ReorderProblem::Operand& operand = p_.reorder.operand[array];
    if (operand.data == nullptr)
      return {operand.present, nullptr, 0, 0, static_cast<C>(operand.number)};
    const Axis& inner = box_.axes.back();
    if (inner.stride[array] == 0 && begin % inner.extent + count <= inner.extent) {
      widen(operand.data, operand.dtype, array, begin, 1, buffer);
      return {true, nullptr, 0, 0, *buffer};
    }
    widen(operand.data, operand.dtype, array, begin, count, buffer);
    return {true, buffer, 1, 0, 0};
  }

  const FakeReorderProblem& p_;
  const Box box_;
  const bool is_in_place_; // src
};

template <class T>
void mask_row(const T* __restrict from, const uint8_t* mask, T* __restrict to, int64_t count) {
  const auto masked = [](T x, uint8_t bits, int64_t k) {
    return static_cast<T>(x & -static_cast<T>(bits >> k & 1));
  };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const uint8_t bits = mask[i / 8];
    for (int64_t k = 0; k < 8; k++)
      to[i + k] = masked(from[i + k], bits, k);
  }
  for (int64_t k = 0; i + k < count; k++)
    to[i + k] = masked(from[i + k], mask[i / 8], k);
}

// Elements as unsigned integers of their size.
template <class T>
void mask_elements(const FakeReorderProblem& p) {
  const Box box = decompose(p.reorder).front();
  const bool is_in_place = is_dense(box, kSrc);
  const T* src = static_cast<const T*>(p.reorder.src);
  for_each_piece(p, [&](int64_t begin, int64_t count, int64_t byte) {
    T* to = static_cast<T*>(p.reorder.dst) + begin;
    if (is_in_place)
      return mask_row(src + box.offset[kSrc] + begin, p.saved_mask + byte, to, count);
    alignas(64) T piece[kPiece];
    gather(box, kSrc, src, begin, count, piece);
    mask_row(piece, p.saved_mask + byte, to, count);
  });
}

} // namespace
} // namespace reorder_cpu

bool supports_fake_quantize(const FakeReorderProblem& p) {
  return boxes::has_boxes(p.reorder);
}

void fake_quantize(const FakeReorderProblem& p) {
  using reorder_cpu::FakeRows;
  p.reorder.compute_dtype == c10::kDouble ? FakeRows<double>(p).run() : FakeRows<float>(p).run();
}

void mask_gradient(const FakeReorderProblem& p) {
  dispatch_bytes<2>(c10::elementSize(p.reorder.dst_dtype), [&]<class T>(std::type_identity<T>) {
    reorder_cpu::mask_elements<T>(p);
  });
}

} // namespace torch_dnnl
