// Quantized convolution as an implicit GEMM (igemm/): the kernel "brgemm" of int8, the kernel
// "pairs" of int16. IgemmRun::compute chooses the executor; for "brgemm" it may be AMX tiles, VNNI
// or oneDNN's brgemm.
#include "conv/cpu/igemm/igemm.h"
#include "conv/cpu/quantized/epilogue.h"
#include "conv/cpu/quantized/kernels.h"

namespace torch_dnnl {
namespace {

// The output stage: the epilogue completes accumulators and subtracts the zero-point compensation.
template <class Gemm>
class IntegerOutput {
 public:
  struct Workspace : QuantizedEpilogue::Workspace {
    using QuantizedEpilogue::Workspace::Workspace;
    const Scratch<int32_t> compensation{kPanelColumns}; // of a tile run
  };
  using Acc = Accumulators<int32_t>;

  IntegerOutput(const QuantizedProblem& p, const IgemmPlan& plan, const Compensation& compensation)
      : plan_(plan), compensation_(compensation), epilogue_(p) {}

  const int32_t* initial(const Acc& /*acc*/) const {
    return nullptr;
  }
  // Adds what store() will subtract for a block that was skipped.
  void compensate(const Acc& acc, int64_t row, Range pixels, int64_t block) const {
    if (compensation_.is_zero())
      return;
    const int32_t* const skipped = compensation_.at(acc.group, acc.panel, block);
    const int64_t columns = plan_.columns(acc.panel);
    for (int64_t x = pixels.begin; x < pixels.end; x++) {
      int32_t* const to = acc.at(row, x);
      for (int64_t c = 0; c < columns; c++)
        to[c] = wrapping_add(to[c], skipped[c]);
    }
  }
  void prefetch(const Acc& /*acc*/, const IgemmTask& /*task*/, Range /*rows*/) const {}
  void store(const Acc& acc, const IgemmTask& task, Range rows, const Workspace& own) const {
    const int32_t* const all = compensation_.at(acc.group, acc.panel, plan_.blocks);
    for (int64_t row = rows.begin; row < rows.end; row++) {
      QuantizedRun run = output_run(task, row, acc.panel, acc.pixels, all);
      run.sums = acc.at(row - rows.begin);
      run.pitch = kPanelColumns;
      epilogue_.store(run, own);
    }
  }

  bool takes_tiles() const {
    return epilogue_.takes_tiles();
  }
  bool takes_parts_of_tiles() const {
    return epilogue_.takes_parts_of_tiles();
  }
#if defined(CPU_CAPABILITY_AVX512)
  QuantizedEpilogue::TileOutput tile_output(const TileRun& run, const Workspace& own) const {
    const int64_t group = run.task.group;
    const int32_t* const all = compensation_.at(group, run.panel, plan_.blocks);
    int32_t* const compensation = own.compensation.data();
    std::copy_n(all, kPanelColumns, compensation);
    for (int64_t block : run.skipped) {
      const int32_t* const skipped = compensation_.at(group, run.panel, block);
      for (int64_t c = 0; c < kPanelColumns; c++)
        compensation[c] = wrapping_sub(compensation[c], skipped[c]);
    }
    return epilogue_.tile_output(
        output_run(run.task, run.row, run.panel, run.pixels, compensation), own);
  }
  void finish(const TileRun& run, const Workspace& own) const {
    epilogue_.finish(output_run(run.task, run.row, run.panel, run.pixels, nullptr), own);
  }
#endif

 private:
  // Outputs of a panel, without their accumulators.
  QuantizedRun output_run(
      const IgemmTask& task,
      int64_t row,
      int64_t panel,
      int64_t pixels,
      const int32_t* compensation) const {
    const int64_t first = panel * kPanelColumns;
    return {/*sums=*/nullptr,
            /*pitch=*/0,
            task.n,
            task.group * plan_.oc + first,
            task.d,
            row,
            task.pixels.begin,
            std::min(kPanelColumns, plan_.oc - first),
            pixels,
            compensation};
  }

  const IgemmPlan& plan_;
  const Compensation& compensation_;
  const QuantizedEpilogue epilogue_;
};

template <class Gemm>
void run_igemm(const QuantizedProblem& problem) {
  const ConvProblem& p = problem.conv;
  const int zero_point = static_cast<int>(problem.src_zero_point.get());
  const IntegerRows<typename Gemm::A> rows{p.dtype == c10::kChar, zero_point};
  const IgemmPlan plan = plan_igemm<Gemm>(p, at::get_num_threads());
  const WeightPanels<Gemm> weights(p, plan, static_cast<int>(rows.padding()));
  const IntegerOutput<Gemm> output(problem, plan, weights.compensation());
  const Igemm<Gemm, IntegerOutput<Gemm>> igemm{p, plan, weights, output};
  IgemmRun(igemm, rows).run();
}

template <class Gemm, class F>
auto with_plan(const QuantizedProblem& p, const F& f) {
  return f(p.conv, plan_igemm<Gemm>(p.conv, /*threads=*/1));
}

template <class Gemm>
constexpr Packing<QuantizedProblem> packing{
    [](const QuantizedProblem& p) { return with_plan<Gemm>(p, WeightPanels<Gemm>::packed_size); },
    [](const QuantizedProblem& p, void* to) {
      with_plan<Gemm>(p, [&](const ConvProblem& conv, const IgemmPlan& plan) {
        WeightPanels<Gemm>(conv, plan, to);
      });
      return true;
    },
    [](const QuantizedProblem& p) { return with_plan<Gemm>(p, WeightPanels<Gemm>::layout); }};

} // namespace

const Packing<QuantizedProblem> quantized_brgemm_packing = packing<Int8Gemm>;
const Packing<QuantizedProblem> quantized_pairs_packing = packing<Int16Gemm>;

bool supports_quantized_brgemm(const QuantizedProblem& p) {
  return has_short_sums(p) && Int8Gemm::is_supported();
}

void run_quantized_brgemm(const QuantizedProblem& p) {
  run_igemm<Int8Gemm>(p);
}

bool supports_quantized_pairs(const QuantizedProblem& p) {
  return has_short_sums(p);
}

void run_quantized_pairs(const QuantizedProblem& p) {
  run_igemm<Int16Gemm>(p);
}

} // namespace torch_dnnl
