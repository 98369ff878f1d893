// Rows of a task whose inputs follow each other, as one product: short rows fill tiles together.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/shared/products/lines/task_lines.h"

namespace torch_dnnl {

// Rows of outputs that are one product. Between the inputs of two rows lie those of some pixels
// that become sums which nobody needs.
template <class Left>
struct RowsOfProduct {
  Range rows;
  int64_t pitch; // pixels from a row to the next
  int64_t a_row;
  std::vector<const Left*> a; // the inputs of the first row, of the blocks that meet data
  std::vector<int64_t> blocks, skipped;
};

template <class Products, class Lines>
class JoinedRows {
  using Left = typename Products::Left;
  using Part = RowsOfProduct<Left>;

 public:
  JoinedRows(
      const ConvProblem& p,
      const ProductPlan& plan,
      const RowTask& task,
      TaskLines<Products, Lines>& lines)
      : p_(p), plan_(plan), task_(task), lines_(lines) {}

  // All rows of the task.
  std::vector<Part> parts() const {
    std::vector<Part> parts;
    for (int64_t h = task_.rows.begin; h < task_.rows.end; h = parts.back().rows.end) {
      parts.push_back(row(h));
      join(parts.back());
    }
    return parts;
  }

 private:
  struct Inputs {
    const Left* data; // null: pads
    int64_t step;     // from those of a pixel to the next
  };

  Inputs inputs(int64_t block, int64_t h) const {
    Digits digits{block};
    const int64_t kw = digits.next(plan_.block == ProductPlan::of_tap ? p_.kernel[2] : 1);
    const int64_t kh = digits.next(p_.kernel[1]);
    const InputLine<Left> line = lines_.line(h, {digits.rest, kh, kw});
    return {line.data == nullptr ? nullptr : line.data - line.missing * plan_.ic, line.step};
  }

  Part row(int64_t h) const {
    Part part{{h, h + 1}, 0, 0, {}, {}, {}};
    for (int64_t block = 0; block < plan_.blocks; block++) {
      const auto [data, step] = inputs(block, h);
      if (data == nullptr) {
        part.skipped.push_back(block);
        continue;
      }
      part.a.push_back(data);
      part.blocks.push_back(block);
      part.a_row = step;
    }
    return part;
  }
  // As many rows as fill pairs of tiles best.
  void join(Part& part) const {
    const int64_t pixels = task_.pixels.count(), first = part.rows.begin;
    const auto tiles = [&](int64_t rows) {
      return round_up(ceil_div((rows - 1) * part.pitch + pixels, kTileRows), 2);
    };
    if (part.a_row == 0 || first + 1 == task_.rows.end)
      return;
    const Left* const next = inputs(part.blocks[0], first + 1).data;
    if (next == nullptr || (next - part.a[0]) % part.a_row != 0)
      return;
    part.pitch = (next - part.a[0]) / part.a_row;
    for (int64_t rows = 2; part.pitch >= pixels && first + rows <= task_.rows.end; rows++) {
      if (tiles(rows) * kTileRows > kTilePixels || !follows(part, rows - 1))
        break;
      if (tiles(rows) * part.rows.count() <= tiles(part.rows.count()) * rows)
        part.rows.end = first + rows;
    }
  }
  // Whether the inputs of the row so many rows behind the first one are where they have to be.
  bool follows(const Part& part, int64_t after) const {
    const int64_t h = part.rows.begin + after;
    for (size_t i = 0; i < part.a.size(); i++) {
      const auto [data, step] = inputs(part.blocks[i], h);
      if (data != part.a[i] + after * part.pitch * part.a_row || step != part.a_row)
        return false;
    }
    return std::none_of(part.skipped.begin(), part.skipped.end(), [&](int64_t block) {
      return inputs(block, h).data != nullptr;
    });
  }

  const ConvProblem& p_;
  const ProductPlan& plan_;
  const RowTask& task_;
  TaskLines<Products, Lines>& lines_;
};

} // namespace torch_dnnl
