// How the rows kernel makes an image: which pass comes first, in which pieces, from which bytes. A
// plan is a plain value; a pure function makes it of a problem and the tables of its axes.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

#include "resample/cpu/row_passes.h"
#include "resample/problem.h"

namespace torch_dnnl {

enum class RowOrder : int8_t {
  add_first,    // source rows are added up, then the taps are applied to their sum
  in_registers, // the same in one pass, where the type of the images has one
  taps_first,   // the taps are applied to each source row, then the results are added up
};

// From an element of an image to its neighbours.
struct RowSteps {
  int64_t n, c, d, h, w; // bytes
  int64_t element;       // bytes
};

// A part of every output row.
struct RowPiece {
  int64_t begin, size; // pixels of the output row
  int64_t low, high;   // pixels of a source row that are read: [low, high)
};

// Source pixels may be read beyond the end of a piece for as long as the widest window.
template <class C>
inline constexpr int64_t kSlack = 4 * kLanes<C>; // elements

template <class C>
struct RowPlan {
  const char *src, *src_end; // the source image, and the end of its last element
  char* dst;
  RowSteps src_steps, dst_steps;
  int64_t n, images, planes, rows; // of dst; images of a sample, planes of an image
  int64_t channels;                // of a pixel of a row: 1, or all
  SharedTable<C> d, h, w;          // the tables of the axes

  RowOrder order = RowOrder::add_first;
  std::shared_ptr<const Taps<C>> taps;  // null: pixels have many channels, which share the table
  c10::SmallVector<RowPiece, 2> pieces; // one, of the whole row, in the order taps_first

  bool only_moves;           // elements are copied, whatever they stand for
  bool has_one_type;         // source and result
  bool source_is_line;       // rows of the source need no conversion
  bool source_is_bytes;      // unsigned
  int64_t line_bytes;        // of an element of a line
  Target target;             // image or stream
  C empty;                   // what outputs give that read nothing
  uint64_t empty_in_dst = 0; // the same as its first bytes, in the type of dst

  // Whether output row o is made of the same source rows as the one above it.
  bool repeats_row(int64_t o) const {
    return o > 0 && h->start[o] == h->start[o - 1] && h->count[o] == h->count[o - 1];
  }
  // Whether the taps are applied to a row of bytes.
  bool takes_bytes() const {
    return taps != nullptr && taps->window == Window::bytes;
  }
};

// `only_moves`: no element is weighted or converted.
template <class C>
RowPlan<C> plan_rows(const ResampleProblem& p, const Tables<C>& tables, bool only_moves);

} // namespace torch_dnnl
