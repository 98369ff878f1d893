#include "reorder/cpu/transposed_tile.h"

#include <algorithm>

#include "core/cpu/stream.h"
#include "reorder/cpu/transpose.h"

namespace torch_dnnl::reorder_cpu {
namespace {

// Of the elements of a tile that are transposed, and so of the buffer: less than half of a small
// second-level cache.
constexpr int64_t kTileBytes = 65536;
// Rows and columns that fill the registers of the transpose.
constexpr int64_t kEnough = 16;
// Rows that fill lines of the cache, in all types but the narrowest.
constexpr int64_t kManyRows = 64;
constexpr int64_t kLane = 16; // bytes

bool contains(const c10::SmallVector<size_t, 8>& list, size_t axis) {
  return std::find(list.begin(), list.end(), axis) != list.end();
}

int64_t product(const c10::SmallVector<size_t, 8>& list, const Extents& extents) {
  int64_t result = 1;
  for (const size_t axis : list) {
    result *= extents[axis];
  }
  return result;
}

// The axis that has a stride in `array`; axes.size() if none.
size_t find_axis(const Axes& axes, Array array, int64_t stride) {
  const auto has_stride = [&](const Axis& axis) { return axis.stride[array] == stride; };
  return std::find_if(axes.begin(), axes.end(), has_stride) - axes.begin();
}

Side side_of(const ReorderProblem& p) {
  if (is_move(p)) {
    return Side::kNeither;
  }
  // What is accumulated lies as dst does.
  const bool widens = c10::elementSize(p.dst_dtype) > c10::elementSize(p.src_dtype);
  return widens || p.accumulate != nullptr ? Side::kDst : Side::kSrc;
}

int64_t moved_size_of(const ReorderProblem& p) {
  return c10::elementSize(side_of(p) == Side::kDst ? p.src_dtype : p.dst_dtype);
}

// See TransposedTile::group_.
int64_t group_of(const Box& box, int64_t element_size) {
  const Axis& inner = box.axes.back();
  const int64_t bytes = inner.extent * element_size;
  const bool is_shared = inner.stride[kSrc] == 1 && inner.stride[kDst] == 1;
  return is_shared && (bytes == 2 || bytes == 4 || bytes == 8) ? inner.extent : 1;
}

} // namespace

bool needs_transpose(const Box& box, const ReorderProblem& p) {
  const int64_t group = group_of(box, moved_size_of(p));
  const size_t row = find_axis(box.axes, kDst, group), column = find_axis(box.axes, kSrc, group);
  return row != column && row < box.axes.size() && column < box.axes.size();
}

TransposedTile::TransposedTile(
    const Box& box,
    const ReorderProblem& p,
    const Rows& rows,
    bool is_streamed)
    : box_(box),
      rows_(rows),
      side_(side_of(p)),
      moved_size_(moved_size_of(p)),
      group_(group_of(box, moved_size_)),
      budget_(kTileBytes / (moved_size_ * group_)),
      is_streamed_(is_streamed),
      extents_(box.axes.size(), 1),
      buffer_stride_(box.axes.size(), 0) {
  choose_rows_and_columns();
  choose_extents();
  const int64_t lane = kLane / (moved_size_ * group_);
  if (is_move(p) && rows_of_tile_.size() > 1 && product(columns_, extents_) < lane &&
      product(rows_of_tile_, extents_) >= lane) {
    // Short rows from anywhere are not read in vectors, so they are brought together first.
    side_ = Side::kSrc;
  }
  add_axes_of_runs();
  choose_strides();
  if (side_ != Side::kDst) {
    is_streamed_ &= has_whole_lines();
  }
}

// Adds the axis that continues the contiguous run of a list in `array`.
bool TransposedTile::extend(List& list, Array array, const List& other) const {
  int64_t run = group_;
  for (const size_t axis : list) {
    run *= box_.axes[axis].extent;
  }
  const size_t next = find_axis(box_.axes, array, run);
  if (next == box_.axes.size() || contains(list, next) || contains(other, next)) {
    return false;
  }
  list.push_back(next);
  return true;
}

void TransposedTile::choose_rows_and_columns() {
  rows_of_tile_.push_back(find_axis(box_.axes, kDst, group_));
  columns_.push_back(find_axis(box_.axes, kSrc, group_));
  Extents whole;
  for (const Axis& axis : box_.axes) {
    whole.push_back(axis.extent);
  }
  bool more = true;
  while (more) {
    more = product(columns_, whole) < kEnough && extend(columns_, kSrc, rows_of_tile_);
    more |= product(rows_of_tile_, whole) < kEnough && extend(rows_of_tile_, kDst, columns_);
  }
}

// Only the outermost axes of the rows and of the columns are cut, so that the offsets in a smaller
// tile are the first ones of those in a whole tile.
void TransposedTile::choose_extents() {
  for (const List* list : {&rows_of_tile_, &columns_}) {
    for (const size_t axis : *list) {
      extents_[axis] = box_.axes[axis].extent;
    }
  }
  const auto cut = [&](const List& list, int64_t limit) {
    int64_t& outermost = extents_[list.back()];
    const int64_t inner = product(list, extents_) / outermost;
    outermost = std::min(outermost, std::max<int64_t>(limit / inner, 1));
  };
  cut(rows_of_tile_, std::max(kManyRows, budget_ / product(columns_, extents_)));
  cut(columns_, std::max(kEnough, budget_ / product(rows_of_tile_, extents_)));
}

// What is converted should be contiguous for long: the axes that continue the runs of src, or of
// dst, become part of the tile as far as it may grow.
void TransposedTile::add_axes_of_runs() {
  const Array array = side_ == Side::kDst ? kDst : kSrc;
  int64_t groups = product(rows_of_tile_, extents_) * product(columns_, extents_);
  for (int64_t run = group_; side_ != Side::kNeither;) {
    const size_t next = find_axis(box_.axes, array, run);
    if (next == box_.axes.size()) {
      break;
    }
    const int64_t extent = box_.axes[next].extent;
    if (!contains(rows_of_tile_, next) && !contains(columns_, next)) {
      extents_[next] = std::clamp<int64_t>(budget_ / groups, 1, extent);
      groups *= extents_[next];
      others_.push_back(next);
    }
    if (extents_[next] < extent) {
      break;
    }
    run *= extent;
  }
}

void TransposedTile::choose_strides() {
  // The order of the buffer is that of src, the columns innermost, or that of dst.
  List order;
  for (const List* list : {&columns_, &rows_of_tile_, &others_}) {
    order.append(list->begin(), list->end());
  }
  const auto begin = order.begin() + (side_ == Side::kDst ? 0 : columns_.size());
  const Array array = side_ == Side::kDst ? kDst : kSrc;
  std::stable_sort(begin, order.end(), [&](size_t a, size_t b) {
    return box_.axes[a].stride[array] < box_.axes[b].stride[array];
  });
  int64_t stride = group_;
  for (const size_t axis : order) {
    buffer_stride_[axis] = stride;
    stride *= extents_[axis];
  }
  buffer_axes_.append(order.rbegin(), order.rend());
  if (group_ > 1) {
    const size_t inner = box_.axes.size() - 1;
    extents_[inner] = group_;
    buffer_stride_[inner] = 1;
    buffer_axes_.push_back(inner);
  }

  Extents from, to; // of the transpose, in bytes
  for (size_t a = 0; a < box_.axes.size(); a++) {
    const Offsets& strides = box_.axes[a].stride;
    from.push_back((side_ == Side::kSrc ? buffer_stride_[a] : strides[kSrc]) * moved_size_);
    to.push_back((side_ == Side::kDst ? buffer_stride_[a] : strides[kDst]) * moved_size_);
  }
  row_offset_ = offsets(rows_of_tile_, from);
  row_step_ = from[rows_of_tile_.front()];
  column_offset_ = offsets(columns_, to);
  column_step_ = columns_.size() == 1 ? to[columns_.front()] : 0;
  for (const size_t axis : others_) {
    Axis loop{};
    loop.stride[kSrc] = from[axis];
    loop.stride[kDst] = to[axis];
    loops_.push_back(loop);
  }
}

// Whether all columns of all tiles begin where lines do, if dst does.
bool TransposedTile::has_whole_lines() const {
  for (size_t a = 0; a < box_.axes.size(); a++) {
    const bool is_row = contains(rows_of_tile_, a) || box_.axes[a].stride[kDst] < group_;
    const int64_t elements = box_.axes[a].stride[kDst] * (is_row ? extents_[a] : 1);
    const bool is_whole = is_row && extents_[a] == box_.axes[a].extent;
    if (!is_whole && elements * moved_size_ % kCacheLine != 0) {
      return false;
    }
  }
  return true;
}

// At each position of the axes in the list, the first of which is the innermost.
std::vector<int64_t> TransposedTile::offsets(const List& list, const Extents& stride) const {
  std::vector<int64_t> result{0};
  result.reserve(product(list, extents_));
  for (const size_t axis : list) {
    const size_t count = result.size();
    for (int64_t i = 1; i < extents_[axis]; i++) {
      for (size_t k = 0; k < count; k++) {
        result.push_back(result[k] + i * stride[axis]);
      }
    }
  }
  return result;
}

// The box that is converted: between the buffer and src or dst.
Box TransposedTile::conversion(const Box& part) const {
  Box box;
  box.offset = part.offset;
  for (const size_t a : buffer_axes_) {
    box.axes.push_back(part.axes[a]);
    box.axes.back().stride[side_ == Side::kSrc ? kDst : kSrc] = buffer_stride_[a];
  }
  merge(box.axes);
  return box;
}

void TransposedTile::transpose_part(const Box& part, const char* from, char* to) const {
  int64_t rows = 1, columns = 1;
  for (const size_t axis : rows_of_tile_) {
    rows *= part.axes[axis].extent;
  }
  for (const size_t axis : columns_) {
    columns *= part.axes[axis].extent;
  }
  Axes loops = loops_;
  for (size_t i = 0; i < loops.size(); i++) {
    loops[i].extent = part.axes[others_[i]].extent;
  }
  for_each_position(loops, Offsets{}, [&](const Offsets& at) {
    transpose(
        {from + at[kSrc],
         rows_of_tile_.size() == 1 ? nullptr : row_offset_.data(),
         row_step_,
         rows,
         to + at[kDst],
         column_offset_.data(),
         column_step_,
         columns,
         side_ == Side::kSrc,
         is_streamed_ && side_ != Side::kDst && is_line(to)},
        moved_size_ * group_);
  });
}

void TransposedTile::run(const Box& part, const char* src, char* dst) const {
  alignas(64) char buffer[kTileBytes + kLane];
  switch (side_) {
    case Side::kNeither:
      return transpose_part(part, src, dst);
    case Side::kSrc:
      rows_.run(conversion(part), src, buffer, /*is_streamed=*/false);
      return transpose_part(part, buffer, dst);
    case Side::kDst:
      transpose_part(part, src, buffer);
      return rows_.run(conversion(part), buffer, dst, is_streamed_);
  }
}

} // namespace torch_dnnl::reorder_cpu
