// The dense kernels of float32, exact and in TF32.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template void run_dense_product<float, true>(const DenseProblem&, bool);
template void run_dense_product<float, false>(const DenseProblem&, bool);

} // namespace torch_dnnl::cuda
