// Tasks whose sums are in memory between the products of blocks of weights.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/products/lines/task_lines.h"
#include "conv/cpu/shared/products/weights.h"

namespace torch_dnnl {

// Pixels whose sums of a panel, or copied taps, are in the first-level cache.
inline constexpr int64_t kPixelsAtOnce = 96;

template <class Products, class Lines, class Ends>
class MemoryProducts {
  using Left = typename Products::Left;
  using Sum = typename Products::Sum;

 public:
  // Memory of a thread.
  struct Workspace {
    explicit Workspace(const ProductPlan& plan)
        : sums(pixels_at_once(plan) * kProductColumns),
          copied(pixels_at_once(plan) * plan.copy_pitch + kOvercopy) {}
    Scratch<Sum> sums;
    Scratch<Left> copied;
  };

  MemoryProducts(
      const ConvProblem& p,
      const ProductPlan& plan,
      const ProductWeights<Products>& weights,
      const Ends& ends)
      : p_(p), plan_(plan), weights_(weights), ends_(ends) {}

  static int64_t pixels_at_once(const ProductPlan& plan) {
    return std::max(plan.width, kPixelsAtOnce);
  }

  void compute(
      const RowTask& task,
      TaskLines<Products, Lines>& lines,
      const Workspace& own,
      const typename Ends::Workspace& ends) const {
    const int64_t at_once = std::max<int64_t>(kPixelsAtOnce / task.pixels.count(), 1);
    const auto for_each_part = [&](const auto& f) {
      for (int64_t h = task.rows.begin; h < task.rows.end; h += at_once)
        f(Range{h, std::min(h + at_once, task.rows.end)});
    };
    const auto for_each_panel = [&](const auto& f) {
      for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
        f(PanelSums<Sum>{
            own.sums.data(), task.group, panel, task.pixels.count(), task.pixels.count()});
    };
    if (plan_.copy_pitch > 0) {
      for_each_part([&](Range rows) {
        lines.copy_taps(rows, own.copied.data());
        for_each_panel([&](const PanelSums<Sum>& sums) {
          multiply_copied(sums, rows.count(), own.copied.data());
          ends_.store(sums, task, rows, ends);
        });
      });
    } else {
      for_each_panel([&](const PanelSums<Sum>& sums) {
        for_each_part([&](Range rows) {
          multiply_lines(sums, rows, lines);
          ends_.store(sums, task, rows, ends);
        });
      });
    }
  }

 private:
  // Writes what the sums of a row begin with, if anything.
  bool begin(const PanelSums<Sum>& sums, int64_t row) const {
    const Sum* const first = ends_.first(sums);
    for (int64_t x = 0; first != nullptr && x < sums.pixels; x++)
      std::copy_n(first, plan_.columns(sums.panel), sums.at(row, x));
    return first != nullptr;
  }

  void multiply_copied(const PanelSums<Sum>& sums, int64_t rows, const Left* copied) const {
    bool has_sums = false;
    for (int64_t row = 0; row < rows; row++)
      has_sums = begin(sums, row);
    for (int64_t i = 0; i < plan_.chunks; i++) {
      const Range chunk = plan_.chunk_range(i);
      Products::multiply(
          {rows * sums.pixels,
           plan_.columns(sums.panel),
           round_up(chunk.count(), Products::kPixelPack),
           plan_.copy_pitch,
           kProductColumns,
           copied + chunk.begin,
           weights_.at(sums.group, sums.panel, /*block=*/0, i),
           sums.data,
           /*adds=*/has_sums || i > 0});
    }
  }

  // All sums of some rows and a panel. What meets pads only is left out; rows whose inputs follow
  // each other are one product.
  void
  multiply_lines(const PanelSums<Sum>& sums, Range rows, TaskLines<Products, Lines>& lines) const {
    const int64_t taps = plan_.block == ProductPlan::of_tap ? p_.kernel[2] : 1;
    bool has_sums[kPixelsAtOnce];
    for (int64_t row = 0; row < rows.count(); row++)
      has_sums[row] = begin(sums, row);
    for (int64_t block = 0; block < plan_.blocks; block++) {
      Digits digits{block};
      const int64_t kw = digits.next(taps), kh = digits.next(p_.kernel[1]);
      const int64_t shift = kw * p_.dilation[2];
      const Range inside = taps > 1 ? lines.inside_image(shift) : Range{0, sums.pixels};
      for (int64_t i = 0; i < plan_.chunks; i++) {
        const Range chunk = plan_.chunk_range(i);
        for (int64_t end, row = 0; row < rows.count(); row = end) {
          const int64_t h = rows.begin + row, kd = digits.rest;
          const InputLine<Left> line = lines.line(h, {kd, kh, kw});
          end = row + 1;
          const bool meets_image = line.data != nullptr && inside.end > inside.begin;
          const Range some = meets_image ? inside : Range{0, 0};
          const bool is_whole = some.count() == sums.pixels;
          if (!is_whole && i == 0) {
            if (!has_sums[row])
              std::fill_n(sums.at(row), sums.pixels * kProductColumns, Sum(0));
            has_sums[row] = true;
            ends_.skip(sums, row, {0, some.begin}, block);
            ends_.skip(sums, row, {some.end, sums.pixels}, block);
          }
          if (!meets_image)
            continue;
          while (is_whole && end < rows.count() && has_sums[end] == has_sums[row] &&
                 lines.follows(line, end - row, h, {kd, kh, kw}))
            end++;
          Products::multiply(
              {(end - row - 1) * sums.pixels + some.count(),
               plan_.columns(sums.panel),
               chunk.count(),
               line.step,
               kProductColumns,
               line.data + some.begin * line.step - line.missing * plan_.ic + chunk.begin,
               weights_.at(sums.group, sums.panel, block, i),
               sums.at(row, some.begin),
               /*adds=*/has_sums[row]});
          std::fill(has_sums + row, has_sums + end, true);
        }
      }
    }
  }

  const ConvProblem& p_;
  const ProductPlan& plan_;
  const ProductWeights<Products>& weights_;
  const Ends& ends_;
};

} // namespace torch_dnnl
