// The passes of the rows kernel for images of other types: integers that networks do not have, and
// results whose type is not that of the image they are made of. They are converted from lines.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template const ImagePasses<float>& passes_of<int8_t, float>();
template const ImagePasses<float>& passes_of<int16_t, float>();
template const ImagePasses<float>& passes_of<int32_t, float>();
template const ImagePasses<float>& passes_of<double, float>();
template const ImagePasses<double>& passes_of<int8_t, double>();
template const ImagePasses<double>& passes_of<int16_t, double>();
template const ImagePasses<double>& passes_of<int32_t, double>();
template const ImagePasses<double>& passes_of<uint8_t, double>();
template const ImagePasses<double>& passes_of<float, double>();
template const ImagePasses<double>& passes_of<c10::BFloat16, double>();
template const ImagePasses<double>& passes_of<c10::Half, double>();

} // namespace torch_dnnl
