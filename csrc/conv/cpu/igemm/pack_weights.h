// Packed weights: panels in the order in which the GEMMs read them, and their zero-point
// compensation.
#pragma once

#include "conv/cpu/igemm/compensation.h"
#include "conv/cpu/igemm/plan.h"
#include "core/cpu/scratch.h"
#include "core/cpu/stream.h"
#include "core/cpu/transpose.h"

namespace torch_dnnl {

// Interleaves VNNI blocks of rows of k, `pitch` apart: [k / vnni][row][k % vnni]. k and pitch are
// multiples of vnni.
template <int64_t vnni, class T>
void interleave_vnni(const T* from, int64_t pitch, int64_t rows, int64_t k, T* to) {
  constexpr size_t size = vnni * sizeof(T);
  using Word = std::conditional_t<size == 4, uint32_t, uint16_t>;
  using Block = std::conditional_t<vnni == 1, T, Word>;
  static_assert(size == sizeof(Block));
  const auto* const blocks = reinterpret_cast<const Block*>(from);
  transpose_numbers(blocks, pitch / vnni, rows, reinterpret_cast<Block*>(to), rows, k / vnni);
}

// [group][panel][block][chunk][column / nr][k / vnni][column % nr][k % vnni]; k is padded with
// zeros to a multiple of plan.kr. Weights that are packed for many calls have the compensation of
// a zero point of 1 behind the panels.
template <class Gemm>
class WeightPanels {
 public:
  using B = typename Gemm::B;

  // Packs the weights, unless the problem has packed weights or each thread packs its own.
  // zero_point: the value of padding in input rows.
  WeightPanels(const ConvProblem& p, const IgemmPlan& plan, int zero_point = 0);
  // Packs for many calls, into packed_size() bytes.
  WeightPanels(const ConvProblem& p, const IgemmPlan& plan, void* to);
  static int64_t packed_size(const ConvProblem& p, const IgemmPlan& plan);
  // Equal for plans with the same layout of weights.
  static int64_t layout(const ConvProblem& p, const IgemmPlan& plan);

  // panels: counted through all groups.
  void pack(Range panels) const;

  // The chunks of a block are contiguous if the panel has at most nr columns.
  const B* at(int64_t group, int64_t panel, int64_t block, int64_t chunk = 0) const {
    return panels_ + group * group_size_ + panel * kPanelColumns * panel_k_ +
        (block * block_k_ + chunk * plan_.kc) * plan_.columns(panel);
  }
  const Compensation& compensation() const {
    return compensation_;
  }

 private:
  using Weight = typename Gemm::Weight;
  static constexpr bool kHasCompensation = std::is_integral_v<Weight>;
  static constexpr int64_t kAliased = 4096 / sizeof(Weight), kApart = 64 / sizeof(Weight);

  int64_t panel_bytes() const {
    return round_up(plan_.groups * group_size_ * sizeof(B), kCacheLine);
  }
  void use(void* packed);
  void pack_all() const;

  // Each output channel of a panel is a row of its weights, in the order of k. Null if memory has
  // no such rows.
  const Weight* rows_in_memory(int64_t group, int64_t panel) const;
  void gather_rows(int64_t group, int64_t panel, Weight* rows) const;
  // narrow: memory for a panel of weights that are widened.
  void interleave(int64_t group, int64_t panel, const Weight* rows, Weight* narrow) const;

  const ConvProblem& p_;
  const IgemmPlan& plan_;
  const int64_t block_k_ = round_up(plan_.k, plan_.kr);
  const int64_t panel_k_ = plan_.blocks * block_k_;
  // From a row to the next. Rows at a multiple of kAliased would compete for the same cache sets.
  const int64_t pitch_ = panel_k_ + (panel_k_ % kAliased == 0 ? kApart : 0);
  const int64_t group_size_ = panel_k_ * round_up(plan_.oc, kPanelLanes);
  Scratch<B> own_panels_{0};
  B* panels_ = nullptr;
  Compensation compensation_;
};

} // namespace torch_dnnl
