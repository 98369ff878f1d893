// The output stage of an implicit GEMM, which completes and stores accumulators. Executors call it;
// a kernel provides it as a class `Output`:
//
//   Workspace                                 memory of a thread, for so many outputs
//   const C* initial(acc)                     what the accumulators of a pixel begin with; null: 0
//   void compensate(acc, row, pixels, block)  adds the products of padding with a block of k that
//                                             the executor skipped; row: of the accumulators
//   void prefetch(acc, task, rows)            prefetches the outputs that store() writes
//   void store(acc, task, rows, workspace)    completes accumulators in memory; rows: of the image
//
// For accumulators in registers (vnni.h):
//
//   bool takes_tiles()                        whether the stage can complete them
//   bool takes_parts_of_tiles()               the same for panels with fewer columns
//   auto tile_output(run, workspace)          a std::variant of stages for a run. Each has
//                                             initial(v), the vector v of a row, and
//                                             store(acc, row), which completes a register tile;
//                                             kTakesParts says whether a tile may have fewer
//                                             columns than a panel
//   void finish(run, workspace)               after the last tile of a run
#pragma once

#include <vector>

#include "conv/cpu/igemm/pack_weights.h"
#include "conv/cpu/igemm/plan.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {

// Accumulators of a panel in memory, for rows of output pixels: [row][pixel][kPanelColumns].
template <class C>
struct Accumulators {
  C* data;
  int64_t group, panel;
  int64_t pixels; // of a row
  int64_t pitch;  // pixels from a row to the next

  C* at(int64_t row, int64_t pixel = 0) const {
    return data + (row * pitch + pixel) * kPanelColumns;
  }
};

// Contiguous outputs of a whole panel, from the first pixel of a row of a task on.
struct TileRun {
  const IgemmTask& task;
  int64_t row, panel, pixels;
  const std::vector<int64_t>& skipped; // blocks of k that meet only padding: accumulators lack them
};

#if defined(CPU_CAPABILITY_AVX512)
// A register tile is TileVector[mr][kTileVectors].
using TileVector = __m512i; // of int32 or of float32
inline constexpr int kTileVectors = kPanelColumns / 16;
#endif

// State that all executors of a convolution share.
template <class Gemm, class Output>
struct Igemm {
  const ConvProblem& p;
  const IgemmPlan& plan;
  const WeightPanels<Gemm>& weights;
  const Output& output;
};

// Memory of a thread.
template <class Gemm>
struct GemmWorkspace {
  explicit GemmWorkspace(const IgemmPlan& plan)
      : accumulators(plan.gemm_pixels() * kPanelColumns),
        im2col(plan.gemm_pixels() * plan.im2col_pitch + kOvercopy) {}
  const Scratch<typename Gemm::C> accumulators;
  const Scratch<typename Gemm::A> im2col;
  std::vector<const typename Gemm::A*> a; // operands of a BatchReduceGemm
  std::vector<const typename Gemm::B*> b;
};

} // namespace torch_dnnl
