// Tasks whose sums stay in registers.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/shared/products/memory_products.h"
#include "conv/cpu/shared/products/register_tiles.h"

namespace torch_dnnl {

// Outputs of a panel, from the first pixel of a row of a task on, and the blocks of weights that
// meet pads only, whose products are not in the sums.
struct TileRun {
  const RowTask& task;
  int64_t row, panel;
  const std::vector<int64_t>& skipped;
};

template <class Products, class Lines, class Ends>
class RegisterProducts {
  using Left = typename Products::Left;

 public:
  RegisterProducts(
      const ConvProblem& p,
      const ProductPlan& plan,
      const ProductWeights<Products>& weights,
      const Ends& ends)
      : p_(p), plan_(plan), weights_(weights), ends_(ends) {}

  // No products of single taps leave out pixels.
  bool are_possible() const {
    return are_possible_;
  }

  // copied: memory for taps, if the plan copies them.
  void compute(
      const RowTask& task,
      TaskLines<Products, Lines>& lines,
      Left* copied,
      const typename Ends::Workspace& own) const {
    if (plan_.copy_pitch > 0) {
      Operands operands(1);
      for (int64_t end, h = task.rows.begin; h < task.rows.end; h = end) {
        end = std::min(h + rows_at_once(task), task.rows.end);
        lines.copy_taps({h, end}, copied);
        operands.set(0, copied, plan_.copy_pitch);
        for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
          multiply(task, {h, end}, panel, operands, own);
      }
      return;
    }
    Operands operands(plan_.blocks);
    for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++) {
      for (int64_t end, h = task.rows.begin; h < task.rows.end; h = end) {
        end = h + select_lines(task, h, lines, operands);
        multiply(task, {h, end}, panel, operands, own);
      }
    }
  }

 private:
  // The inputs of each block, null where it meets pads only.
  struct Operands {
    explicit Operands(int64_t blocks) : a(blocks), met_a(blocks), met_b(blocks) {}
    void set(int64_t block, const Left* from, int64_t step) {
      a[block] = from;
      if (from != nullptr)
        a_row = step;
    }
    std::vector<const Left*> a, met_a;
    std::vector<const typename Products::Right*> met_b;
    std::vector<int64_t> skipped;
    int64_t a_row = 0;
  };

  int64_t rows_at_once(const RowTask& task) const {
    return are_joined_ ? std::max<int64_t>(kPixelsAtOnce / task.pixels.count(), 1) : 1;
  }

  // The inputs of row h, and of how many rows from it on, that follow one another.
  int64_t select_lines(
      const RowTask& task,
      int64_t h,
      TaskLines<Products, Lines>& lines,
      Operands& operands) const {
    InputLine<Left> line{};
    for (int64_t block = 0; block < plan_.blocks; block++) {
      line = lines.line(h, {block / p_.kernel[1], block % p_.kernel[1], 0});
      const int64_t missing = line.missing * plan_.ic;
      operands.set(block, line.data == nullptr ? nullptr : line.data - missing, line.step);
    }
    const int64_t most = std::min(h + rows_at_once(task), task.rows.end);
    int64_t end = h + 1;
    while (plan_.blocks == 1 && line.data != nullptr && end < most &&
           lines.follows(line, end - h, h, {0, 0, 0}))
      end++;
    return end - h;
  }

  void multiply(
      const RowTask& task,
      Range rows,
      int64_t panel,
      Operands& operands,
      const typename Ends::Workspace& own) const {
    int64_t met = 0;
    operands.skipped.clear();
    for (int64_t block = 0; block < std::ssize(operands.a); block++) {
      if (operands.a[block] == nullptr) {
        operands.skipped.push_back(block);
        continue;
      }
      operands.met_a[met] = operands.a[block];
      operands.met_b[met++] = weights_.at(task.group, panel, block, /*chunk=*/0);
    }
    const TileProduct<Products> product{
        rows.count() * task.pixels.count(),
        plan_.columns(panel),
        plan_.depth,
        operands.a_row,
        met,
        operands.met_a.data(),
        operands.met_b.data()};
    ends_.multiply(product, TileRun{task, rows.begin, panel, operands.skipped}, own);
  }

  bool has_joined_rows() const {
    const auto are_joined = [&](const int64_t* stride) {
      return stride[3] == p_.dst_size[2] * stride[4];
    };
    return plan_.widths == 1 && are_joined(p_.dst_stride) &&
        (p_.residual == nullptr || are_joined(p_.residual_stride));
  }

  const ConvProblem& p_;
  const ProductPlan& plan_;
  const ProductWeights<Products>& weights_;
  const Ends& ends_;
  const bool are_possible_ =
      ends_.takes_tiles() && plan_.block != ProductPlan::of_tap && plan_.oc % kProductColumns == 0;
  const bool are_joined_ = has_joined_rows();
};

} // namespace torch_dnnl
