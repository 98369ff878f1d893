// The definitions of reorder and of fake quantization, in a loop over all elements.
#include "reorder/cpu/kernels.h"

#include "core/cpu/parallel.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Operations for a byte of a mask: eight elements.
constexpr int64_t kByteCost = 256;

} // namespace

void run_reference(const ReorderProblem& p) {
  dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
    for_each_element(p.elements(), /*cost=*/32, ReorderElement<typename decltype(tag)::type>{p});
  });
}

void fake_quantize_reference(const FakeReorderProblem& p) {
  with_computed(p, [&]<class C>(std::type_identity<C>) {
    for_each_element(p.rows * p.row_bytes, kByteCost, FakeReorderByte<C>{p});
  });
}

void mask_gradient_reference(const FakeReorderProblem& p) {
  with_computed(p, [&]<class C>(std::type_identity<C>) {
    for_each_element(p.rows * p.row_bytes, kByteCost, FakeReorderBackwardByte<C>{p});
  });
}

} // namespace torch_dnnl
