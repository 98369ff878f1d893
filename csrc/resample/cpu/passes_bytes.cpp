// The passes of the rows kernel for images of uint8, and those that move elements of 1 to 8 bytes.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template const ImagePasses<float>& passes_of<uint8_t, float>();
template const ImagePasses<float>& moves_of<uint8_t>();
template const ImagePasses<float>& moves_of<uint16_t>();
template const ImagePasses<float>& moves_of<uint32_t>();
template const ImagePasses<double>& moves_of<uint64_t>();

} // namespace torch_dnnl
