// The brgemm executor: one GEMM call for each block and chunk of k, with accumulators in memory
// between the calls.
#pragma once

#include <algorithm>

#include "conv/cpu/igemm/input_rows.h"
#include "conv/cpu/igemm/output.h"

namespace torch_dnnl {

template <class Gemm, class Rows, class Output>
class BrgemmExecutor {
  using A = typename Gemm::A;
  using C = typename Gemm::C;

 public:
  explicit BrgemmExecutor(const Igemm<Gemm, Output>& igemm)
      : p_(igemm.p), plan_(igemm.plan), weights_(igemm.weights), output_(igemm.output) {}

  void compute(
      const IgemmTask& task,
      InputRows<Gemm, Rows>& rows,
      const GemmWorkspace<Gemm>& own,
      const typename Output::Workspace& out) const {
    const int64_t pixels = task.pixels.count();
    const int64_t at_once = std::max<int64_t>(kGemmPixels / pixels, 1);
    const auto for_each_part = [&](const auto& f) {
      for (int64_t h = task.rows.begin; h < task.rows.end; h += at_once)
        f(Range{h, std::min(h + at_once, task.rows.end)});
    };
    const auto for_each_panel = [&](const auto& f) {
      for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
        f(Accumulators<C>{own.accumulators.data(), task.group, panel, pixels, pixels});
    };
    if (plan_.im2col_pitch > 0) {
      for_each_part([&](Range part) {
        rows.im2col(part, own.im2col.data());
        for_each_panel([&](const Accumulators<C>& acc) {
          multiply_im2col(acc, part.count(), own.im2col.data());
          output_.store(acc, task, part, out);
        });
      });
    } else {
      for_each_panel([&](const Accumulators<C>& acc) {
        for_each_part([&](Range part) {
          multiply_rows(acc, part, rows);
          output_.store(acc, task, part, out);
        });
      });
    }
  }

 private:
  // Whether the accumulators of a row have initial values now, or else begin with 0.
  bool initialize(const Accumulators<C>& acc, int64_t row) const {
    const C* const initial = output_.initial(acc);
    for (int64_t x = 0; initial != nullptr && x < acc.pixels; x++)
      std::copy_n(initial, plan_.columns(acc.panel), acc.at(row, x));
    return initial != nullptr;
  }

  void multiply_im2col(const Accumulators<C>& acc, int64_t rows, const A* im2col) const {
    bool has_values = false;
    for (int64_t row = 0; row < rows; row++)
      has_values = initialize(acc, row);
    for (int64_t i = 0; i < plan_.chunks; i++) {
      const Range k = plan_.k_range(i);
      Gemm::multiply(
          {rows * acc.pixels,
           plan_.columns(acc.panel),
           round_up(k.count(), Gemm::kPixelVnni),
           plan_.im2col_pitch,
           kPanelColumns,
           im2col + k.begin,
           weights_.at(acc.group, acc.panel, /*block=*/0, i),
           acc.data,
           /*accumulates=*/has_values || i > 0});
    }
  }

  // Skips outputs that meet only padding. Contiguous rows are one GEMM.
  void multiply_rows(const Accumulators<C>& acc, Range rows, InputRows<Gemm, Rows>& inputs) const {
    bool has_values[kGemmPixels];
    for (int64_t row = 0; row < rows.count(); row++)
      has_values[row] = initialize(acc, row);
    for (int64_t block = 0; block < plan_.blocks; block++) {
      const KernelTap tap = first_tap(p_, plan_, block);
      const Range inside = inputs.inside_image(tap);
      for (int64_t i = 0; i < plan_.chunks; i++) {
        const Range k = plan_.k_range(i);
        for (int64_t end, row = 0; row < rows.count(); row = end) {
          const int64_t h = rows.begin + row;
          const InputRow<A> input = inputs.row(h, tap);
          end = row + 1;
          const bool meets_image = input.data != nullptr && inside.end > inside.begin;
          const Range pixels = meets_image ? inside : Range{0, 0};
          const bool is_whole = pixels.count() == acc.pixels;
          if (!is_whole && i == 0) {
            if (!has_values[row])
              std::fill_n(acc.at(row), acc.pixels * kPanelColumns, C(0));
            has_values[row] = true;
            output_.compensate(acc, row, {0, pixels.begin}, block);
            output_.compensate(acc, row, {pixels.end, acc.pixels}, block);
          }
          if (!meets_image)
            continue;
          while (is_whole && end < rows.count() && has_values[end] == has_values[row] &&
                 inputs.follows(input, end - row, h, tap))
            end++;
          Gemm::multiply(
              {(end - row - 1) * acc.pixels + pixels.count(),
               plan_.columns(acc.panel),
               k.count(),
               input.step,
               kPanelColumns,
               input.data + pixels.begin * input.step + k.begin,
               weights_.at(acc.group, acc.panel, block, i),
               acc.at(row, pixels.begin),
               /*accumulates=*/has_values[row]});
          std::fill(has_values + row, has_values + end, true);
        }
      }
    }
  }

  const ConvProblem& p_;
  const IgemmPlan& plan_;
  const WeightPanels<Gemm>& weights_;
  const Output& output_;
};

} // namespace torch_dnnl
