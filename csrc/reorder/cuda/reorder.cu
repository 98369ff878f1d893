// Reorder on CUDA: which kernel runs.
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "reorder/cuda/kernels.h"
#include "reorder/decompose.h"
#include "reorder/fake_reorder.h"
#include "reorder/reference.h"
#include "reorder/reorder.h"

namespace torch_dnnl {
namespace reorder_cuda {
namespace {

using boxes::Box;

void run_reference(const ReorderProblem& p, int64_t elements) {
  dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
    cuda::for_each_element(elements, ReorderElement<typename decltype(tag)::type>{p});
  });
}

void run_task(const ReorderProblem& p, Task task) {
  const int64_t size = std::max(c10::elementSize(p.src_dtype), c10::elementSize(p.dst_dtype));
  if (task.box.elements() <= kMaxCount / size) {
    needs_transpose(p, task) ? run_transpose(p, task.box) : run_straight(p, task);
    return;
  }
  // Too large: as two halves.
  auto& axes = task.box.axes;
  const auto longest = std::max_element(
      axes.begin(), axes.end(), [](auto& a, auto& b) { return a.extent < b.extent; });
  constexpr int64_t kAligned = 1024;
  int64_t half = longest->extent / 2;
  half -= half > kAligned ? half % kAligned : 0;
  Task rest = task;
  boxes::advance(rest.box.offset, longest->stride, half);
  rest.box.axes[longest - axes.begin()].extent -= half;
  longest->extent = half;
  run_task(p, std::move(task));
  run_task(p, std::move(rest));
}

// Boxes, unless there are very many, or groups that do not nest; of formats that anybody uses, one
// or two. Padding is boxes of its own.
void run(const ReorderProblem& p, int64_t elements) {
  const auto fits = [](const Box& box) { return box.axes.size() <= kMaxAxes; };
  const auto all_fit = [&](const auto& boxes) {
    return std::all_of(boxes.begin(), boxes.end(), fits);
  };
  boxes::Boxes all;
  if (boxes::has_boxes(p)) {
    all = boxes::boxes_of(p);
  }
  if (all.values.empty() || !all_fit(all.values) || !all_fit(all.padding)) {
    return run_reference(p, elements);
  }
  for (Box& box : all.values) {
    run_task(p, {std::move(box), /*is_padding=*/false});
  }
  for (Box& box : all.padding) {
    run_task(p, {std::move(box), /*is_padding=*/true});
  }
}

at::Tensor reorder(const at::Tensor& src, const ReorderOptions& options) {
  const c10::DeviceGuard guard(src.device());
  at::Tensor dst = reorder_output(src, options);
  if (dst.numel() > 0) {
    run(reorder_problem(src, dst, options), dst.numel());
  }
  return dst;
}

} // namespace
} // namespace reorder_cuda

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  m.impl("reorder", reorder_kernel<reorder_cuda::reorder>);
  m.impl("reorder_backward", reorder_backward_kernel<reorder_cuda::reorder>);
  FakeReorderOnDevice<reorder_cuda::quantize, reorder_cuda::mask>::register_in(m);
}

} // namespace torch_dnnl
