#include "reorder/cpu/rows.h"

#include <algorithm>
#include <cstring>

#include "core/dispatch.h"
#include "reorder/cpu/elements.h"
#include "reorder/reorder.h"

namespace torch_dnnl::reorder_cpu {
namespace {

// Elements that go through all steps together.
constexpr int64_t kPiece = 1024;

const Axis unit_axis{1, {}};

// f(offset, inner axis, next axis) for each pair of innermost loops.
template <class F>
void for_each_plane(const Box& box, const F& f) {
  const size_t n = box.axes.size(), outer = n < 2 ? 0 : n - 2;
  const Axis& inner = box.axes[n - 1];
  const Axis& next = n < 2 ? unit_axis : box.axes[n - 2];
  Offsets offset = box.offset;
  offset[kSrc] = offset[kDst] = 0;
  for_each_position(c10::ArrayRef<Axis>(box.axes).slice(0, outer), offset, [&](const Offsets& at) {
    f(at, inner, next);
  });
}

template <int kBytes>
void move_short(const char* src, int64_t src_step, char* dst, int64_t dst_step, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    std::memcpy(dst + i * dst_step, src + i * src_step, kBytes);
  }
}

// `count` runs of `bytes` bytes.
void move_runs(
    int64_t bytes,
    const char* src,
    int64_t src_step,
    char* dst,
    int64_t dst_step,
    int64_t count) {
  switch (bytes) {
    case 1:
      return move_short<1>(src, src_step, dst, dst_step, count);
    case 2:
      return move_short<2>(src, src_step, dst, dst_step, count);
    case 4:
      return move_short<4>(src, src_step, dst, dst_step, count);
    case 8:
      return move_short<8>(src, src_step, dst, dst_step, count);
    case 16:
      return move_short<16>(src, src_step, dst, dst_step, count);
    case 32:
      return move_short<32>(src, src_step, dst, dst_step, count);
    case 64:
      return move_short<64>(src, src_step, dst, dst_step, count);
    default:
      for (int64_t i = 0; i < count; i++) {
        std::memcpy(dst + i * dst_step, src + i * src_step, bytes);
      }
  }
}

} // namespace

void MoveRows::run(const Box& box, const char* src, char* dst) const {
  const int64_t size = element_size_;
  for_each_plane(box, [&](const Offsets& at, const Axis& inner, const Axis& next) {
    const char* from = src + at[kSrc] * size;
    char* to = dst + at[kDst] * size;
    if (inner.stride[kSrc] == 1 && inner.stride[kDst] == 1) {
      const int64_t bytes = inner.extent * size;
      move_runs(bytes, from, next.stride[kSrc] * size, to, next.stride[kDst] * size, next.extent);
      return;
    }
    for (int64_t j = 0; j < next.extent; j++) {
      move_runs(size, from, inner.stride[kSrc] * size, to, inner.stride[kDst] * size, inner.extent);
      from += next.stride[kSrc] * size;
      to += next.stride[kDst] * size;
    }
  });
}

bool is_move(const ReorderProblem& p) {
  return p.compute_dtype == c10::kLong && p.src_dtype == p.dst_dtype;
}

template <class C>
struct ConvertRows<C>::Piece {
  const char* src;
  Offsets at;
  const Axis &inner, &next;
  int64_t run, rows; // of these axes
};

template <class C>
ConvertRows<C>::ConvertRows(const ReorderProblem& p)
    : inputs_{},
      beta_(std::is_integral_v<C> ? C(0) : static_cast<C>(p.beta)),
      round_before_zero_point_(p.round_before_zero_point) {
  set(kSrc, p.src, p.src_dtype);
  if (p.accumulate != nullptr) {
    set(kAccumulate, p.accumulate, p.accumulate_dtype);
  }
  set(kSrcZeroPoint, p.src_zero_point);
  set(kScale, p.scale);
  set(kDstScale, p.dst_scale);
  set(kDstZeroPoint, p.dst_zero_point);
  dst_size_ = c10::elementSize(p.dst_dtype);
  dispatch(ReorderTypes{}, p.dst_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T> || !std::is_integral_v<C>) {
      narrow_ = narrow_plane<T>;
    }
  });
}

template <class C>
void ConvertRows<C>::set(Array array, const void* data, c10::ScalarType dtype) {
  Input& input = inputs_[array];
  input.present = true;
  input.data = static_cast<const char*>(data);
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_integral_v<T> || !std::is_integral_v<C>) {
      input.size = sizeof(T);
      input.is_computed = std::is_same_v<T, C>;
      input.widen = widen_plane<T>;
    }
  });
}

template <class C>
void ConvertRows<C>::set(Array array, const ReorderProblem::Operand& operand) {
  if (operand.data != nullptr) {
    set(array, operand.data, operand.dtype);
  } else if (operand.present) {
    inputs_[array].present = true;
    inputs_[array].number = static_cast<C>(operand.number);
  }
}

template <class C>
template <class T>
void ConvertRows<C>::widen_plane(const char* from, const Plane& plane, C* to) {
  const T* row = reinterpret_cast<const T*>(from);
  for (int64_t j = 0; j < plane.rows; j++, row += plane.row_step, to += plane.run) {
    if (plane.step == 1) {
      widen_row(row, to, plane.run);
    } else {
      for (int64_t i = 0; i < plane.run; i++) {
        to[i] = widened<C>(row[i * plane.step]);
      }
    }
  }
}

template <class C>
template <class T>
void ConvertRows<C>::narrow_plane(const C* from, const Plane& plane, char* to) {
  T* row = reinterpret_cast<T*>(to);
  for (int64_t j = 0; j < plane.rows; j++, row += plane.row_step, from += plane.run) {
    if (plane.step == 1) {
      narrow_row(from, row, plane.run);
    } else {
      for (int64_t i = 0; i < plane.run; i++) {
        row[i * plane.step] = narrowed<T>(from[i]);
      }
    }
  }
}

// A plane that is one row is taken as one.
template <class C>
typename ConvertRows<C>::Plane ConvertRows<C>::plane_of(Array array, const Piece& piece) {
  const int64_t step = piece.inner.stride[array], row_step = piece.next.stride[array];
  if (row_step == piece.run * step) {
    return {piece.run * piece.rows, 1, step, 0};
  }
  return {piece.run, piece.rows, step, row_step};
}

// The elements as C, in place if they are.
template <class C>
const C* ConvertRows<C>::load(Array array, const Piece& piece, C* buffer) const {
  const Input& input = inputs_[array];
  const char* from = (array == kSrc ? piece.src : input.data) + piece.at[array] * input.size;
  const Plane plane = plane_of(array, piece);
  if (input.is_computed && plane.rows == 1 && plane.step == 1) {
    return reinterpret_cast<const C*>(from);
  }
  input.widen(from, plane, buffer);
  return buffer;
}

// f(value, element of the array); `value` and `result` may be the same.
template <class C>
template <class F>
const C*
ConvertRows<C>::step(Array array, const Piece& piece, const C* value, C* result, const F& f) const {
  const Input& input = inputs_[array];
  const int64_t n = piece.run * piece.rows;
  if (input.data == nullptr || (piece.inner.stride[array] == 0 && piece.next.stride[array] == 0)) {
    C number = input.number;
    if (input.data != nullptr) {
      input.widen(input.data + piece.at[array] * input.size, {1, 1, 1, 1}, &number);
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
      result[i] = f(value[i], number);
    }
  } else {
    alignas(64) C buffer[kPiece];
    const C* other = load(array, piece, buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
      result[i] = f(value[i], other[i]);
    }
  }
  return result;
}

template <class C>
void ConvertRows<C>::run_piece(const Piece& piece, char* dst) const {
  alignas(64) C result[kPiece];
  const C* value = load(kSrc, piece, result);
  if constexpr (!std::is_integral_v<C>) {
    if (inputs_[kSrcZeroPoint].present) {
      value = step(kSrcZeroPoint, piece, value, result, [](C x, C zero) { return x - zero; });
    }
    if (inputs_[kScale].present) {
      value = step(kScale, piece, value, result, [](C x, C scale) { return scale * x; });
    }
    if (inputs_[kAccumulate].present) {
      const C beta = beta_;
      value =
          step(kAccumulate, piece, value, result, [beta](C x, C sum) { return x + beta * sum; });
    }
    if (inputs_[kDstScale].present) {
      value = step(kDstScale, piece, value, result, [](C x, C scale) { return x / scale; });
    }
    if (inputs_[kDstZeroPoint].present) {
      value = round_before_zero_point_
          ? step(
                kDstZeroPoint,
                piece,
                value,
                result,
                [](C x, C zero) { return round_even(x) + zero; })
          : step(kDstZeroPoint, piece, value, result, [](C x, C zero) { return x + zero; });
    }
  }
  narrow_(value, plane_of(kDst, piece), dst + piece.at[kDst] * dst_size_);
}

template <class C>
void ConvertRows<C>::run(const Box& box, const char* src, char* dst) const {
  for_each_plane(box, [&](const Offsets& at, const Axis& inner, const Axis& next) {
    const int64_t run = std::min(inner.extent, kPiece);
    const int64_t rows = kPiece / run;
    for (int64_t j = 0; j < next.extent; j += rows) {
      for (int64_t i = 0; i < inner.extent; i += run) {
        Piece piece{
            src, at, inner, next, std::min(run, inner.extent - i), std::min(rows, next.extent - j)};
        advance(piece.at, next.stride, j);
        advance(piece.at, inner.stride, i);
        run_piece(piece, dst);
      }
    }
  });
}

template class ConvertRows<float>;
template class ConvertRows<double>;
template class ConvertRows<int32_t>;

} // namespace torch_dnnl::reorder_cpu
