// The dense kernels of float16.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template <>
void run_dense_product<c10::Half, true>(const DenseProblem& p, bool vectors) {
  run_best_shape<c10::Half, true, Shape<128, 128, 2>, Shape<256, 64, 4>, Shape<64, 64, 2>>(
      p, vectors);
}

} // namespace torch_dnnl::cuda
