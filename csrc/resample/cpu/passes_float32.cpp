// The passes of the rows kernel for float32 images, and for lines of float32.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template <>
const ImagePasses<float>& passes_of<float, float>() {
  return kPasses<float>;
}

} // namespace torch_dnnl
