// The CPU kernel of reorder for every pair of layouts whose digits have a common refinement.
//
// Each box of the problem is cut into tiles that fit in the cache, and tiles are distributed over
// the threads. Where the innermost axis is the same on both sides, a tile is computed row by row.
// Else it is computed with a transpose in registers: the elements are brought into the order of
// dst in the narrower of the two types, through a buffer, and converted before or after that.
#include "reorder/cpu/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "core/cpu/stream.h"
#include "core/math.h"
#include "reorder/cpu/rows.h"
#include "reorder/cpu/transpose/transposed_tile.h"
#include "reorder/decompose.h"

namespace torch_dnnl {
namespace reorder_cpu {
namespace {

// Elements for which a thread costs no more than it brings.
constexpr int64_t kTask = 32768;

// f(part) for the parts of a box whose axes are at most `tile` long.
template <class F>
void for_each_tile(const Box& box, const Extents& tile, const F& f) {
  int64_t tiles = 1, elements = 1;
  for (size_t a = 0; a < tile.size(); a++) {
    tiles *= ceil_div(box.axes[a].extent, tile[a]);
    elements *= tile[a];
  }
  at::parallel_for(0, tiles, kTask / elements + 1, [&](int64_t begin, int64_t end) {
    Box part = box;
    for (int64_t i = begin; i < end; i++) {
      part.offset = box.offset;
      Digits number{i};
      for (size_t a = tile.size(); a-- > 0;) {
        const int64_t first = number.next(ceil_div(box.axes[a].extent, tile[a])) * tile[a];
        part.axes[a].extent = std::min(tile[a], box.axes[a].extent - first);
        advance(part.offset, box.axes[a].stride, first);
      }
      f(part);
    }
    finish_streaming();
  });
}

// Whole inner axes: a few tiles for each thread.
Extents row_tiles(const Box& box) {
  Extents tile(box.axes.size(), 1);
  int64_t rest = std::max(kTask, box.elements() / (4 * at::get_num_threads()));
  for (size_t a = tile.size(); a-- > 0 && rest > 1;) {
    tile[a] = std::min(box.axes[a].extent, rest);
    rest /= tile[a];
  }
  return tile;
}

void run_box(const ReorderProblem& p, const Box& box) {
  const char* src = static_cast<const char*>(p.src);
  char* dst = static_cast<char*>(p.dst);
  const int64_t src_size = c10::elementSize(p.src_dtype), dst_size = c10::elementSize(p.dst_dtype);
  const auto tiled = [&](const Extents& tile, const auto& run) {
    for_each_tile(box, tile, [&](const Box& part) {
      run(part, src + part.offset[kSrc] * src_size, dst + part.offset[kDst] * dst_size);
    });
  };
  if (needs_transpose(box, p)) {
    const bool is_streamed = box.elements() * dst_size >= kStreamedTransposeBytes;
    const TransposePlan plan = plan_transpose(box, p, is_streamed);
    tiled(plan.extents, [&](const Box& part, const char* from, char* to) {
      reorder_tile(plan, p, part, from, to);
    });
  } else {
    const ReorderProblem::Operand& sum = p.operand[kAccumulate];
    const int64_t read = src_size + (sum.present ? c10::elementSize(sum.dtype) : 0);
    const bool is_streamed = box.elements() * (read + dst_size) >= kStreamedInOrderBytes;
    tiled(row_tiles(box), [&](Box part, const char* from, char* to) {
      merge(part.axes);
      reorder_rows(p, part, from, to, is_streamed);
    });
  }
}

void fill_with_zero(const ReorderProblem& p, const Box& box) {
  const int64_t size = c10::elementSize(p.dst_dtype);
  char* dst = static_cast<char*>(p.dst);
  for_each_tile(box, row_tiles(box), [&](const Box& part) {
    const Axis& inner = part.axes.back();
    const auto outer = c10::ArrayRef<Axis>(part.axes).slice(0, part.axes.size() - 1);
    const bool dense = inner.stride[kDst] == 1;
    for_each_position(outer, part.offset, [&](const Offsets& at) {
      char* row = dst + at[kDst] * size;
      if (dense) {
        std::memset(row, 0, inner.extent * size);
        return;
      }
      for (int64_t i = 0; i < inner.extent; i++)
        std::memset(row + i * inner.stride[kDst] * size, 0, size);
    });
  });
}

} // namespace
} // namespace reorder_cpu

bool supports_boxes(const ReorderProblem& p) {
  return boxes::has_boxes(p);
}

void run_boxes(const ReorderProblem& p) {
  using namespace reorder_cpu;
  for (const Box& box : decompose(p))
    box.is_padding ? fill_with_zero(p, box) : run_box(p, box);
}

} // namespace torch_dnnl
