// The dense kernels of float16.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template <>
void run_dense_product<c10::Half, true>(const DenseProblem& p, bool vectors) {
  DenseRun<c10::Half, true>(p).run<Shape<128, 128, 2>, Shape<256, 64, 4>, Shape<64, 64, 2>>(
      vectors);
}

} // namespace torch_dnnl::cuda
