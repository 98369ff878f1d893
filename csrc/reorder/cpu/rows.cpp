#include "reorder/cpu/rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/numeric.h"
#include "reorder/cpu/convert_vectors.h"
#include "reorder/cpu/quantize_rows.h"

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
  for (int64_t i = 0; i < count; i++)
    std::memcpy(dst + i * dst_step, src + i * src_step, kBytes);
}

// memcpy would let the processor move a run this long by itself (rep movsb), which takes up to
// twice as long as vectors do, and would not know that the whole result exceeds the last cache.
constexpr int64_t kLongRun = 2048;

void move_long(const char* src, char* dst, int64_t bytes, bool may_stream) {
  constexpr int64_t size = sizeof(Floats), block = 4 * size;
  int64_t i = 0;
  if (may_stream && !is_line(dst)) {
    i = kCacheLine - reinterpret_cast<uintptr_t>(dst) % kCacheLine;
    std::memcpy(dst, src, i);
  }
  // Vector by vector: compilers copy an array of them through memory, in smaller parts.
  for (; i + block <= bytes; i += block)
    for (int64_t k = i; k < i + block; k += size)
      store_all(load_floats(reinterpret_cast<const float*>(src + k)), dst + k, may_stream);
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
    for (int64_t i = 0; i < count; i++)
      move_long(src + i * src_step, dst + i * dst_step, bytes, may_stream);
    return;
  }
  const bool is_moved = [&]<int... sizes>(std::integer_sequence<int, sizes...>) {
    return (
        (bytes == sizes && (move_short<sizes>(src, src_step, dst, dst_step, count), true)) || ...);
  }(std::integer_sequence<int, 1, 2, 4, 8, 16, 32, 64>());
  for (int64_t i = 0; i < count && !is_moved; i++)
    std::memcpy(dst + i * dst_step, src + i * src_step, bytes);
}

void move_box(const Box& box, int64_t size, const char* src, char* dst, bool is_streamed) {
  for_each_plane(box, [&](const Offsets& at, const Axis& inner, const Axis& next) {
    const char* from = src + at[kSrc] * size;
    char* to = dst + at[kDst] * size;
    const int64_t src_step = next.stride[kSrc] * size, dst_step = next.stride[kDst] * size;
    if (inner.stride[kSrc] == 1 && inner.stride[kDst] == 1)
      return move_runs(inner.extent * size, from, src_step, to, dst_step, next.extent, is_streamed);
    for (int64_t j = 0; j < next.extent; j++, from += src_step, to += dst_step)
      move_runs(size, from, inner.stride[kSrc] * size, to, inner.stride[kDst] * size, inner.extent);
  });
}

// An array over a part of the two innermost loops.
struct Plane {
  int64_t run, rows, step, row_step;
};

// Part of the two innermost loops: `rows` times `run` elements.
struct Piece {
  Offsets at;
  const Axis &inner, &next;
  int64_t run, rows;
  bool is_packed; // everything is brought together into one row

  Plane plane(Array array) const {
    return {run, rows, inner.stride[array], next.stride[array]};
  }
};

// Elements from `offset` on, in the type that is computed in.
template <class C>
void widen_plane(
    const void* data,
    c10::ScalarType dtype,
    int64_t offset,
    const Plane& plane,
    C* to) {
  with_type(dtype, [&](auto tag) {
    const auto* row = static_cast<const decltype(tag)*>(data) + offset;
    for (int64_t j = 0; j < plane.rows; j++, row += plane.row_step, to += plane.run)
      widen_row(row, plane.step, to, plane.run);
  });
}

// Whether the arithmetic can take an operand as it lies in long rows.
template <class C>
bool is_in_place(const ReorderProblem& p, int array, const Axis& inner) {
  return p.operand[array].dtype == c10::CppTypeToScalarType<C>::value &&
      (inner.stride[array] == 1 || inner.stride[array] == 0);
}

// The first piece: long rows as they are, with short buffers for operands; or kPiece elements,
// brought together.
template <class C>
Piece choose_piece(
    const ReorderProblem& p,
    const Offsets& at,
    const Axis& inner,
    const Axis& next) {
  Piece piece{at, inner, next, inner.extent, next.extent, false};
  piece.is_packed =
      inner.extent < kShortestRun || inner.stride[kSrc] != 1 || inner.stride[kDst] != 1;
  const auto limit = [&](int64_t run, int64_t rows) {
    piece.run = std::min(piece.run, run);
    piece.rows = std::min(piece.rows, rows);
  };
  const int64_t rows_of_piece = std::max<int64_t>(kPiece / inner.extent, 1);
  if (piece.is_packed) {
    limit(kPiece, rows_of_piece);
    return piece;
  }
  for (int array = 0; array < kOperands; array++) {
    if (p.operand[array].data == nullptr || is_in_place<C>(p, array, inner))
      continue;
    if (inner.stride[array] == 0)
      limit(piece.run, kPiece);
    else if (next.stride[array] == 0)
      limit(kPiece, piece.rows);
    else
      limit(kPiece, rows_of_piece);
  }
  return piece;
}

template <class C>
typename RowArgs<C>::Operand
row_operand(const ReorderProblem& p, Array array, const Piece& piece, C* buffer) {
  const ReorderProblem::Operand& operand = p.operand[array];
  if (operand.data == nullptr)
    return {operand.present, nullptr, 0, 0, static_cast<C>(operand.number)};
  const int64_t offset = piece.at[array];
  Plane plane = piece.plane(array);
  if (plane.step == 0 && (plane.row_step == 0 || plane.rows == 1))
    return {true, nullptr, 0, 0, load<C>(operand.data, operand.dtype, offset)};
  if (!piece.is_packed && is_in_place<C>(p, array, piece.inner)) {
    const C* from = static_cast<const C*>(operand.data) + offset;
    return {true, from, plane.step, plane.row_step, 0};
  }
  const bool is_of_row = !piece.is_packed && plane.step == 0; // a value for each row
  if (is_of_row)
    plane = {plane.rows, 1, plane.row_step, 0};
  else if (!piece.is_packed && plane.row_step == 0) // the same row again and again
    plane.rows = 1;
  widen_plane(operand.data, operand.dtype, offset, plane, buffer);
  return {true, buffer, !is_of_row, is_of_row ? 1 : plane.rows == 1 ? 0 : plane.run, 0};
}

template <class C>
void convert_piece(
    const ReorderProblem& p,
    const Piece& piece,
    const char* src,
    char* dst,
    bool is_streamed) {
  alignas(64) C buffers[kOperands + 1][kPiece];
  const Plane src_plane = piece.plane(kSrc), dst_plane = piece.plane(kDst);
  const int64_t size = c10::elementSize(p.dst_dtype);
  char* to = dst + piece.at[kDst] * size;
  RowArgs<C> rows{};
  rows.run = piece.run;
  rows.rows = piece.rows;
  rows.src = src + piece.at[kSrc] * c10::elementSize(p.src_dtype);
  rows.dst = to;
  rows.src_row_step = src_plane.row_step;
  rows.dst_row_step = dst_plane.row_step;
  rows.src_dtype = p.src_dtype;
  rows.dst_dtype = p.dst_dtype;
  if constexpr (!std::is_integral_v<C>) {
    for (int array = 0; array < kOperands; array++)
      rows.operand[array] = row_operand(p, Array(array), piece, buffers[array]);
    rows.beta = static_cast<C>(p.beta);
    rows.round_before_zero_point = p.round_before_zero_point;
  }
  rows.is_streamed = is_streamed && !piece.is_packed;
  if (!piece.is_packed)
    return quantize_rows(rows);
  alignas(64) char result[kPiece * sizeof(double)];
  C* widened = buffers[kOperands];
  widen_plane(rows.src, p.src_dtype, 0, src_plane, widened);
  rows.src = reinterpret_cast<const char*>(widened);
  rows.src_dtype = c10::CppTypeToScalarType<C>::value;
  rows.dst = result;
  rows.run *= rows.rows;
  rows.rows = 1;
  quantize_rows(rows);
  const char* from = result;
  for (int64_t j = 0; j < piece.rows; j++) {
    if (dst_plane.step == 1)
      std::memcpy(to, from, piece.run * size);
    else
      move_runs(size, from, size, to, dst_plane.step * size, piece.run);
    from += piece.run * size;
    to += dst_plane.row_step * size;
  }
}

template <class C>
void convert_box(
    const ReorderProblem& p,
    const Box& box,
    const char* src,
    char* dst,
    bool is_streamed) {
  for_each_plane(box, [&](const Offsets& at, const Axis& inner, const Axis& next) {
    const Piece whole = choose_piece<C>(p, at, inner, next);
    for (int64_t j = 0; j < next.extent; j += whole.rows) {
      for (int64_t i = 0; i < inner.extent; i += whole.run) {
        Piece piece = whole;
        piece.run = std::min(whole.run, inner.extent - i);
        piece.rows = std::min(whole.rows, next.extent - j);
        advance(piece.at, next.stride, j);
        advance(piece.at, inner.stride, i);
        convert_piece<C>(p, piece, src, dst, is_streamed);
      }
    }
  });
}

} // namespace

void reorder_rows(
    const ReorderProblem& p,
    const Box& box,
    const char* src,
    char* dst,
    bool is_streamed) {
  if (p.is_move())
    move_box(box, c10::elementSize(p.dst_dtype), src, dst, is_streamed);
  else if (p.compute_dtype == c10::kLong)
    convert_box<int32_t>(p, box, src, dst, is_streamed);
  else if (p.compute_dtype == c10::kDouble)
    convert_box<double>(p, box, src, dst, is_streamed);
  else
    convert_box<float>(p, box, src, dst, is_streamed);
}

} // namespace torch_dnnl::reorder_cpu
