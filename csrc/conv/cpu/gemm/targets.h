// Where the sums of a matrix product go, and what they begin with.
#pragma once

#include <vector>

#include "conv/cpu/gemm/output.h"
#include "conv/cpu/gemm/plan.h"
#include "conv/cpu/shared/epilogue.h"

namespace torch_dnnl {

// Of the sums of a panel.
template <class C>
struct GemmTarget {
  C* data;
  int64_t row; // from one to the next
  const C* start;
  int64_t start_row, start_vector;
};

// Outputs of backward data are terms, each of which begins with the bias of its channel. `problem`
// has the terms as channels.
template <class T>
struct TermsBias {
  ConvProblem problem;
  std::vector<T> values;

  explicit TermsBias(const ConvProblem& p) : problem(p) {
    const int64_t taps = product(p.kernel);
    if (p.pass != ConvPass::backward_data || p.bias == nullptr || taps == 1)
      return;
    problem.ic = p.ic * taps;
    values.reserve(p.groups * problem.ic);
    const T* bias = static_cast<const T*>(p.bias);
    for (int64_t group = 0; group < p.groups; group++, bias += p.ic * p.bias_stride)
      for (int64_t term = 0; term < problem.ic; term++)
        values.push_back(
            bias[(are_channels_fastest(p) ? term % p.ic : term / taps) * p.bias_stride]);
    problem.bias = values.data();
    problem.bias_stride = 1;
  }
};

template <class T>
class GemmTargets {
 public:
  using C = compute_t<T>;

  GemmTargets(const ConvProblem& p, const GemmView& view, const GemmOutput<T>& output)
      : view_(view), output_(output), of_terms_(p) {}

  // Of the panel of sums that begins at column j.
  GemmTarget<C>
  at(const GemmBlock& block,
     int64_t j,
     bool is_first,
     bool is_last,
     const GemmOffsets& offsets,
     C* sums) const {
    const int64_t rows = block.rows.count();
    C* const panel = sums + j * rows;
    GemmTarget<C> result{panel, kPanel<C>, panel, kPanel<C>, kLanes<C>};
    if (is_last && output_.is_direct(block, j, offsets)) {
      const int64_t *row = offsets.rows.data(), *column = offsets.columns.data();
      result.data = reinterpret_cast<C*>(output_.group(block.group)) + row[0] + column[j];
      result.row = rows > 1 ? row[1] - row[0] : 0;
    }
    if (is_first && view_.is_transposed) {
      result.start = bias_.at(block.group, block.columns.begin + j);
      result.start_row = 0;
      result.start_vector = bias_.channel_step() * kLanes<C>;
    } else if (is_first) {
      result.start = bias_.at(block.group, block.rows.begin);
      result.start_row = bias_.channel_step();
      result.start_vector = 0;
    }
    return result;
  }

 private:
  const GemmView& view_;
  const GemmOutput<T>& output_;
  const TermsBias<T> of_terms_;
  const Bias<T> bias_{
      of_terms_.problem,
      round_up(GatherImages{of_terms_.problem}.out_channels, kPanel<C>),
      view_.is_transposed ? 1 : kLanes<C>};
};

} // namespace torch_dnnl
