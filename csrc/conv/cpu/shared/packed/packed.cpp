#include "conv/cpu/shared/packed/packed.h"

namespace torch_dnnl {

const char* cpu_library() {
#if defined(CPU_CAPABILITY_AVX512)
  return "avx512";
#elif defined(CPU_CAPABILITY_AVX2)
  return "avx2";
#else
  return "default";
#endif
}

} // namespace torch_dnnl
