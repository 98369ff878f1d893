// Dense convolution: which problems it takes, and how they become matrix products.
#include <optional>

#include "conv/cuda/kernels.h"
#include "conv/cuda/shared/prepare.h"
#include "core/cuda/vector.h"
#include "core/dispatch.h"

namespace torch_dnnl::cuda {
namespace {

template <class T>
void run(const ConvProblem& p) {
  DenseProblem d = make_problem<T>(p);
  std::optional<Scratch> packed;
  if (p.pass != ConvPass::backward_weights)
    packed = place_weights<T>(d);
  d.stores_whole = has_chunks<T>(d.straight, p.n);
  if (p.preactivation != nullptr) // has the strides of the straight image
    d.stores_whole &= is_aligned(p.preactivation, kWidestAccess);
  if (p.residual != nullptr) {
    const int64_t* size = is_data(p) ? p.src_size : p.dst_size;
    d.stores_whole &=
        has_chunks<T>(make_image(p.residual, p.residual_stride, size, d.straight.channels), p.n);
  }
  const bool vectors = has_chunks<T>(d.gathered, p.n) &&
      (p.pass != ConvPass::backward_weights || has_chunks<T>(d.straight, p.n));
  if constexpr (std::is_same_v<T, float>) {
    if (allows_tf32())
      return run_dense_product<T, true>(d, vectors);
  }
  run_dense_product<T, sizeof(T) == 2>(d, vectors);
}

} // namespace

bool supports_dense(const ConvProblem& p) {
  return p.n > 0 && fits(p);
}

void run_dense(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) { run<typename decltype(tag)::type>(p); });
}

} // namespace torch_dnnl::cuda
