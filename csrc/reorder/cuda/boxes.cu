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

void run_box(const ReorderProblem& p, Box box) {
  const int64_t size = std::max(c10::elementSize(p.src_dtype), c10::elementSize(p.dst_dtype));
  if (box.elements() <= kMaxCount / size) {
    needs_transpose(p, box) ? run_transpose(p, box) : run_straight(p, box);
    return;
  }
  // Too large: as two halves.
  auto& axes = box.axes;
  const auto longest = std::max_element(
      axes.begin(), axes.end(), [](auto& a, auto& b) { return a.extent < b.extent; });
  constexpr int64_t kAligned = 1024;
  int64_t half = longest->extent / 2;
  half -= half > kAligned ? half % kAligned : 0;
  Box rest = box;
  boxes::advance(rest.offset, longest->stride, half);
  rest.axes[longest - axes.begin()].extent -= half;
  longest->extent = half;
  run_box(p, std::move(box));
  run_box(p, std::move(rest));
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
  return std::all_of(
      all.begin(), all.end(), [](const Box& box) { return box.axes.size() <= kMaxAxes; });
}

void run_boxes(const ReorderProblem& p) {
  for (Box& box : boxes::decompose(p))
    run_box(p, std::move(box));
}

void run_reference(const ReorderProblem& p) {
  dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
    cuda::for_each_element(p.elements(), ReorderElement<typename decltype(tag)::type>{p});
  });
}

} // namespace torch_dnnl::reorder_cuda
