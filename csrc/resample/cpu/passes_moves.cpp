// The passes of the rows kernel that move elements of 1, 2, 4 and 8 bytes.
#include "resample/cpu/row_kernels.h"

namespace torch_dnnl {

template <class E>
const ImagePasses<WeightOf<E>>& moves_of() {
  return kMoves<E>;
}

template const ImagePasses<float>& moves_of<uint8_t>();
template const ImagePasses<float>& moves_of<uint16_t>();
template const ImagePasses<float>& moves_of<uint32_t>();
template const ImagePasses<double>& moves_of<uint64_t>();

} // namespace torch_dnnl
