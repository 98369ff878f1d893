// The transpose of a tile of a box whose innermost axes differ between src and dst, or the next
// ones if the innermost one is the same and so short that its elements can be moved as one
// ("OIhw4i16o4i" from "Ohwi").
#pragma once

#include <vector>

#include "reorder/cpu/rows.h"

namespace torch_dnnl::reorder_cpu {

using Extents = c10::SmallVector<int64_t, 8>; // along the axes of a box
using AxisList = c10::SmallVector<size_t, 8>; // numbers of axes of a box

// Whether dst is contiguous along one axis and src along another.
bool needs_transpose(const Box& box, const ReorderProblem& p);

// What the transpose reads and writes, where the conversion is.
enum class Side {
  kNeither, // src to dst: elements are moved
  kSrc,     // a buffer of converted elements to dst
  kDst,     // src to a buffer, that is converted then
};

// How the tiles of a box are transposed.
struct TransposePlan {
  Side side;
  int64_t moved_size; // bytes of an element that is transposed
  int64_t group;      // elements that are moved as one: the innermost axis, or 1
  bool is_streamed;
  Extents extents;                // of a tile, along each axis
  AxisList rows, columns, others; // axes of the tile, innermost first, without that of the group
  AxisList buffer_axes;           // the same, outermost first in the buffer
  Extents buffer_stride;          // along the axes of the box, in elements
  Axes loops;                     // over the others, with strides in bytes, without extents
  std::vector<int64_t> row_offset, column_offset; // bytes
  int64_t row_step, column_step; // bytes, if they are one axis; else, of columns, 0
};

TransposePlan plan_transpose(const Box& box, const ReorderProblem& p, bool is_streamed);

// `part`: extents and offsets of a tile or, at an end, of the beginning of one. `src` and `dst` are
// where it begins.
void reorder_tile(
    const TransposePlan& plan,
    const ReorderProblem& p,
    const Box& part,
    const char* src,
    char* dst);

} // namespace torch_dnnl::reorder_cpu
