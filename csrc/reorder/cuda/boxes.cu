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

int64_t widest_size(const ReorderProblem& p) {
  return std::max(c10::elementSize(p.src_dtype), c10::elementSize(p.dst_dtype));
}

void run_box(const ReorderProblem& p, Box box) {
  const int64_t size = widest_size(p);
  if (box.elements() <= kMaxCount / size) {
    if (needs_transpose(p, box.axes))
      run_tiles(p, boxes::BoxGroup(box));
    else
      run_straight(p, box);
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

// All boxes with their padding as tiles, by one launch where there are not too many, if that is the
// quickest; whether it was. It is for whatever transposes. Others have a launch for each box and
// for the padding, as each has packs of its own width and often its own kernel; but launches of few
// bytes take longer than the detour through shared memory.
bool run_together(const ReorderProblem& p) {
  constexpr int64_t kFew = 4 << 20;
  const int64_t bytes = p.elements() * widest_size(p);
  if (bytes > kMaxCount)
    return false;
  const std::optional<boxes::BoxGroup> group = boxes::group_boxes(p);
  if (!group || group->axes.size() > kMaxAxes)
    return false;
  const bool is_quicker = bytes <= kFew || needs_transpose(p, group->axes);
  if (is_quicker)
    run_tiles(p, *group);
  return is_quicker;
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
  boxes::Boxes all = boxes::decompose(p);
  if (all.size() > 1 && run_together(p))
    return;
  for (Box& box : all)
    run_box(p, std::move(box));
}

void run_reference(const ReorderProblem& p) {
  dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
    cuda::for_each_element<cuda::kReferenceBlocks>(
        p.elements(), ReorderElement<typename decltype(tag)::type>{p});
  });
}

} // namespace torch_dnnl::reorder_cuda
