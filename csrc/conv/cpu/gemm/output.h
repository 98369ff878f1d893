// The blocks of a matrix product, and how their sums become the result.
#pragma once

#include <algorithm>

#include "conv/cpu/gemm/plan.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/pixels.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// A block of a group's out. `index`: among the blocks of all groups.
struct GemmBlock {
  int64_t index, group;
  Range rows, columns;
};

inline GemmBlock
gemm_block(const GemmView& v, const GemmBlocking& b, int64_t group, int64_t row, int64_t column) {
  return {
      (group * b.row_blocks + row) * b.column_blocks + column,
      group,
      nth_range(row, b.rows, v.rows),
      nth_range(column, b.columns, v.columns)};
}

// Where the rows and columns of a block are in the result, from its group on.
struct GemmOffsets {
  explicit GemmOffsets(const GemmBlocking& b) : rows(b.rows), columns(b.columns) {}
  void select(const GemmView& view, const GemmBlock& block) const {
    view.out.rows.offsets(block.rows, rows.data());
    view.out.columns.offsets(block.columns, columns.data());
  }
  Scratch<int64_t> rows, columns;
};

// Sums of a block lie in panels of columns: [panel][row][column of the panel].
template <class T>
class GemmOutput {
 public:
  using C = compute_t<T>;

  GemmOutput(const ConvProblem& p, const GemmView& view, bool keeps_sums)
      : p_(p), view_(view), are_final_(!keeps_sums && epilogue_.is_clamp()) {}

  // The bounds of a panel's last sums.
  Bounds<C> bounds() const {
    return are_final_ ? epilogue_.bounds() : Bounds<C>{};
  }

  // Whether the sums of a panel are written where results are, as they are completed: panels of
  // whole vectors, of rows at one distance and of columns next to each other.
  bool is_direct(const GemmBlock& block, int64_t column, const GemmOffsets& offsets) const {
    const int64_t columns = std::min(kPanel<C>, block.columns.count() - column);
    return std::is_same_v<T, C> && are_final_ && columns % kLanes<C> == 0 &&
        is_run({offsets.columns.data() + column, size_t(columns)}) &&
        are_even({offsets.rows.data(), size_t(block.rows.count())});
  }

  T* group(int64_t group) const {
    return static_cast<T*>(p_.out) + group * view_.out.group_step;
  }

  // Stores what is_direct() has not.
  void store(const GemmBlock& block, const GemmOffsets& offsets, const C* sums) const {
    if ((!epilogue_.is_empty() && !are_final_) || are_turned_)
      return complete(block, sums);
    const int64_t *row = offsets.rows.data(), *column = offsets.columns.data();
    const int64_t rows = block.rows.count(), columns = block.columns.count();
    const auto next = [&](int64_t j) { return std::min(j + kPanel<C>, columns); };
    for (int64_t end, first = 0; first < columns; first = end) {
      end = next(first);
      if (is_direct(block, first, offsets))
        continue;
      while (end < columns && !is_direct(block, end, offsets))
        end = next(end);
      for (int64_t run, at = first; at < end; at += run) {
        run = run_length({column + at, size_t(end - at)});
        for (int64_t i = 0; i < rows; i++) {
          T* to = group(block.group) + row[i] + column[at];
          store_run(sums + i * kPanel<C>, rows * kPanel<C>, at, run, to);
        }
      }
    }
  }

 private:
  // By runs of pixels in one row of the result, or in joined rows. Src, if that is the result, has
  // the sizes of dst.
  void complete(const GemmBlock& block, const C* sums) const {
    const bool is_transposed = view_.is_transposed; // and rows are pixels
    const Range& pixels = is_transposed ? block.rows : block.columns;
    const int64_t* size = p_.dst_size;
    const int64_t longest = size[2] * (epilogue_.has_joined_rows(size[2]) ? size[1] : 1);
    OutputRun run;
    for (int64_t pixel = pixels.begin; pixel < pixels.end; pixel += run.pixels) {
      Digits digits{pixel};
      run.w = digits.next(size[2]), run.h = digits.next(size[1]), run.d = digits.next(size[0]);
      run.n = digits.rest;
      run.pixels = std::min(pixels.end - pixel, longest - pixel % longest);
      if (is_transposed)
        complete_pixels(block, sums + (pixel - pixels.begin) * kPanel<C>, run);
      else if (are_turned_)
        transpose_lines(block, sums, pixel - pixels.begin, run);
      else
        complete_lines(block, sums, pixel - pixels.begin, run);
    }
  }

  // Rows of sums are pixels.
  void complete_pixels(const GemmBlock& block, const C* sums, OutputRun run) const {
    run.channel = block.group * out_channels_ + block.columns.begin;
    run.channels = block.columns.count();
    epilogue_.store_panels(sums, block.rows.count() * kPanel<C>, run);
  }

  // Rows of sums are channels, columns from `first` on the pixels: those of the panel in which they
  // begin, then all others.
  void complete_lines(const GemmBlock& block, const C* sums, int64_t first, OutputRun run) const {
    run.channel = block.group * out_channels_ + block.rows.begin;
    run.channels = block.rows.count();
    const int64_t end = first + run.pixels, panel_step = kPanel<C> * run.channels;
    for (int64_t j = first; j < end; j += run.pixels, run.w += run.pixels) {
      const int64_t in_panel = j % kPanel<C>;
      run.pixels = in_panel == 0 ? end - j : std::min(end - j, kPanel<C> - in_panel);
      const C* from = sums + j / kPanel<C> * panel_step + in_panel;
      epilogue_.store_channels(from, kPanel<C>, run, panel_step);
    }
  }

  // The same where channels lie next to each other in the result.
  void transpose_lines(const GemmBlock& block, const C* sums, int64_t first, OutputRun run) const {
    run.channel = block.group * out_channels_ + block.rows.begin;
    run.channels = block.rows.count();
    const int64_t end = first + run.pixels, pitch = round_up(run.channels, kLanes<C>);
    const Scratch<C> lanes(kPanel<C> * pitch);
    for (int64_t j = first; j < end; j += run.pixels, run.w += run.pixels) {
      run.pixels = std::min(end - j, kPanel<C> - j % kPanel<C>);
      const C* from = sums + j / kPanel<C> * kPanel<C> * run.channels + j % kPanel<C>;
      load_pixels<C>(
          ImageRun<const C>{from, run.channels, run.pixels, kPanel<C>, 1},
          LaneRun<C>{lanes.data(), kLanes<C>, pitch});
      epilogue_.store_pixels(lanes.data(), kLanes<C>, pitch, run);
    }
  }

  // Columns [first, first + n) of a row whose panels are `step` apart.
  template <class U>
  static void store_run(const C* row, int64_t step, int64_t first, int64_t n, U* to) {
    for (int64_t count, j = first, end = first + n; j < end; j += count, to += count) {
      const C* from = row + j / kPanel<C> * step + j % kPanel<C>;
      count = std::min(end - j, kPanel<C> - j % kPanel<C>);
      // In vectors, as g++ makes `rep movs` of a copy of up to a panel, which takes long to start.
      for (int64_t k = 0; k < count; k += kLanes<C>)
        store_up_to<C>(to + k, load_up_to<C>(from + k, count - k), count - k);
    }
  }

  const ConvProblem& p_;
  const GemmView& view_;
  const Epilogue<T> epilogue_{p_};
  const int64_t out_channels_ = GatherImages{p_}.out_channels;
  const bool are_final_; // sums of one call, which are clamped at most
  // Neighbours in the result are rows of sums.
  const bool are_turned_ =
      !view_.sums_pixels() && view_.out.rows.stride[3] == 1 && view_.out.columns.stride[3] != 1;
};

} // namespace torch_dnnl
