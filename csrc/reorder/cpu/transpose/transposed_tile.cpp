#include "reorder/cpu/transpose/transposed_tile.h"

#include <algorithm>
#include <numeric>

#include "core/cpu/stream.h"
#include "core/cpu/transpose.h"

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

bool contains(const AxisList& list, size_t axis) {
  return std::find(list.begin(), list.end(), axis) != list.end();
}

int64_t product(const AxisList& list, const Extents& extents) {
  int64_t result = 1;
  for (const size_t axis : list)
    result *= extents[axis];
  return result;
}

// The axis that has a stride in `array`; axes.size() if none.
size_t find_axis(const Axes& axes, Array array, int64_t stride) {
  const auto has_stride = [&](const Axis& axis) { return axis.stride[array] == stride; };
  return std::find_if(axes.begin(), axes.end(), has_stride) - axes.begin();
}

Side side_of(const ReorderProblem& p) {
  if (p.is_move())
    return Side::kNeither;
  // What is accumulated lies as dst does.
  const bool widens = c10::elementSize(p.dst_dtype) > c10::elementSize(p.src_dtype);
  return widens || p.operand[kAccumulate].present ? Side::kDst : Side::kSrc;
}

int64_t moved_size_of(const ReorderProblem& p) {
  return c10::elementSize(side_of(p) == Side::kDst ? p.src_dtype : p.dst_dtype);
}

// See TransposePlan::group.
int64_t group_of(const Box& box, int64_t element_size) {
  const Axis& inner = box.axes.back();
  const int64_t bytes = inner.extent * element_size;
  const bool is_shared = inner.stride[kSrc] == 1 && inner.stride[kDst] == 1;
  return is_shared && (bytes == 2 || bytes == 4 || bytes == 8) ? inner.extent : 1;
}

// Adds the axis that continues the contiguous run of a list in `array`.
bool extend(const Box& box, int64_t group, AxisList& list, Array array, const AxisList& other) {
  int64_t run = group;
  for (const size_t axis : list)
    run *= box.axes[axis].extent;
  const size_t next = find_axis(box.axes, array, run);
  if (next == box.axes.size() || contains(list, next) || contains(other, next))
    return false;
  list.push_back(next);
  return true;
}

void choose_rows_and_columns(const Box& box, TransposePlan& plan) {
  plan.rows.push_back(find_axis(box.axes, kDst, plan.group));
  plan.columns.push_back(find_axis(box.axes, kSrc, plan.group));
  Extents whole;
  for (const Axis& axis : box.axes)
    whole.push_back(axis.extent);
  bool more = true;
  while (more) {
    more = product(plan.columns, whole) < kEnough &&
        extend(box, plan.group, plan.columns, kSrc, plan.rows);
    more |= product(plan.rows, whole) < kEnough &&
        extend(box, plan.group, plan.rows, kDst, plan.columns);
  }
}

// Only the outermost axes of the rows and of the columns are cut, so that the offsets in a smaller
// tile are the first ones of those in a whole tile. `budget`: groups in a tile.
void choose_extents(const Box& box, int64_t budget, TransposePlan& plan) {
  for (const AxisList* list : {&plan.rows, &plan.columns})
    for (const size_t axis : *list)
      plan.extents[axis] = box.axes[axis].extent;
  const auto cut = [&](const AxisList& list, int64_t limit) {
    int64_t& outermost = plan.extents[list.back()];
    const int64_t inner = product(list, plan.extents) / outermost;
    outermost = std::min(outermost, std::max<int64_t>(limit / inner, 1));
  };
  cut(plan.rows, std::max(kManyRows, budget / product(plan.columns, plan.extents)));
  // Where no tile ends within a line of dst, each line is written once.
  int64_t& outermost = plan.extents[plan.rows.back()];
  const int64_t inner_bytes =
      product(plan.rows, plan.extents) / outermost * plan.group * plan.moved_size;
  const int64_t whole_lines = kCacheLine / std::gcd(inner_bytes, kCacheLine);
  if (outermost > whole_lines && outermost < box.axes[plan.rows.back()].extent)
    outermost -= outermost % whole_lines;
  cut(plan.columns, std::max(kEnough, budget / product(plan.rows, plan.extents)));
}

// What is converted should be contiguous for long: the axes that continue the runs of src, or of
// dst, become part of the tile as far as it may grow.
void add_axes_of_runs(const Box& box, int64_t budget, TransposePlan& plan) {
  const Array array = plan.side == Side::kDst ? kDst : kSrc;
  int64_t groups = product(plan.rows, plan.extents) * product(plan.columns, plan.extents);
  for (int64_t run = plan.group; plan.side != Side::kNeither;) {
    const size_t next = find_axis(box.axes, array, run);
    if (next == box.axes.size())
      break;
    const int64_t extent = box.axes[next].extent;
    if (!contains(plan.rows, next) && !contains(plan.columns, next)) {
      plan.extents[next] = std::clamp<int64_t>(budget / groups, 1, extent);
      groups *= plan.extents[next];
      plan.others.push_back(next);
    }
    if (plan.extents[next] < extent)
      break;
    run *= extent;
  }
}

// The order of the buffer is that of src, the columns innermost, or that of dst.
void lay_out_buffer(const Box& box, TransposePlan& plan) {
  AxisList order;
  for (const AxisList* list : {&plan.columns, &plan.rows, &plan.others})
    order.append(list->begin(), list->end());
  const bool is_of_dst = plan.side == Side::kDst;
  const Array array = is_of_dst ? kDst : kSrc;
  std::stable_sort(
      order.begin() + (is_of_dst ? 0 : plan.columns.size()), order.end(), [&](size_t a, size_t b) {
        return box.axes[a].stride[array] < box.axes[b].stride[array];
      });
  int64_t stride = plan.group;
  for (const size_t axis : order) {
    plan.buffer_stride[axis] = stride;
    stride *= plan.extents[axis];
  }
  plan.buffer_axes.append(order.rbegin(), order.rend());
  if (plan.group > 1) {
    const size_t inner = box.axes.size() - 1;
    plan.extents[inner] = plan.group;
    plan.buffer_stride[inner] = 1;
    plan.buffer_axes.push_back(inner);
  }
}

// At each position of the axes in the list, the first of which is the innermost.
std::vector<int64_t> offsets(const AxisList& list, const Extents& extents, const Extents& stride) {
  std::vector<int64_t> result{0};
  result.reserve(product(list, extents));
  for (const size_t axis : list) {
    const size_t count = result.size();
    for (int64_t i = 1; i < extents[axis]; i++)
      for (size_t k = 0; k < count; k++)
        result.push_back(result[k] + i * stride[axis]);
  }
  return result;
}

// Where the transpose reads and writes.
void choose_strides(const Box& box, TransposePlan& plan) {
  Extents from, to; // bytes
  for (size_t a = 0; a < box.axes.size(); a++) {
    const Offsets& strides = box.axes[a].stride;
    const int64_t buffered = plan.buffer_stride[a];
    from.push_back((plan.side == Side::kSrc ? buffered : strides[kSrc]) * plan.moved_size);
    to.push_back((plan.side == Side::kDst ? buffered : strides[kDst]) * plan.moved_size);
  }
  plan.row_offset = offsets(plan.rows, plan.extents, from);
  plan.row_step = from[plan.rows.front()];
  plan.column_offset = offsets(plan.columns, plan.extents, to);
  plan.column_step = plan.columns.size() == 1 ? to[plan.columns.front()] : 0;
  for (const size_t axis : plan.others) {
    Axis loop{};
    loop.stride[kSrc] = from[axis];
    loop.stride[kDst] = to[axis];
    plan.loops.push_back(loop);
  }
}

// Whether all columns of all tiles begin where lines do, if dst does.
bool has_whole_lines(const Box& box, const TransposePlan& plan) {
  for (size_t a = 0; a < box.axes.size(); a++) {
    const bool is_row = contains(plan.rows, a) || box.axes[a].stride[kDst] < plan.group;
    const int64_t elements = box.axes[a].stride[kDst] * (is_row ? plan.extents[a] : 1);
    const bool is_whole = is_row && plan.extents[a] == box.axes[a].extent;
    if (!is_whole && elements * plan.moved_size % kCacheLine != 0)
      return false;
  }
  return true;
}

// The box that is converted: between the buffer and src or dst.
Box conversion(const TransposePlan& plan, const Box& part) {
  Box box;
  box.offset = part.offset;
  for (const size_t a : plan.buffer_axes) {
    box.axes.push_back(part.axes[a]);
    box.axes.back().stride[plan.side == Side::kSrc ? kDst : kSrc] = plan.buffer_stride[a];
  }
  merge(box.axes);
  return box;
}

void transpose_part(const TransposePlan& plan, const Box& part, const char* from, char* to) {
  int64_t rows = 1, columns = 1;
  for (const size_t axis : plan.rows)
    rows *= part.axes[axis].extent;
  for (const size_t axis : plan.columns)
    columns *= part.axes[axis].extent;
  Axes loops = plan.loops;
  for (size_t i = 0; i < loops.size(); i++)
    loops[i].extent = part.axes[plan.others[i]].extent;
  for_each_position(loops, Offsets{}, [&](const Offsets& at) {
    transpose(
        {from + at[kSrc],
         plan.rows.size() == 1 ? nullptr : plan.row_offset.data(),
         plan.row_step,
         rows,
         to + at[kDst],
         plan.column_offset.data(),
         plan.column_step,
         columns,
         /*may_overread=*/plan.side == Side::kSrc,
         plan.is_streamed && plan.side != Side::kDst && is_line(to)},
        plan.moved_size * plan.group);
  });
}

} // namespace

bool needs_transpose(const Box& box, const ReorderProblem& p) {
  const int64_t group = group_of(box, moved_size_of(p));
  const size_t row = find_axis(box.axes, kDst, group), column = find_axis(box.axes, kSrc, group);
  return row != column && row < box.axes.size() && column < box.axes.size();
}

TransposePlan plan_transpose(const Box& box, const ReorderProblem& p, bool is_streamed) {
  TransposePlan plan{};
  plan.side = side_of(p);
  plan.moved_size = moved_size_of(p);
  plan.group = group_of(box, plan.moved_size);
  plan.extents.resize(box.axes.size(), 1);
  plan.buffer_stride.resize(box.axes.size(), 0);
  const int64_t group_bytes = plan.moved_size * plan.group, budget = kTileBytes / group_bytes;
  choose_rows_and_columns(box, plan);
  choose_extents(box, budget, plan);
  const int64_t lane = kLane / group_bytes;
  if (p.is_move() && plan.rows.size() > 1 && product(plan.columns, plan.extents) < lane &&
      product(plan.rows, plan.extents) >= lane) {
    // Short rows from anywhere are not read in vectors, so they are brought together first.
    plan.side = Side::kSrc;
  }
  add_axes_of_runs(box, budget, plan);
  lay_out_buffer(box, plan);
  choose_strides(box, plan);
  plan.is_streamed = is_streamed && (plan.side == Side::kDst || has_whole_lines(box, plan));
  return plan;
}

void reorder_tile(
    const TransposePlan& plan,
    const ReorderProblem& p,
    const Box& part,
    const char* src,
    char* dst) {
  alignas(64) char buffer[kTileBytes + kLane];
  switch (plan.side) {
    case Side::kNeither:
      return transpose_part(plan, part, src, dst);
    case Side::kSrc:
      reorder_rows(p, conversion(plan, part), src, buffer, /*is_streamed=*/false);
      return transpose_part(plan, part, buffer, dst);
    case Side::kDst:
      transpose_part(plan, part, src, buffer);
      return reorder_rows(p, conversion(plan, part), buffer, dst, plan.is_streamed);
  }
}

} // namespace torch_dnnl::reorder_cpu
