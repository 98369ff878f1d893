// A tile of a box whose innermost axes differ between src and dst, or the next ones if the
// innermost one is the same and so short that its elements can be moved as one ("OIhw4i16o4i" from
// "Ohwi").
#pragma once

#include <vector>

#include "reorder/cpu/rows.h"

namespace torch_dnnl::reorder_cpu {

using Extents = c10::SmallVector<int64_t, 8>; // along the axes of a box

// Whether dst is contiguous along one axis and src along another.
bool needs_transpose(const Box& box, const ReorderProblem& p);

// What the transpose reads and writes, where the conversion is.
enum class Side {
  kNeither, // src to dst: elements are moved
  kSrc,     // a buffer of converted elements to dst
  kDst,     // src to a buffer, that is converted then
};

class TransposedTile {
 public:
  TransposedTile(const Box& box, const ReorderProblem& p, const Rows& rows, bool is_streamed);

  // Of a tile, along each axis.
  const Extents& extents() const {
    return extents_;
  }

  // `part`: extents and offsets of a tile or, at an end, of the beginning of one. `src` and `dst`
  // are where it begins.
  void run(const Box& part, const char* src, char* dst) const;

 private:
  using List = c10::SmallVector<size_t, 8>; // of axes

  bool extend(List& list, Array array, const List& other) const;
  void choose_rows_and_columns();
  void choose_extents();
  void add_axes_of_runs();
  void choose_strides();
  bool has_whole_lines() const;
  std::vector<int64_t> offsets(const List& list, const Extents& stride) const;
  Box conversion(const Box& part) const;
  void transpose_part(const Box& part, const char* from, char* to) const;

  const Box& box_;
  const Rows& rows_;
  Side side_;
  int64_t moved_size_; // of the elements that are transposed
  int64_t group_;      // of elements that are moved as one: the innermost axis, or 1
  int64_t budget_;     // groups in a tile
  bool is_streamed_;
  Extents extents_;
  List rows_of_tile_, columns_, others_; // axes of the tile, innermost first, without that one
  List buffer_axes_;                     // the same, outermost first in the buffer
  Extents buffer_stride_;                // along the axes of the box, in elements
  Axes loops_;                           // over the others, with strides in bytes, without extents
  std::vector<int64_t> row_offset_, column_offset_;
  int64_t row_step_, column_step_; // if they are one axis; else, of columns, 0
};

} // namespace torch_dnnl::reorder_cpu
