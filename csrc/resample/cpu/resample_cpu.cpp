// Resample on the CPU: an ordered list of kernels. The first row that can run a
// problem runs it; the last can run every one. Forward and backward run alike: the
// adjoint gathers with the transposed tables.
#include <torch/library.h>

#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "resample/cpu/rows.h"
#include "resample/host_table.h"
#include "resample/reference.h"
#include "resample/resample.h"

namespace torch_dnnl {
namespace {

void run_reference(const ResampleProblem& p) {
  dispatch(ImageTypes{}, p.src_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto tables = cached_tables<compute_t<T>>(p.axes, p.transposed);
    ResampleForward<T> functor{p, {}};
    int64_t cost = 8;
    for (int a = 0; a < 3; a++) {
      functor.axis[a] = tables[a]->view();
      cost *= functor.axis[a].width;
    }
    const int64_t n = p.n * p.c * p.dst_size[0] * p.dst_size[1] * p.dst_size[2];
    for_each_element(n, cost, functor);
  });
}

struct Kernel {
  const char* name;
  bool (*can_run)(const ResampleProblem&);
  void (*run)(const ResampleProblem&);
};

constexpr Kernel kernels[] = {
    {"rows", supports_rows, run_rows},
    {"reference", [](const ResampleProblem&) { return true; }, run_reference},
};

void run(const ResampleProblem& p) {
  for (const Kernel& kernel : kernels) {
    if (kernel.can_run(p))
      return kernel.run(p);
  }
}

// Runs a checked call. An image whose rows are not dense is copied where that is worth it.
void run(
    const at::Tensor& src,
    const at::Tensor& dst,
    const ResampleOptions& options,
    bool forward) {
  if (dst.numel() == 0)
    return;
  const ResampleProblem p = resample_problem(src, dst, options, forward);
  if (supports_rows(p))
    return run(p);
  const at::Tensor dense = with_dense_rows(src, dst, options); // lives as long as it is read
  run(resample_problem(dense, dst, options, forward));
}

at::Tensor
resample(const at::Tensor& src, c10::SymIntArrayRef size, const ResampleOptions& options) {
  at::Tensor dst = resample_output(src, size, options);
  run(src, dst, options, true);
  return dst;
}

at::Tensor resample_backward(
    const at::Tensor& grad,
    c10::SymIntArrayRef src_size,
    const ResampleOptions& options) {
  at::Tensor dst = resample_backward_output(grad, src_size, options);
  run(grad, dst, options, false);
  return dst;
}

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  m.impl("resample", resample_kernel<resample>);
  m.impl("resample_backward", resample_backward_kernel<resample_backward>);
}

} // namespace
} // namespace torch_dnnl
