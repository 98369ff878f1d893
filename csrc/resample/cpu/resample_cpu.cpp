// Resample on the CPU: the kernels, in order of preference. Forward and backward run alike: the
// adjoint gathers with the transposed tables.
#include <torch/library.h>

#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "core/math.h"
#include "core/torch/run_kernel.h"
#include "resample/cpu/rows.h"
#include "resample/host_table.h"
#include "resample/on_device.h"
#include "resample/reference.h"

namespace torch_dnnl {
namespace {

void run_reference(const ResampleProblem& p) {
  dispatch(ImageTypes{}, p.src_dtype, [&]<class T>(std::type_identity<T>) {
    const auto tables = cached_tables<compute_t<T>>(p.axes, p.transposed);
    ResampleReference<T, /*kReaders=*/false> functor{p, {}};
    int64_t cost = 8;
    for (int a = 0; a < 3; a++) {
      functor.axis[a] = tables[a]->view();
      cost *= functor.axis[a].width;
    }
    for_each_element(p.n * p.c * product(p.dst_size), cost, functor);
  });
}

constexpr Kernel<ResampleProblem> kernels[] = {
    {"rows", supports_rows, always, run_rows},
    {"reference", always, always, run_reference},
};

struct Cpu {
  static bool has_dense_rows(const ResampleProblem& p) {
    return supports_rows(p);
  }
  static void compute(const ResampleProblem& p, std::string_view algorithm) {
    run(kernel_named(kernels, algorithm, name_of(p), p), p);
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  ResampleOnDevice<Cpu>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "resample", "cpu", kernels);
}

} // namespace
} // namespace torch_dnnl
