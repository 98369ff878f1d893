// The dense kernels of float64.
#include "conv/cuda/dense/run.h"

namespace torch_dnnl::cuda {

template void run_dense_product<double, false>(const DenseProblem&, bool);

} // namespace torch_dnnl::cuda
