// The dense kernels of float32, exact and in TF32.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template <>
void run_dense_product<float, true>(const DenseProblem& p, bool vectors) {
  run_best_shape<float, true, Shape<128, 128, 2>, Shape<64, 64, 2>>(p, vectors);
}

template <>
void run_dense_product<float, false>(const DenseProblem& p, bool vectors) {
  run_best_shape<float, false, Shape<128, 64, 2>, Shape<64, 64, 2>>(p, vectors);
}

} // namespace torch_dnnl::cuda
