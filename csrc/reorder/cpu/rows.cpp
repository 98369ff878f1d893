#include "reorder/cpu/rows.h"

#include <algorithm>
#include <cstring>

#include "core/numeric.h"
#include "reorder/cpu/convert_vectors.h"
#include "reorder/cpu/scalar_convert.h"

namespace torch_dnnl::reorder_cpu {
namespace {

// Elements that are computed together.
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

// memcpy would let the processor move a run this long by itself (rep movsb), which takes up to
// twice as long as vectors do, and would not know that the whole result exceeds the last cache.
constexpr int64_t kLongRun = 2048;

void move_long(const char* src, char* dst, int64_t bytes, bool may_stream) {
  constexpr int kVectors = 4;
  constexpr int64_t size = sizeof(Floats), block = kVectors * size;
  int64_t i = 0;
  if (may_stream && !is_line(dst)) {
    i = kCacheLine - reinterpret_cast<uintptr_t>(dst) % kCacheLine;
    std::memcpy(dst, src, i);
  }
  for (; i + block <= bytes; i += block) {
    Floats x[kVectors];
    std::memcpy(x, src + i, block);
    for (int k = 0; k < kVectors; k++) {
      store_all(x[k], dst + i + k * size, may_stream);
    }
  }
  std::memcpy(dst + i, src + i, bytes - i);
}

// `count` runs of `bytes` bytes, with steps in bytes.
void move_runs(
    int64_t bytes,
    const char* src,
    int64_t src_step,
    char* dst,
    int64_t dst_step,
    int64_t count,
    bool may_stream = false) {
  if (bytes >= kLongRun) {
    for (int64_t i = 0; i < count; i++) {
      move_long(src + i * src_step, dst + i * dst_step, bytes, may_stream);
    }
    return;
  }
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

// Contiguous elements to elements with a step.
void move_row(const char* src, char* dst, int64_t count, int64_t dst_step, int64_t size) {
  if (dst_step == 1) {
    std::memcpy(dst, src, count * size);
  } else {
    move_runs(size, src, size, dst, dst_step * size, count);
  }
}

} // namespace

void MoveRows::run(const Box& box, const char* src, char* dst, bool is_streamed) const {
  const int64_t size = element_size_;
  for_each_plane(box, [&](const Offsets& at, const Axis& inner, const Axis& next) {
    const char* from = src + at[kSrc] * size;
    char* to = dst + at[kDst] * size;
    if (inner.stride[kSrc] == 1 && inner.stride[kDst] == 1) {
      const int64_t bytes = inner.extent * size;
      const int64_t src_step = next.stride[kSrc] * size, dst_step = next.stride[kDst] * size;
      move_runs(bytes, from, src_step, to, dst_step, next.extent, is_streamed);
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

// Part of a plane: `rows` times `run` elements.
template <class C>
struct ConvertRows<C>::Piece {
  const char* src;
  Offsets at;
  const Axis &inner, &next;
  int64_t run, rows;
  bool is_packed; // everything is brought together into one row

  Plane plane(Array array) const {
    return {run, rows, inner.stride[array], next.stride[array]};
  }
};

template <class C>
ConvertRows<C>::ConvertRows(const ReorderProblem& p)
    : inputs_{},
      dst_dtype_(p.dst_dtype),
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
}

template <class C>
void ConvertRows<C>::set(Array array, const void* data, c10::ScalarType dtype) {
  Input& input = inputs_[array];
  input.present = true;
  input.data = static_cast<const char*>(data);
  input.dtype = dtype;
  input.size = c10::elementSize(dtype);
  with_type(dtype, [&](auto tag) { input.widen = widen_plane<decltype(tag)>; });
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
    widen_row(row, plane.step, to, plane.run);
  }
}

template <class C>
const char* ConvertRows<C>::begin(Array array, const Piece& piece) const {
  const char* data = array == kSrc ? piece.src : inputs_[array].data;
  return data + piece.at[array] * inputs_[array].size;
}

// Whether the arithmetic can take an array as it lies in long rows.
template <class C>
bool ConvertRows<C>::is_in_place(Array array, const Axis& inner) const {
  const bool is_operand = array != kSrc && array != kDst;
  const bool is_right_type =
      !is_operand || inputs_[array].dtype == c10::CppTypeToScalarType<C>::value;
  return is_right_type && (inner.stride[array] == 1 || (is_operand && inner.stride[array] == 0));
}

// Long rows as they are, with short buffers for operands; or kPiece elements, brought together.
template <class C>
void ConvertRows<C>::choose_piece(const Axis& inner, const Axis& next, Piece& piece) const {
  piece.is_packed =
      inner.extent < kShortestRun || !is_in_place(kSrc, inner) || !is_in_place(kDst, inner);
  piece.run = inner.extent;
  piece.rows = next.extent;
  const auto limit = [&](int64_t run, int64_t rows) {
    piece.run = std::min(piece.run, run);
    piece.rows = std::min(piece.rows, rows);
  };
  if (piece.is_packed) {
    limit(kPiece, std::max<int64_t>(kPiece / inner.extent, 1));
    return;
  }
  for (const Array array : {kAccumulate, kSrcZeroPoint, kScale, kDstScale, kDstZeroPoint}) {
    if (inputs_[array].data == nullptr || is_in_place(array, inner)) {
      continue;
    }
    if (inner.stride[array] == 0) {
      limit(piece.run, kPiece);
    } else if (next.stride[array] == 0) {
      limit(kPiece, piece.rows);
    } else {
      limit(kPiece, std::max<int64_t>(kPiece / inner.extent, 1));
    }
  }
}

template <class C>
typename RowArgs<C>::Operand
ConvertRows<C>::operand(Array array, const Piece& piece, C* buffer) const {
  const Input& input = inputs_[array];
  if (input.data == nullptr) {
    return {input.present, nullptr, 0, 0, input.number};
  }
  const char* from = begin(array, piece);
  Plane plane = piece.plane(array);
  if (plane.step == 0 && (plane.row_step == 0 || plane.rows == 1)) {
    C number;
    input.widen(from, {1, 1, 1, 1}, &number);
    return {true, nullptr, 0, 0, number};
  }
  if (piece.is_packed) {
    input.widen(from, plane, buffer);
    return {true, buffer, 1, 0, 0};
  }
  if (is_in_place(array, piece.inner)) {
    return {true, reinterpret_cast<const C*>(from), plane.step, plane.row_step, 0};
  }
  if (plane.step == 0) { // a value for each row
    input.widen(from, {plane.rows, 1, plane.row_step, 0}, buffer);
    return {true, buffer, 0, 1, 0};
  }
  if (plane.row_step == 0) { // the same row again and again
    plane.rows = 1;
  }
  input.widen(from, plane, buffer);
  return {true, buffer, 1, plane.rows == 1 ? 0 : plane.run, 0};
}

template <class C>
void ConvertRows<C>::run_piece(const Piece& piece, char* dst, bool is_streamed) const {
  alignas(64) C buffers[6][kPiece];
  const Plane src_plane = piece.plane(kSrc), dst_plane = piece.plane(kDst);
  const int64_t size = c10::elementSize(dst_dtype_);
  char* to = dst + piece.at[kDst] * size;
  RowArgs<C> rows{
      piece.run,
      piece.rows,
      begin(kSrc, piece),
      to,
      src_plane.row_step,
      dst_plane.row_step,
      inputs_[kSrc].dtype,
      dst_dtype_,
      operand(kSrcZeroPoint, piece, buffers[1]),
      operand(kScale, piece, buffers[2]),
      operand(kAccumulate, piece, buffers[3]),
      operand(kDstScale, piece, buffers[4]),
      operand(kDstZeroPoint, piece, buffers[5]),
      beta_,
      round_before_zero_point_,
      is_streamed && !piece.is_packed};
  if (!piece.is_packed) {
    return quantize_rows(rows);
  }
  alignas(64) char result[kPiece * sizeof(double)];
  inputs_[kSrc].widen(rows.src, src_plane, buffers[0]);
  rows.src = reinterpret_cast<const char*>(buffers[0]);
  rows.src_dtype = c10::CppTypeToScalarType<C>::value;
  rows.dst = result;
  rows.run *= rows.rows;
  rows.rows = 1;
  quantize_rows(rows);
  const char* from = result;
  for (int64_t j = 0; j < piece.rows; j++) {
    move_row(from, to, piece.run, dst_plane.step, size);
    from += piece.run * size;
    to += dst_plane.row_step * size;
  }
}

template <class C>
void ConvertRows<C>::run(const Box& box, const char* src, char* dst, bool is_streamed) const {
  for_each_plane(box, [&](const Offsets& at, const Axis& inner, const Axis& next) {
    Piece whole{src, at, inner, next, 0, 0, false};
    choose_piece(inner, next, whole);
    for (int64_t j = 0; j < next.extent; j += whole.rows) {
      for (int64_t i = 0; i < inner.extent; i += whole.run) {
        Piece piece = whole;
        piece.run = std::min(whole.run, inner.extent - i);
        piece.rows = std::min(whole.rows, next.extent - j);
        advance(piece.at, next.stride, j);
        advance(piece.at, inner.stride, i);
        run_piece(piece, dst, is_streamed);
      }
    }
  });
}

template class ConvertRows<float>;
template class ConvertRows<double>;
template class ConvertRows<int32_t>;

} // namespace torch_dnnl::reorder_cpu
