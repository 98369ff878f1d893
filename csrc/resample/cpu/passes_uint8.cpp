// The passes of the rows kernel for images of bytes.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template <>
const ImagePasses<float>& passes_of<uint8_t, float>() {
  return kPasses<uint8_t>;
}

} // namespace torch_dnnl
