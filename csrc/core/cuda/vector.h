// Neighbouring elements moved by one instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

// A vector as words, zeros at first: for what a branch loads or leaves. Of a Vector that comes out
// of a branch, compilers keep each element of 8 or 16 bits in a register.
template <class T, int n>
class PackedVector {
 public:
  using Word = std::conditional_t<sizeof(T) * n % sizeof(uint32_t) == 0, uint32_t, T>;

  __device__ __forceinline__ void load(const T* address) {
    words_ = *reinterpret_cast<const Words*>(address);
  }
  // `address` is in global memory. Compilers take a vector apart and have to find that its words
  // make one access; in large functions they give up looking.
  __device__ __forceinline__ void store(T* address) const {
#ifdef __CUDA_ARCH__
    const size_t global = __cvta_generic_to_global(address);
    if constexpr (sizeof(words_) == 16) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                   :
                   : "l"(global), "r"(word(0)), "r"(word(1)), "r"(word(2)), "r"(word(3))
                   : "memory");
      return;
    } else if constexpr (sizeof(words_) == 8) {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(global), "r"(word(0)), "r"(word(1))
                   : "memory");
      return;
    }
#endif
    *reinterpret_cast<Words*>(address) = words_;
  }
  __device__ __forceinline__ void set(const Vector<T, n>& vector) {
    std::memcpy(&words_, &vector, sizeof(vector));
  }
  __device__ __forceinline__ Vector<T, n> get() const {
    Vector<T, n> vector;
    std::memcpy(&vector, &words_, sizeof(vector));
    return vector;
  }
  __device__ __forceinline__ Word& word(int i) {
    return words_.at[i];
  }
  __device__ __forceinline__ const Word& word(int i) const {
    return words_.at[i];
  }

 private:
  using Words = Vector<Word, sizeof(T) * n / sizeof(Word)>;
  Words words_{};
};

inline bool is_aligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

} // namespace torch_dnnl::cuda
