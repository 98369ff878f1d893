// The VNNI executor: register tiles of accumulators, with dot products of four bytes (dot4) or of
// two bfloat16 (dot2). A tile stays in registers until the output stage stores it. brgemm leaves
// accumulators in memory instead, and the output stage makes another pass over them.
#pragma once

#include <algorithm>
#include <cstring>
#include <variant>

#include "conv/cpu/igemm/input_rows.h"
#include "conv/cpu/igemm/output.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
namespace vnni_detail {

// Written as asm because the library is compiled without the flags of these instructions.
template <class Gemm>
inline TileVector dot(TileVector acc, TileVector a, TileVector b) {
  if constexpr (std::is_same_v<Gemm, Int8Gemm>)
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  else
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
}

// Multiplies mr rows of a, from `row` on, with the columns of a panel. If the panel is not whole,
// the last of its vectors has fewer than 16 columns.
template <class Gemm, int mr, int vectors, bool is_whole, class TileOutput>
void multiply_tile(const BatchReduceGemm<Gemm>& g, int64_t row, const TileOutput& output) {
  TileVector acc[mr][vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) {
    acc[0][v] = output.initial(v);
#pragma GCC unroll 6
    for (int r = 1; r < mr; r++)
      acc[r][v] = acc[0][v];
  }
  __mmask16 are_columns[vectors]; // the lanes of a vector that are columns
  for (int v = 0; v < vectors; v++)
    are_columns[v] = (1u << std::clamp<int64_t>(g.columns - v * 16, 0, 16)) - 1;
  const int64_t lda = g.lda * sizeof(typename Gemm::A);
  const int64_t step = is_whole ? vectors * 64 : g.columns * 4;
  for (int64_t i = 0; i < g.count; i++) {
    const auto* a = reinterpret_cast<const char*>(g.a[i]) + row * lda;
    const auto* b = reinterpret_cast<const char*>(g.b[i]);
    for (int64_t k = 0; k < g.k; k += Gemm::kVnni, a += 4, b += step) {
      TileVector columns[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++)
        columns[v] = is_whole ? _mm512_loadu_si512(b + v * 64)
                              : _mm512_maskz_loadu_epi32(are_columns[v], b + v * 64);
#pragma GCC unroll 6
      for (int r = 0; r < mr; r++) {
        int32_t block;
        std::memcpy(&block, a + r * lda, sizeof(block));
        const TileVector left = _mm512_set1_epi32(block);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
          acc[r][v] = dot<Gemm>(acc[r][v], left, columns[v]);
      }
    }
  }
  output.store(acc, row);
}

// All rows in tiles of mr. The last tile ends with the last row and may overlap the one before.
template <class Gemm, int vectors, bool is_whole, class TileOutput>
void multiply_panel(const BatchReduceGemm<Gemm>& g, const TileOutput& output) {
  const auto in_tiles = [&]<int mr>() {
    for (int64_t i = 0; i < g.m; i += mr)
      multiply_tile<Gemm, mr, vectors, is_whole>(g, std::min(i, g.m - mr), output);
  };
  switch (vnni_mr(g.m)) {
    case 6:
      return in_tiles.template operator()<6>();
    case 5:
      return in_tiles.template operator()<5>();
    case 4:
      return in_tiles.template operator()<4>();
    default:
      return in_tiles.template operator()<1>();
  }
}

template <class Gemm, class TileOutput>
void multiply(const BatchReduceGemm<Gemm>& g, const TileOutput& output) {
  if constexpr (TileOutput::kTakesParts) {
    if (g.columns <= 16)
      return multiply_panel<Gemm, 1, false>(g, output);
    if (g.columns <= 32)
      return multiply_panel<Gemm, 2, false>(g, output);
    if (g.columns < kPanelColumns)
      return multiply_panel<Gemm, kTileVectors, false>(g, output);
  }
  multiply_panel<Gemm, kTileVectors, true>(g, output);
}

} // namespace vnni_detail

template <class Gemm, class Rows, class Output>
class VnniExecutor {
  using Group = RowGroup<typename Gemm::A>;

 public:
  explicit VnniExecutor(const Igemm<Gemm, Output>& igemm)
      : p_(igemm.p), plan_(igemm.plan), weights_(igemm.weights), output_(igemm.output) {}

  // Not if single taps skip padding, because a tile has the same blocks of k for all of its pixels.
  // An output stage may need whole panels.
  bool is_possible() const {
    return is_possible_;
  }

  void compute(
      const IgemmTask& task,
      InputRows<Gemm, Rows>& rows,
      GemmWorkspace<Gemm>& own,
      const typename Output::Workspace& out) const {
    const int64_t at_once =
        are_outputs_contiguous_ ? std::max<int64_t>(kGemmPixels / task.pixels.count(), 1) : 1;
    if (plan_.im2col_pitch > 0) {
      Group group{{}, task.pixels.count(), plan_.im2col_pitch, {own.im2col.data()}, {0}, {}};
      for (int64_t h = task.rows.begin; h < task.rows.end; h = group.rows.end) {
        group.rows = {h, std::min(h + at_once, task.rows.end)};
        rows.im2col(group.rows, own.im2col.data());
        for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
          multiply(task, group, panel, own, out);
      }
      return;
    }
    Group group{};
    for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++) {
      for (int64_t h = task.rows.begin; h < task.rows.end; h = group.rows.end) {
        rows.read(h, group);
        join_rows(std::min(h + at_once, task.rows.end), rows, group);
        multiply(task, group, panel, own, out);
      }
    }
  }

 private:
  // Appends rows up to `end` whose inputs follow those of the group.
  void join_rows(int64_t end, InputRows<Gemm, Rows>& rows, Group& group) const {
    if (plan_.blocks > 1 || group.a.empty())
      return;
    const int64_t h = group.rows.begin;
    while (group.rows.end < end &&
           rows.follows({group.a[0], group.lda}, group.rows.count(), h, {0, 0, 0}))
      group.rows.end++;
  }

  void multiply(
      const IgemmTask& task,
      const Group& group,
      int64_t panel,
      GemmWorkspace<Gemm>& own,
      const typename Output::Workspace& out) const {
    own.b.clear();
    for (int64_t block : group.blocks)
      own.b.push_back(weights_.at(task.group, panel, block));
    const BatchReduceGemm<Gemm> gemm{
        group.rows.count() * task.pixels.count(),
        plan_.columns(panel),
        plan_.k,
        group.lda,
        std::ssize(group.a),
        group.a.data(),
        own.b.data()};
    const TileRun run{task, group.rows.begin, panel, gemm.m, group.skipped};
    std::visit(
        [&](const auto& tile_output) { vnni_detail::multiply(gemm, tile_output); },
        output_.tile_output(run, out));
    output_.finish(run, out);
  }

  bool has_contiguous_outputs() const {
    const auto are_contiguous = [&](const int64_t* stride) {
      return stride[3] == p_.dst_size[2] * stride[4];
    };
    return plan_.widths == 1 && are_contiguous(p_.dst_stride) &&
        (p_.residual == nullptr || are_contiguous(p_.residual_stride));
  }

  const ConvProblem& p_;
  const IgemmPlan& plan_;
  const WeightPanels<Gemm>& weights_;
  const Output& output_;
  const bool is_possible_ = uses_vnni<Gemm>() && output_.takes_tiles() &&
      plan_.block != KBlock::tap &&
      (plan_.oc % kPanelColumns == 0 || output_.takes_parts_of_tiles());
  const bool are_outputs_contiguous_ = has_contiguous_outputs();
};
#endif

} // namespace torch_dnnl
