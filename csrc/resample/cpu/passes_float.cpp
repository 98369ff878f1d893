// The passes of the rows kernel for images of floating types.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template const ImagePasses<float>& passes_of<float, float>();
template const ImagePasses<double>& passes_of<double, double>();
template const ImagePasses<float>& passes_of<c10::BFloat16, float>();
template const ImagePasses<float>& passes_of<c10::Half, float>();

} // namespace torch_dnnl
