// Conversions of neighbouring elements of 16 bits, two by an instruction: one by one, they take
// compilers up to four instructions each.
#pragma once

#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "core/cuda/vector.h"
#include "core/numeric.h"

namespace torch_dnnl::cuda {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;

template <class C, class T, int n>
__device__ __forceinline__ void widen(const PackedVector<T, n>& packed, C (&values)[n]) {
  const auto vector = packed.get();
#pragma unroll
  for (int i = 0; i < n; i++)
    values[i] = static_cast<C>(vector.at[i]);
  if constexpr (std::is_same_v<T, c10::BFloat16> && std::is_same_v<C, float> && n % 2 == 0) {
    // The upper half of a word is a float when the lower one is cleared.
#pragma unroll
    for (int i = 1; i < n; i += 2) {
      const uint32_t bits = packed.word(i / 2) & 0xffff0000;
      std::memcpy(&values[i], &bits, sizeof(bits));
    }
  }
}

// To nearest, ties to even. NaN stays NaN, with whatever bits the instruction gives it, unless
// kCanonical: then it is what convert() makes of it.
template <class T, bool kCanonical, int n, class C>
__device__ __forceinline__ PackedVector<T, n> narrowed(const C (&values)[n]) {
  PackedVector<T, n> packed;
#ifdef __CUDA_ARCH__
  if constexpr (kIsHalf<T> && std::is_same_v<C, float> && n % 2 == 0) {
    constexpr bool is_bfloat16 = std::is_same_v<T, c10::BFloat16>;
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      using Pair = std::conditional_t<is_bfloat16, __nv_bfloat162, __half2>;
      Pair pair;
      if constexpr (is_bfloat16)
        pair = __floats2bfloat162_rn(values[i], values[i + 1]);
      else
        pair = __floats2half2_rn(values[i], values[i + 1]);
      uint32_t bits;
      std::memcpy(&bits, &pair, sizeof(bits));
      // The instruction makes 0x7fff of NaN, the largest number when read as int16.
      constexpr uint32_t kNan = is_bfloat16 ? 0x7fc0 : 0x7e00;
      packed.word(i / 2) = kCanonical ? __vmins2(bits, kNan << 16 | kNan) : bits;
    }
    return packed;
  } else
#endif
  {
    Vector<T, n> result;
#pragma unroll
    for (int i = 0; i < n; i++)
      result.at[i] =
          kCanonical || std::is_integral_v<T> ? convert<T>(values[i]) : static_cast<T>(values[i]);
    packed.set(result);
    return packed;
  }
}

} // namespace torch_dnnl::cuda
