// The passes of the rows kernel for float64 images, and for lines of float64.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template <>
const ImagePasses<double>& passes_of<double, double>() {
  return kPasses<double>;
}

} // namespace torch_dnnl
