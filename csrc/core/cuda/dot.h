// Products of four bytes by four bytes, added up in int32 by one instruction (dp4a).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {

// sum + the products of the bytes of a, of type T, and the signed bytes of b: modulo 2^32.
template <class T>
__device__ __forceinline__ int32_t dot(uint32_t a, uint32_t b, int32_t sum) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, uint8_t>)
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  else
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
#else
  T of_a[4];
  int8_t of_b[4];
  std::memcpy(of_a, &a, sizeof(a));
  std::memcpy(of_b, &b, sizeof(b));
  for (int i = 0; i < 4; i++)
    sum += of_a[i] * of_b[i];
#endif
  return sum;
}

} // namespace torch_dnnl::cuda
