// The panels that a product reads of one of its two matrices: packed once for all tasks, packed by
// the task that reads them, or, of a left matrix, the rows where they lie.
#pragma once

#include <algorithm>

#include "conv/cpu/gemm/blocking.h"
#include "conv/cpu/gemm/view.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// Panels `step` apart. Element (i, d) of a panel is at i * row + d * column; panels of the right
// have rows next to each other.
template <class C>
struct GemmPanels {
  const C* data;
  int64_t step, row, column;
};

// Memory of one thread, for panels of a block in one step of the depth.
template <class C>
struct GemmWorkspace {
  Scratch<C> panels;
  Scratch<int64_t> rows, depth; // offsets
};

enum class GemmSide { left, right };

template <class T, GemmSide side>
class GemmOperand {
 public:
  using C = compute_t<T>;
  static constexpr bool kIsLeft = side == GemmSide::left;
  static constexpr int64_t kWidth = kIsLeft ? kGemmRows : kPanel<C>;

  GemmOperand(const GemmView& view, const GemmBlocking& b) : view_(view), b_(b) {}

  GemmWorkspace<C> workspace() const {
    const int64_t rows = is_shared_ ? 0 : kIsLeft ? b_.rows : b_.columns;
    const int64_t depth = is_shared_ ? 0 : kGemmDepth;
    return {Scratch<C>(size(rows, depth)), Scratch<int64_t>(rows), Scratch<int64_t>(depth)};
  }

  // Packs these rows and depth of all groups, if the matrix is shared and they are not packed yet.
  void share(Range rows, Range depth) {
    if (!is_shared_ || (rows == rows_ && depth == depth_))
      return;
    rows_ = rows;
    depth_ = depth;
    constexpr int64_t at_once = kTaskRows / kWidth * kWidth;
    const int64_t n = rows.count(), tasks = ceil_div(n, at_once), terms = depth.count();
    parallel_tasks(view_.groups * tasks, 16 * at_once * terms, [&](int64_t begin, int64_t end) {
      const Scratch<int64_t> row_offsets(at_once), depth_offsets(terms);
      matrix_.columns.offsets(depth.begin, terms, depth_offsets.data());
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / tasks, first = task % tasks * at_once;
        const int64_t count = std::min(at_once, n - first);
        matrix_.rows.offsets(rows.begin + first, count, row_offsets.data());
        C* to = shared_at(group, first);
        pack(group, {row_offsets.data(), size_t(count)}, {depth_offsets.data(), size_t(terms)}, to);
      }
    });
  }

  // Panels of these rows and depth of a group: part of what is shared, or else packed into `own`.
  GemmPanels<C> panels(int64_t group, Range rows, Range depth, const GemmWorkspace<C>& own) const {
    if (is_shared_) {
      const C* first = shared_at(group, rows.begin - rows_.begin);
      return {first + (depth.begin - depth_.begin) * kWidth, step(depth_.count()), 1, kWidth};
    }
    const int64_t n = rows.count(), terms = depth.count();
    matrix_.rows.offsets(rows.begin, n, own.rows.data());
    matrix_.columns.offsets(depth.begin, terms, own.depth.data());
    const Offsets row(own.rows.data(), n), column(own.depth.data(), terms);
    if constexpr (kIsLeft && std::is_same_v<T, C>) {
      if (are_even(row) && is_run(column)) {
        const int64_t row_step = n > 1 ? row[1] - row[0] : 0;
        return {data(group) + row[0] + column[0], row_step * kGemmRows, row_step, 1};
      }
    }
    pack(group, row, column, own.panels.data());
    return {own.panels.data(), step(terms), 1, kWidth};
  }

 private:
  static constexpr int64_t kTaskRows = 128; // that a task packs for all tasks

  // Panels begin a few lines apart from a power of two, for they are written side by side.
  static int64_t step(int64_t depth) {
    return kWidth * depth + 16;
  }
  static int64_t size(int64_t rows, int64_t depth) {
    return ceil_div(rows, kWidth) * step(depth);
  }

  const T* data(int64_t group) const {
    return static_cast<const T*>(matrix_.data) + group * matrix_.group_step;
  }
  // [group][panel][depth][row of the panel]
  C* shared_at(int64_t group, int64_t row) const {
    const int64_t depth = depth_.count();
    return shared_.data() + group * size(rows_.count(), depth) + size(row, depth);
  }

  void pack(int64_t group, Offsets rows, Offsets depth, C* to) const {
    pack_panels<kWidth>(data(group), rows, depth, to, step(std::ssize(depth)));
  }

  const GemmView& view_;
  const GemmBlocking& b_;
  const GemmMatrix& matrix_ = kIsLeft ? view_.left : view_.right;
  const bool is_shared_ = kIsLeft ? b_.shares_left : b_.shares_right;
  const int64_t part_rows_ = kIsLeft ? b_.part_rows : b_.part_columns;
  const Scratch<C> shared_{is_shared_ ? view_.groups * size(part_rows_, b_.part_depth) : 0};
  Range rows_{}, depth_{}; // that are packed
};

} // namespace torch_dnnl
