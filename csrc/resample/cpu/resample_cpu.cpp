// Resample on the CPU.
#include <torch/library.h>

#include "core/dispatch.h"
#include "core/parallel.h"
#include "resample/cpu/table_cache.h"
#include "resample/reference.h"

namespace torch_dnnl {
namespace {

template <template <class> class Functor>
void run(const ResampleProblem& p, bool transposed) {
  dispatch(ImageTypes{}, p.src_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    std::shared_ptr<const HostTable<C>> tables[3];
    Functor<T> functor{p, {}};
    int64_t cost = 8;
    for (int a = 0; a < 3; a++) {
      tables[a] = cached_table<C>(p.axes[a], transposed);
      functor.axis[a] = tables[a]->view();
      cost *= functor.axis[a].width;
    }
    const int64_t n = p.n * p.c * p.dst_size[0] * p.dst_size[1] * p.dst_size[2];
    for_each_element(n, cost, functor);
  });
}

at::Tensor
resample(const at::Tensor& src, c10::SymIntArrayRef size, const ResampleOptions& options) {
  at::Tensor dst = resample_output(src, size, options);
  if (dst.numel() > 0)
    run<ResampleForward>(resample_problem(src, dst, options, true), false);
  return dst;
}

at::Tensor resample_backward(
    const at::Tensor& grad,
    c10::SymIntArrayRef src_size,
    const ResampleOptions& options) {
  at::Tensor dst = resample_backward_output(grad, src_size, options);
  if (dst.numel() > 0)
    run<ResampleBackward>(resample_problem(grad, dst, options, false), true);
  return dst;
}

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  m.impl("resample", resample_kernel<resample>);
  m.impl("resample_backward", resample_backward_kernel<resample_backward>);
}

} // namespace
} // namespace torch_dnnl
