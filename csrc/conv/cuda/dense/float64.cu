// The dense kernels of float64.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template <>
void run_dense_product<double, false>(const DenseProblem& p, bool vectors) {
  DenseRun<double, false>(p).run<Shape<64, 64, 2>>(vectors);
}

} // namespace torch_dnnl::cuda
