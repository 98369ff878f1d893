// Weights in the order in which products read them and, where zero points make inputs that stand
// for 0 different from 0, what sums have too much because of it.
#pragma once

#include "conv/cpu/shared/products/plan.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// [group][panel][block][row / pack][column][row % pack]; rows up to a multiple of plan.terms are 0.
// Weights that are packed for many calls have the sums of columns behind the panels, as excess()
// has them for a zero point of 1.
template <class Products>
class ProductWeights {
 public:
  using Right = typename Products::Right;

  // zero_point: of integers. All weights are packed, unless the problem brings them or threads are
  // to pack their own.
  ProductWeights(const ConvProblem& p, const ProductPlan& plan, int zero_point = 0);
  // Packs for many calls, into `to`, which has packed_size() bytes.
  ProductWeights(const ConvProblem& p, const ProductPlan& plan, void* to);
  static int64_t packed_size(const ConvProblem& p, const ProductPlan& plan);
  // Equal for plans that have the same layout of weights.
  static int64_t layout(const ConvProblem& p, const ProductPlan& plan);

  // panels: of all groups, one group's after the other's.
  void pack(Range panels) const;

  const Right* at(int64_t group, int64_t panel, int64_t block, int64_t chunk) const {
    return panels_ + group * group_size_ + panel * kProductColumns * panel_rows_ +
        (block * rows_ + chunk * plan_.chunk) * plan_.columns(panel);
  }
  // The zero point times the sum of the weights of each column, of a block or, if that is
  // plan.blocks, of all of them. Modulo 2^32.
  const int32_t* excess(int64_t group, int64_t panel, int64_t block) const {
    return excess_ +
        ((group * plan_.panels + panel) * (plan_.blocks + 1) + block) * kProductColumns;
  }
  bool has_excess() const {
    return zero_point_ != 0;
  }

 private:
  using Weight = typename Products::Weight;
  static constexpr bool kIsExact = std::is_integral_v<Weight>;
  static constexpr int64_t kAliased = 4096 / sizeof(Weight), kApart = 64 / sizeof(Weight);

  // Memory in which columns' sums lie behind the panels.
  void use(void* packed);
  void pack_all() const;

  // The weights of a panel, a line for each column: null if they do not lie so in memory.
  const Weight* lines_in_memory(int64_t group, int64_t panel) const;
  // Then they are copied. Blocks are padded with zeros.
  void gather(int64_t group, int64_t panel, Weight* lines) const;
  void add_up(int64_t group, int64_t panel, const Weight* lines) const;
  // narrow: memory of a panel for those that are widened.
  void interleave(int64_t group, int64_t panel, const Weight* lines, Weight* narrow) const;

  const ConvProblem& p_;
  const ProductPlan& plan_;
  const int zero_point_;
  const int64_t rows_ = round_up(plan_.depth, plan_.terms); // of a block
  const int64_t panel_rows_ = plan_.blocks * rows_;
  // From a line to the next: at multiples of `kAliased` they would compete for the cache.
  const int64_t pitch_ = panel_rows_ + (panel_rows_ % kAliased == 0 ? kApart : 0);
  const int64_t group_size_ = panel_rows_ * round_up(plan_.oc, kProductLanes);
  const int64_t panels_size_ = plan_.groups * group_size_;
  const int64_t excess_size_ =
      kIsExact ? plan_.groups * plan_.panels * (plan_.blocks + 1) * kProductColumns : 0;
  Scratch<Right> own_panels_{0};
  Scratch<int32_t> own_excess_{0};
  Right* panels_ = nullptr;
  int32_t* excess_ = nullptr;
};

} // namespace torch_dnnl
