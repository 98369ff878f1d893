#include "reorder/cpu/reference.h"

#include "core/cpu/parallel.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Operations for a byte of a mask: eight elements.
constexpr int64_t kByteCost = 256;

// f(std::type_identity<C>) for the type that is computed in.
template <class F>
void with_computed(const FakeReorderProblem& p, const F& f) {
  dispatch(TypeList<double, float>{}, p.reorder.compute_dtype, f);
}

} // namespace

void run_reference(const ReorderProblem& p) {
  int64_t elements = 1;
  for (int64_t k = 0; k < p.dst_digits; k++)
    elements *= p.dst_digit[k].extent;
  dispatch(ReorderComputeTypes{}, p.compute_dtype, [&](auto tag) {
    for_each_element(elements, /*cost=*/32, ReorderElement<typename decltype(tag)::type>{p});
  });
}

void fake_quantize_reference(const FakeReorderProblem& p) {
  with_computed(p, [&](auto tag) {
    using C = typename decltype(tag)::type;
    for_each_element(p.rows * p.row_bytes, kByteCost, FakeReorderByte<C>{p});
  });
}

void mask_gradient_reference(const FakeReorderProblem& p) {
  with_computed(p, [&](auto tag) {
    using C = typename decltype(tag)::type;
    for_each_element(p.rows * p.row_bytes, kByteCost, FakeReorderBackwardByte<C>{p});
  });
}

} // namespace torch_dnnl
