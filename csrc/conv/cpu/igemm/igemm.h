// Convolution as an implicit GEMM: a plan (plan.h), packed weights (pack_weights.h), input rows
// that are prepared task by task (input_rows.h), an executor (brgemm.h, vnni.h or amx.h), and the
// output stage that it calls (output.h).
//
// An executor has one function, compute(task, rows, ...). For each row of outputs and each block of
// k, the executor asks `rows` for inputs and multiplies the inputs with the panels of the task.
// Then the executor hands the accumulators to the output stage. An executor may skip a block that
// meets padding alone; it then calls Output::compensate. IgemmRun::compute chooses AmxExecutor if
// IgemmPlan::uses_amx, else VnniExecutor if VnniExecutor::is_possible, else BrgemmExecutor.
// BrgemmExecutor takes every plan and calls Gemm::multiply for each block of k. So a new type of
// numbers needs a Gemm in types.h, and no executor.
#pragma once

#include "conv/cpu/igemm/amx.h"
#include "conv/cpu/igemm/brgemm.h"
#include "conv/cpu/igemm/vnni.h"
#include "core/cpu/parallel.h"

namespace torch_dnnl {

// Rows: IntegerRows or FloatRows. Output: an output stage.
template <class Gemm, class Rows, class Output>
class IgemmRun {
 public:
  IgemmRun(const Igemm<Gemm, Output>& igemm, const Rows& rows) : igemm_(igemm), rows_(rows) {}

  void run() const {
    const int64_t tasks = plan_.tasks(igemm_.p), blocks = plan_.panel_blocks;
    const int64_t operations =
        plan_.rows * plan_.width * plan_.task_panels * kPanelColumns * plan_.blocks * plan_.k / 4;
    if (plan_.threads_pack) {
      return parallel_tasks(blocks, tasks / blocks * operations, [&](SharedTasks::OfThread mine) {
        Workspace own(*this);
        for (const int64_t block : mine) {
          igemm_.weights.pack(nth_range(block, plan_.task_panels, plan_.panels));
          for (int64_t task = block; task < tasks; task += blocks)
            compute(task, own);
        }
        Gemm::release();
      });
    }
    parallel_tasks(tasks, operations, [&](SharedTasks::OfThread mine) {
      Workspace own(*this);
      for (const int64_t task : mine)
        compute(task, own);
      Gemm::release();
    });
  }

 private:
  // Memory of a thread.
  struct Workspace {
    explicit Workspace(const IgemmRun& all)
        : rows(all.igemm_.p, all.plan_, all.rows_),
          gemm(all.plan_),
          output(all.plan_.gemm_pixels() * kPanelColumns) {}
    InputRows<Gemm, Rows> rows;
    GemmWorkspace<Gemm> gemm;
#if defined(CPU_CAPABILITY_AVX512)
    AmxState amx;
#endif
    typename Output::Workspace output;
  };

  void compute(int64_t index, Workspace& own) const {
    const IgemmTask task = igemm_task(plan_, igemm_.p, index);
    own.rows.begin(task);
#if defined(CPU_CAPABILITY_AVX512)
    if constexpr (kHasRegisterTiles<Gemm>) {
      if (plan_.uses_amx)
        return amx_.compute(task, own.rows, {own.gemm, own.amx, own.output});
      if (vnni_.is_possible())
        return vnni_.compute(task, own.rows, own.gemm, own.output);
    }
#endif
    brgemm_.compute(task, own.rows, own.gemm, own.output);
  }

  const Igemm<Gemm, Output>& igemm_;
  const IgemmPlan& plan_ = igemm_.plan;
  const Rows& rows_;
  const BrgemmExecutor<Gemm, Rows, Output> brgemm_{igemm_};
#if defined(CPU_CAPABILITY_AVX512)
  const VnniExecutor<Gemm, Rows, Output> vnni_{igemm_};
  const AmxExecutor<Gemm, Rows, Output> amx_{igemm_};
#endif
};

} // namespace torch_dnnl
