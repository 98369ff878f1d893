// The dense kernels of float64.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template <>
void run_dense_product<double, false>(const DenseProblem& p, bool vectors) {
  run_best_shape<double, false, Shape<64, 64, 2>>(p, vectors);
}

} // namespace torch_dnnl::cuda
