// The passes of the rows kernel for images and lines of float32 and float64.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template const ImagePasses<float>& passes_of<float, float>();
template const ImagePasses<double>& passes_of<double, double>();

} // namespace torch_dnnl
