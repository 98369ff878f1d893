// Convolution as matrix products: each output row gathers products of input rows with the weights
// of a tap, of all taps of a row of the kernel, or of all taps.
#pragma once

#include "conv/cpu/shared/products/matrix_products.h"
#include "conv/cpu/shared/products/memory_products.h"
#include "conv/cpu/shared/products/register_products.h"
#include "core/cpu/parallel.h"

namespace torch_dnnl {

// Runs a plan. `Ends` knows what sums begin with and what becomes of them:
//   const Sum* first(sums)               what the sums of a pixel begin with; null: zeros
//   void skip(sums, row, pixels, block)  adds the products of pads with a block of weights
//   void store(sums, task, rows, own)    own: an Ends::Workspace of the thread
//   void fetch_outputs(sums, task, rows) has the cache get them, so that store does not wait
// and, for register_products.h,
//   bool takes_tiles()                   whether instead of all this it can
//   void multiply(product, at, own)      make outputs of a TileProduct
template <class Products, class Lines, class Ends>
class RowProducts {
 public:
  RowProducts(
      const ConvProblem& p,
      const ProductPlan& plan,
      const Lines& lines,
      const ProductWeights<Products>& weights,
      const Ends& ends)
      : p_(p), plan_(plan), lines_(lines), weights_(weights), ends_(ends) {}

  void run() const {
    const int64_t tasks = plan_.tasks(p_), blocks = plan_.panel_blocks;
    const int64_t operations = plan_.rows * plan_.width * plan_.panels_of_task * kProductColumns *
        plan_.blocks * plan_.depth / 4;
    if (plan_.threads_pack)
      return parallel_tasks(blocks, tasks / blocks * operations, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; block++) {
          weights_.pack(nth_range(block, plan_.panels_of_task, plan_.panels));
          compute_each(block, tasks, blocks);
        }
      });
    parallel_tasks(
        tasks, operations, [&](int64_t begin, int64_t end) { compute_each(begin, end, 1); });
  }

 private:
  // Memory of a thread.
  struct Workspace {
    explicit Workspace(const RowProducts& all)
        : lines(all.p_, all.plan_, all.lines_),
          memory(all.plan_),
          matrix(all.plan_),
          ends(all.memory_.pixels_at_once(all.plan_) * kProductColumns) {}
    TaskLines<Products, Lines> lines;
    typename MemoryProducts<Products, Lines, Ends>::Workspace memory;
    typename MatrixProducts<Products, Lines, Ends>::Workspace matrix;
    typename Ends::Workspace ends;
  };

  // The tasks first, first + step, ... < end.
  void compute_each(int64_t first, int64_t end, int64_t step) const {
    Workspace own(*this);
    for (int64_t task = first; task < end; task += step)
      compute(row_task(plan_, p_, task), own);
    Products::release();
  }
  void compute(const RowTask& task, Workspace& own) const {
    own.lines.begin(task);
    if constexpr (kHasTileProducts<Products>)
      if (plan_.in_tiles)
        return matrix_.compute(task, own.lines, own.matrix, own.ends);
    if (registers_.are_possible())
      return registers_.compute(task, own.lines, own.memory.copied.data(), own.ends);
    memory_.compute(task, own.lines, own.memory, own.ends);
  }

  const ConvProblem& p_;
  const ProductPlan& plan_;
  const Lines& lines_;
  const ProductWeights<Products>& weights_;
  const Ends& ends_;
  const MemoryProducts<Products, Lines, Ends> memory_{p_, plan_, weights_, ends_};
  const RegisterProducts<Products, Lines, Ends> registers_{p_, plan_, weights_, ends_};
  const MatrixProducts<Products, Lines, Ends> matrix_{p_, plan_, weights_, ends_};
};

} // namespace torch_dnnl
