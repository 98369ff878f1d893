// Resample on CUDA. The axis tables are built on the device, by the function
// that builds them on the host, into memory of torch's allocator: no copy from
// the host, no synchronisation, and safe to capture in a CUDA graph.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <vector>

#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "resample/reference.h"

namespace torch_dnnl {
namespace {

template <class W>
struct BuildRows {
  AxisSpec spec;
  int64_t width;
  int64_t *start, *count;
  W* weights;

  TORCH_DNNL_HD void operator()(int64_t o) const {
    build_row(spec, o, start + o, count + o, weights + o * width);
  }
};

struct BuildTransposedRows {
  const int64_t *start, *count;
  int64_t out;
  bool flipped;
  int64_t *first, *last;

  TORCH_DNNL_HD void operator()(int64_t i) const {
    build_transposed_row(start, count, out, flipped, i, first + i, last + i);
  }
};

// The table of one axis; `buffers` keeps its memory alive until the kernels are
// queued, after which the allocator hands it out in stream order.
template <class W>
AxisTable<W> device_table(
    const AxisSpec& spec,
    bool transposed,
    const at::Tensor& like,
    std::vector<at::Tensor>& buffers) {
  const int64_t width = row_capacity(spec);
  const auto buffer = [&](int64_t n, c10::ScalarType dtype) {
    return buffers.emplace_back(at::empty({n}, like.options().dtype(dtype))).mutable_data_ptr();
  };
  const auto indices = [&](int64_t n) {
    return static_cast<int64_t*>(buffer(n, c10::ScalarType::Long));
  };
  int64_t* start = indices(spec.out);
  int64_t* count = indices(spec.out);
  auto* weights = static_cast<W*>(buffer(spec.out * width, c10::CppTypeToScalarType<W>::value));
  cuda::for_each_element(spec.out, BuildRows<W>{spec, width, start, count, weights});
  int64_t *first = nullptr, *last = nullptr;
  if (transposed) {
    first = indices(spec.in);
    last = indices(spec.in);
    cuda::for_each_element(
        spec.in, BuildTransposedRows{start, count, spec.out, is_flipped(spec), first, last});
  }
  return {spec.in, spec.out, width, start, count, weights, first, last};
}

template <template <class> class Functor>
void run(const ResampleProblem& p, bool transposed, const at::Tensor& like) {
  dispatch(ImageTypes{}, p.src_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<at::Tensor> buffers;
    Functor<T> functor{p, {}};
    for (int a = 0; a < 3; a++) {
      functor.axis[a] = device_table<compute_t<T>>(p.axes[a], transposed, like, buffers);
    }
    cuda::for_each_element(p.n * p.c * p.dst_size[0] * p.dst_size[1] * p.dst_size[2], functor);
  });
}

at::Tensor
resample(const at::Tensor& src, c10::SymIntArrayRef size, const ResampleOptions& options) {
  const c10::DeviceGuard guard(src.device());
  at::Tensor dst = resample_output(src, size, options);
  if (dst.numel() > 0)
    run<ResampleForward>(resample_problem(src, dst, options, true), false, dst);
  return dst;
}

at::Tensor resample_backward(
    const at::Tensor& grad,
    c10::SymIntArrayRef src_size,
    const ResampleOptions& options) {
  const c10::DeviceGuard guard(grad.device());
  at::Tensor dst = resample_backward_output(grad, src_size, options);
  if (dst.numel() > 0) {
    run<ResampleBackward>(resample_problem(grad, dst, options, false), true, dst);
  }
  return dst;
}

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  m.impl("resample", resample_kernel<resample>);
  m.impl("resample_backward", resample_backward_kernel<resample_backward>);
}

} // namespace
} // namespace torch_dnnl
