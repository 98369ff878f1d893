// The kernels of reorder and of fake quantization.
#pragma once

#include "reorder/box.h"
#include "reorder/cuda/box_group.h"
#include "reorder/fake_reference.h"
#include "reorder/problem.h"

namespace torch_dnnl::reorder_cuda {

// What a kernel's arguments have room for.
constexpr size_t kMaxAxes = 8;
// Of a box's elements or, where it is moved as bytes, bytes: they are counted in 31 bits.
#ifdef TORCH_DNNL_CUDA_ON_HOST
constexpr int64_t kMaxCount = int64_t(1) << 16; // so that tests have boxes that are too large
#else
constexpr int64_t kMaxCount = (int64_t(1) << 31) - 1;
#endif

// Strides and offsets of src and dst are in bytes, those of operands in elements.
inline boxes::Offsets in_bytes(boxes::Offsets elements, int64_t src_size, int64_t dst_size) {
  elements[boxes::kSrc] *= src_size;
  elements[boxes::kDst] *= dst_size;
  return elements;
}

// A problem as boxes (reorder/box.h), unless there are very many, or groups that do not nest; of
// formats that anybody uses, one or two. Padding is boxes of its own. See boxes.cu.
bool supports_boxes(const ReorderProblem& p);
void run_boxes(const ReorderProblem& p);
void run_reference(const ReorderProblem& p);

// A box whose elements are next to each other on both sides, or any: see straight.cu.
void run_straight(const ReorderProblem& p, const boxes::Box& box);

// A box of rows that are computed in float, with what is the same along them: converted_rows.cu.
bool supports_converted_rows(const ReorderProblem& p, const boxes::Box& box);
void run_converted_rows(const ReorderProblem& p, const boxes::Box& box);

// Boxes with these axes have elements next to each other in different directions; run_tiles is
// made for them, but takes any: see transpose.cu.
bool needs_transpose(const ReorderProblem& p, const boxes::Axes& axes);
void run_tiles(const ReorderProblem& p, const boxes::BoxGroup& boxes);

// fake_reorder and its backward: see fake_reorder.cu.
bool supports_packs(const FakeReorderProblem& p);
void fake_quantize(const FakeReorderProblem& p);
void mask_gradient(const FakeReorderProblem& p);
void fake_quantize_reference(const FakeReorderProblem& p);
void mask_gradient_reference(const FakeReorderProblem& p);

} // namespace torch_dnnl::reorder_cuda
