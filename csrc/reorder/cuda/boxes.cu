// Reorder box by box, each by the kernel that its layout asks for; and the reference.
#include <algorithm>

#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "reorder/cuda/kernels.h"
#include "reorder/decompose.h"
#include "reorder/reference.h"

namespace torch_dnnl::reorder_cuda {
namespace {

using boxes::Box;

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

bool fits(const Box& box) {
  return box.axes.size() <= kMaxAxes;
}

// No fewer axes than a box of the problem has before neighbouring ones are merged.
size_t most_axes(const ReorderProblem& p) {
  size_t digits = 0, padded_digits = 1;
  for (int64_t dim = 0; dim < p.dims; dim++)
    digits += boxes::detail::common_steps(p, dim).size();
  for (const ReorderProblem::Digit& digit : p.dst_layout)
    padded_digits += digit.extent > 1;
  return std::max(digits, padded_digits);
}

} // namespace

bool supports_boxes(const ReorderProblem& p) {
  if (!boxes::has_boxes(p))
    return false;
  if (most_axes(p) <= kMaxAxes)
    return true;
  const boxes::Boxes all = boxes::decompose(p);
  return std::all_of(all.values.begin(), all.values.end(), fits) &&
      std::all_of(all.padding.begin(), all.padding.end(), fits);
}

void run_boxes(const ReorderProblem& p) {
  boxes::Boxes all = boxes::decompose(p);
  for (Box& box : all.values)
    run_task(p, {std::move(box), /*is_padding=*/false});
  for (Box& box : all.padding)
    run_task(p, {std::move(box), /*is_padding=*/true});
}

void run_reference(const ReorderProblem& p) {
  dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
    cuda::for_each_element(p.elements(), ReorderElement<typename decltype(tag)::type>{p});
  });
}

} // namespace torch_dnnl::reorder_cuda
