// Reorder on the CPU: an ordered list of kernels. The first row that can run a problem runs it; the
// last can run every one.
#include <torch/library.h>

#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "reorder/cpu/tiles.h"
#include "reorder/reference.h"
#include "reorder/reorder.h"

namespace torch_dnnl {
namespace {

void run_reference(const ReorderProblem& p) {
  int64_t elements = 1;
  for (int64_t k = 0; k < p.dst_digits; k++) {
    elements *= p.dst_digit[k].extent;
  }
  dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
    for_each_element(elements, /*cost=*/32, ReorderElement<typename decltype(tag)::type>{p});
  });
}

struct Kernel {
  const char* name;
  bool (*can_run)(const ReorderProblem&);
  void (*run)(const ReorderProblem&);
};

constexpr Kernel kernels[] = {
    {"tiles", can_run_tiles, run_tiles},
    {"reference", [](const ReorderProblem&) { return true; }, run_reference},
};

at::Tensor reorder(const at::Tensor& src, const ReorderOptions& options) {
  at::Tensor dst = reorder_output(src, options);
  if (dst.numel() > 0) {
    const ReorderProblem p = reorder_problem(src, dst, options);
    for (const Kernel& kernel : kernels) {
      if (kernel.can_run(p)) {
        kernel.run(p);
        break;
      }
    }
  }
  return dst;
}

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  m.impl("reorder", reorder_kernel<reorder>);
  m.impl("reorder_backward", reorder_backward_kernel<reorder>);
}

} // namespace
} // namespace torch_dnnl
