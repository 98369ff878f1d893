// The passes of the rows kernel for bfloat16 and float16 images.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template const ImagePasses<float>& passes_of<c10::BFloat16, float>();
template const ImagePasses<float>& passes_of<c10::Half, float>();

} // namespace torch_dnnl
