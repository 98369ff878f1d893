// Resample on CUDA: the kernels, in order of preference.
#include <torch/library.h>

#include <optional>

#include "core/cuda/device.h"
#include "core/torch/run_kernel.h"
#include "resample/cuda/kernels.h"
#include "resample/on_device.h"

namespace torch_dnnl {
namespace {

template <class W>
using Plan = cuda::ResamplePlan<W>;

// A problem, planned once for all fast kernels. They take one type, axes of bounded length that are
// read in order, dense rows and indices in 32 bits; where that does not hold there are no plans.
struct PlannedProblem {
  const ResampleProblem& problem;
  std::optional<Plan<float>> plan;
  std::optional<Plan<double>> plan_in_double; // if sums are kept in float64
};

template <class W>
std::optional<Plan<W>> plan_of(const ResampleProblem& p) {
  if (p.src_dtype != p.dst_dtype)
    return {};
  for (const AxisSpec& axis : p.axes)
    if (std::max(axis.in, axis.out) > cuda::kLongestAxis || is_flipped(axis))
      return {};
  if (!cuda::has_dense_rows(p))
    return {};
  const Tables<W> tables = cached_tables<W>(p.axes, p.transposed);
  const cuda::RowImages images = cuda::row_images(p, tables);
  if (!cuda::has_short_indices(images))
    return {};
  return Plan<W>{p, tables, images};
}

PlannedProblem planned(const ResampleProblem& p) {
  if (contains(cuda::SummedTypes<double>{}, p.src_dtype))
    return {p, plan_of<float>(p), plan_of<double>(p)};
  return {p, plan_of<float>(p), {}};
}

// f(the plan in the type of the sums); false or nothing if there is none.
template <class R, R (*in_float)(const Plan<float>&), R (*in_double)(const Plan<double>&)>
R on_plan(const PlannedProblem& p) {
  if (p.plan_in_double)
    return in_double(*p.plan_in_double);
  if (p.plan && contains(cuda::SummedTypes<float>{}, p.problem.src_dtype))
    return in_float(*p.plan);
  return R();
}

bool supports_copy(const PlannedProblem& p) {
  return p.plan && cuda::can_copy(*p.plan);
}
constexpr auto supports_sliding_window =
    on_plan<bool, cuda::can_slide_window, cuda::can_slide_window>;
constexpr auto supports_sum_windows = on_plan<bool, cuda::can_sum_windows, cuda::can_sum_windows>;
constexpr auto supports_sum_rows = on_plan<bool, cuda::can_sum_rows, cuda::can_sum_rows>;
constexpr auto supports_sum_pixels = on_plan<bool, cuda::can_sum_pixels, cuda::can_sum_pixels>;

// Enlarging reads few rows for each row that it writes; reducing writes few for each that it reads,
// unless it leaves rows out.
bool prefers_sliding_window(const PlannedProblem& p) {
  const cuda::RowImages& m = p.plan->images;
  const bool enlarges = m.h * m.w >= m.src_h * m.src_w;
  const bool leaves_out_rows = m.h * p.plan->tables[1]->width < m.src_h;
  return enlarges || leaves_out_rows || !(supports_sum_rows(p) || supports_sum_pixels(p));
}

void run_copy(const PlannedProblem& p) {
  cuda::copy_elements(*p.plan);
}
void run_reference(const PlannedProblem& p) {
  cuda::run_reference(p.problem);
}

constexpr Kernel<PlannedProblem> kernels[] = {
    {"copy", supports_copy, always, run_copy},
    {"sliding_window",
     supports_sliding_window,
     prefers_sliding_window,
     on_plan<void, cuda::slide_window, cuda::slide_window>},
    {"sum_windows",
     supports_sum_windows,
     always,
     on_plan<void, cuda::sum_windows, cuda::sum_windows>},
    {"sum_rows", supports_sum_rows, always, on_plan<void, cuda::sum_rows, cuda::sum_rows>},
    {"sum_pixels", supports_sum_pixels, always, on_plan<void, cuda::sum_pixels, cuda::sum_pixels>},
    {"reference", always, always, run_reference},
};

struct Cuda {
  static bool has_dense_rows(const ResampleProblem& p) {
    return cuda::has_dense_rows(p);
  }
  static void compute(const ResampleProblem& problem, std::string_view algorithm) {
    const PlannedProblem p = planned(problem);
    run(kernel_named(kernels, algorithm, name_of(problem), p), p);
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  ResampleOnDevice<Cuda>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "resample", TORCH_DNNL_CUDA_NAME, kernels);
}

} // namespace
} // namespace torch_dnnl
