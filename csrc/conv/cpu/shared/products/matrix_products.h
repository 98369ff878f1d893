// Tasks whose sums stay in the tiles of a matrix unit.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/shared/products/lines/joined_rows.h"
#include "conv/cpu/shared/products/matrix_tiles.h"
#include "conv/cpu/shared/products/weights.h"

namespace torch_dnnl {

template <class Products, class Lines, class Ends>
class MatrixProducts {
  using Left = typename Products::Left;
  using Right = typename Products::Right;
  using Sum = typename Products::Sum;
  using Part = RowsOfProduct<Left>;

 public:
  MatrixProducts(
      const ConvProblem& p,
      const ProductPlan& plan,
      const ProductWeights<Products>& weights,
      const Ends& ends)
      : p_(p), plan_(plan), weights_(weights), ends_(ends) {}

  // Memory of a thread, and its matrix unit.
  struct Workspace {
    explicit Workspace(const ProductPlan& plan)
        : sums(pixels_at_once(plan) * kProductColumns),
          copied(pixels_at_once(plan) * plan.copy_pitch + kOvercopy) {}
    Scratch<Sum> sums;
    Scratch<Left> copied;
    std::vector<const Left*> a;
    std::vector<const Right*> b;
    MatrixUnit unit;
  };

  void compute(
      const RowTask& task,
      TaskLines<Products, Lines>& lines,
      Workspace& own,
      const typename Ends::Workspace& ends) const {
    if (plan_.copy_pitch == 0)
      return multiply_panels(task, JoinedRows(p_, plan_, task, lines).parts(), own, ends);
    const int64_t pixels = task.pixels.count(), rows = std::max<int64_t>(kTilePixels / pixels, 1);
    for (int64_t end, h = task.rows.begin; h < task.rows.end; h = end) {
      end = std::min(h + rows, task.rows.end);
      lines.copy_taps({h, end}, own.copied.data());
      const Part part{{h, end}, pixels, plan_.copy_pitch, {own.copied.data()}, {0}, {}};
      multiply_panels(task, {part}, own, ends);
    }
  }

 private:
  static int64_t pixels_at_once(const ProductPlan& plan) {
    return plan.in_tiles ? std::max(round_up(plan.width, kTileRows), kTilePixels) : 0;
  }

  // Weights that stay in the first-level cache meet the pixels of two tiles at a time, whose sums
  // stay there as well; else each panel meets all pixels.
  void multiply_panels(
      const RowTask& task,
      const std::vector<Part>& parts,
      Workspace& own,
      const typename Ends::Workspace& ends) const {
    constexpr int64_t two_tiles = 2 * kTileRows;
    if (plan_.blocks * plan_.depth > kCachedTerms<Products>) {
      for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
        for (const Part& part : parts)
          multiply(task, part, {0, task.pixels.count()}, panel, own, ends);
      return;
    }
    for (const Part& part : parts) {
      const int64_t at_once = part.rows.count() == 1 ? two_tiles : task.pixels.count();
      for (int64_t end, x = 0; x < task.pixels.count(); x = end) {
        end = std::min(x + at_once, task.pixels.count());
        for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
          multiply(task, part, {x, end}, panel, own, ends);
      }
    }
  }

  // pixels: of the task.
  void multiply(
      const RowTask& task,
      const Part& part,
      Range pixels,
      int64_t panel,
      Workspace& own,
      const typename Ends::Workspace& ends) const {
    const int64_t rows = part.rows.count(), count = pixels.count();
    const PanelSums<Sum> sums{
        own.sums.data(), task.group, panel, count, std::max(part.pitch, count)};
    own.a.clear();
    own.b.clear();
    for (size_t i = 0; i < part.a.size(); i++) {
      own.a.push_back(part.a[i] + pixels.begin * part.a_row);
      own.b.push_back(weights_.at(task.group, panel, part.blocks[i], /*chunk=*/0));
    }
    RowTask some = task;
    some.pixels = {task.pixels.begin + pixels.begin, task.pixels.begin + pixels.end};
    ends_.fetch_outputs(sums, some, part.rows);
    // Inputs of one tap are read once: those of the next pixels are fetched meanwhile.
    const bool fetches = panel == task.panels.begin && plan_.copy_pitch == 0 && plan_.blocks == 1;
    multiply_in_tiles(
        TileProduct<Products>{
            (rows - 1) * sums.pitch + count,
            plan_.columns(panel),
            round_up(plan_.depth, plan_.terms),
            part.a_row,
            std::ssize(own.a),
            own.a.data(),
            own.b.data()},
        ends_.first(sums),
        fetches ? count : 0,
        sums.data,
        own.unit);
    for (int64_t block : part.skipped)
      for (int64_t row = 0; row < rows; row++)
        ends_.skip(sums, row, {0, count}, block);
    ends_.store(sums, some, part.rows, ends);
  }

  const ConvProblem& p_;
  const ProductPlan& plan_;
  const ProductWeights<Products>& weights_;
  const Ends& ends_;
};

} // namespace torch_dnnl
