// Fake quantization on CUDA.
#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "reorder/fake_reorder.h"

namespace torch_dnnl {
namespace {

using ComputeTypes = TypeList<double, float>;

void quantize(const FakeReorderProblem& p) {
  dispatch(ComputeTypes{}, p.reorder.compute_dtype, [&](auto tag) {
    cuda::for_each_element(p.rows * p.row_bytes, FakeReorderByte<typename decltype(tag)::type>{p});
  });
}

void mask(const FakeReorderProblem& p) {
  dispatch(ComputeTypes{}, p.reorder.compute_dtype, [&](auto tag) {
    cuda::for_each_element(
        p.rows * p.row_bytes, FakeReorderBackwardByte<typename decltype(tag)::type>{p});
  });
}

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  FakeReorderOnDevice<quantize, mask>::register_in(m);
}

} // namespace
} // namespace torch_dnnl
