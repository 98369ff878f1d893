// Neighbouring elements moved by one instruction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {

constexpr size_t kWidestAccess = 16; // bytes of the widest load and store of one thread

template <class T, int n>
struct alignas(sizeof(T) * n) Vector {
  static_assert(sizeof(T) * n <= kWidestAccess && (n & (n - 1)) == 0);
  T at[n];
};

// `address` is a multiple of the vector's size: see is_aligned.
template <int n, class T>
__device__ __forceinline__ Vector<T, n> load_vector(const T* address) {
  return *reinterpret_cast<const Vector<T, n>*>(address);
}

template <int n, class T>
__device__ __forceinline__ void store_vector(T* address, const Vector<T, n>& value) {
  *reinterpret_cast<Vector<T, n>*>(address) = value;
}

inline bool is_aligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

} // namespace torch_dnnl::cuda
