// The dense kernels of float16.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template void run_dense_product<c10::Half, true>(const DenseProblem&, bool);

} // namespace torch_dnnl::cuda
