// Resample on CUDA: which kernel runs a problem.
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>

#include "resample/cuda/reference.h"
#include "resample/cuda/running_sums.h"
#include "resample/cuda/sliding_window.h"
#include "resample/resample.h"

namespace torch_dnnl {
namespace {

// The problem as the fast kernels take it: one type, axes of bounded length that are read in order,
// dense rows, indices in 32 bits.
template <class W>
std::optional<cuda::Plan<W>> plan(const ResampleProblem& p, bool transposed) {
  if (p.src_dtype != p.dst_dtype)
    return {};
  for (const AxisSpec& axis : p.axes) {
    if (std::max(axis.in, axis.out) > cuda::kLongestAxis || is_flipped(axis))
      return {};
  }
  if (!cuda::has_dense_rows(p))
    return {};
  const Tables<W> tables = cached_tables<W>(p.axes, transposed);
  const cuda::RowImages images = cuda::row_images(p, tables);
  if (!cuda::has_short_indices(images))
    return {};
  return cuda::Plan<W>{p, transposed, tables, images};
}

// Enlarging reads few rows for each row that it writes; reducing writes few for each that it reads,
// unless it leaves rows out.
template <class W>
bool run_sums(const cuda::Plan<W>& plan) {
  const cuda::RowImages& m = plan.images;
  const bool enlarges = m.h * m.w >= m.src_h * m.src_w;
  const bool leaves_out_rows = m.h * plan.tables[1]->width < m.src_h;
  if ((enlarges || leaves_out_rows) && cuda::can_slide_window(plan)) {
    cuda::slide_window(plan);
    return true;
  }
  const SharedTable<W> readers = cached_tables<W>(plan.problem.axes, !plan.transposed)[1];
  if (cuda::can_sum_rows(plan, *readers)) {
    cuda::sum_rows(plan, readers);
  } else if (cuda::can_sum_pixels(*readers)) {
    cuda::sum_pixels(plan, readers);
  } else if (cuda::can_slide_window(plan)) {
    cuda::slide_window(plan);
  } else {
    return false;
  }
  return true;
}

bool run_fast(const ResampleProblem& p, bool transposed) {
  const auto fast = plan<float>(p, transposed);
  if (!fast)
    return false;
  if (cuda::can_copy(*fast)) {
    cuda::copy_elements(*fast);
    return true;
  }
  if (contains(cuda::SummedTypes<float>{}, p.src_dtype))
    return run_sums(*fast);
  if (contains(cuda::SummedTypes<double>{}, p.src_dtype))
    return run_sums(*plan<double>(p, transposed));
  return false;
}

// Runs a checked call. An image whose rows are not dense is copied where that is worth it.
void run(
    const at::Tensor& src,
    const at::Tensor& dst,
    const ResampleOptions& options,
    bool forward) {
  if (dst.numel() == 0)
    return;
  ResampleProblem p = resample_problem(src, dst, options, forward);
  at::Tensor image = src; // lives as long as it is read
  if (!cuda::has_dense_rows(p)) {
    image = with_dense_rows(src, dst, options);
    p = resample_problem(image, dst, options, forward);
  }
  if (!run_fast(p, !forward))
    cuda::run_reference(p, !forward);
}

at::Tensor
resample(const at::Tensor& src, c10::SymIntArrayRef size, const ResampleOptions& options) {
  const c10::DeviceGuard guard(src.device());
  at::Tensor dst = resample_output(src, size, options);
  run(src, dst, options, true);
  return dst;
}

at::Tensor resample_backward(
    const at::Tensor& grad,
    c10::SymIntArrayRef src_size,
    const ResampleOptions& options) {
  const c10::DeviceGuard guard(grad.device());
  at::Tensor dst = resample_backward_output(grad, src_size, options);
  run(grad, dst, options, false);
  return dst;
}

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  m.impl("resample", resample_kernel<resample>);
  m.impl("resample_backward", resample_backward_kernel<resample_backward>);
}

} // namespace
} // namespace torch_dnnl
