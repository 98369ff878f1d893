// Reorder on the CPU.
#include <torch/library.h>

#include "core/dispatch.h"
#include "core/parallel.h"
#include "reorder/reference.h"
#include "reorder/reorder.h"

namespace torch_dnnl {
namespace {

at::Tensor reorder(const at::Tensor& src, const ReorderOptions& options) {
  at::Tensor dst = reorder_output(src, options);
  if (dst.numel() > 0) {
    const ReorderProblem p = reorder_problem(src, dst, options);
    dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
      for_each_element(dst.numel(), /*cost=*/32, ReorderElement<typename decltype(tag)::type>{p});
    });
  }
  return dst;
}

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  m.impl("reorder", reorder_kernel<reorder>);
  m.impl("reorder_backward", reorder_backward_kernel<reorder>);
}

} // namespace
} // namespace torch_dnnl
