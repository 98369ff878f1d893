// Products of small matrices by a warp (mma.sync) and how their operands get there, for compute
// capability 8.0 and later: from global to shared memory while the thread computes (cp.async), and
// from there to registers (ldmatrix). On the host they are defined by what the lanes exchange.
//
// The operands of D[16][8] += A[16][k] B[k][8] lie in registers as 8 x 8 matrices of 16-bit
// elements, or 8 x 4 of 32-bit ones: lane l has row l / 4 and of it the 4 bytes from byte 4 * (l %
// 4) on. A is four such matrices: (rows 0-7, first half of k), (rows 8-15, first), (0-7, second),
// (8-15, second). B transposed is two: (first half of k), (second half). Of D, lane l has the
// elements 2 * (l % 4) and the next one of the rows l / 4 and l / 4 + 8.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/cuda/launch.h"

#ifdef TORCH_DNNL_CUDA_ON_HOST
#include <deque>
#include <vector>
#endif

namespace torch_dnnl::cuda {

#ifdef __CUDACC__

// The address of something in shared memory, as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// The copies of one thread. It issues copies, closes groups of them with commit(), and waits until
// no more than a few of its latest groups are under way. Its own copies have then arrived; other
// threads see them after a barrier.
class AsyncCopies {
 public:
  // 16 bytes between multiples of 16; zeros if not `valid`, when nothing is read. `cached`: what is
  // read stays in the L1 cache.
  template <bool cached>
  __device__ __forceinline__ void copy16(void* shared, const void* global, bool valid) {
    const uint32_t to = shared_address(shared);
    const size_t from = __cvta_generic_to_global(global);
    const int bytes = valid ? 16 : 0;
    if constexpr (cached) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                   : "memory");
    } else {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                   : "memory");
    }
  }

  // 8 bytes between multiples of 8.
  __device__ __forceinline__ void copy8(void* shared, const void* global) {
    const uint32_t to = shared_address(shared);
    const size_t from = __cvta_generic_to_global(global);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
  }

  __device__ __forceinline__ void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // Until no more than the latest `pending` groups are under way.
  template <int pending>
  __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
  }
};

#else

// Here a copy is made as late as it may be: in the wait for its group. Until then its destination
// holds NaN, so that neither reading too early nor issuing it too early goes unnoticed.
class AsyncCopies {
 public:
  template <bool cached>
  void copy16(void* shared, const void* global, bool valid) {
    std::memset(shared, 0xff, 16);
    open_.push_back({shared, valid ? global : nullptr, 16});
  }

  void copy8(void* shared, const void* global) {
    std::memset(shared, 0xff, 8);
    open_.push_back({shared, global, 8});
  }

  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  template <int pending>
  void wait() {
    for (; groups_.size() > pending; groups_.pop_front()) {
      for (const Copy& copy : groups_.front())
        if (copy.global != nullptr)
          std::memcpy(copy.shared, copy.global, copy.bytes);
        else
          std::memset(copy.shared, 0, copy.bytes);
    }
  }

 private:
  struct Copy {
    void* shared;
    const void* global;
    size_t bytes;
  };
  std::vector<Copy> open_;
  std::deque<std::vector<Copy> > groups_;
};

#endif

constexpr unsigned kWholeWarp = ~0u;

__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x) % 32; // blocks here have one dimension
}

// Four 8 x 8 matrices of 16-bit elements from shared memory; lane l says where row l % 8 of matrix
// l / 8 is, 16 bytes at a multiple of 16. `transposed`: the lanes receive columns as if rows.
template <bool transposed>
__device__ __forceinline__ void load_matrices(const void* row, uint32_t (&matrices)[4]) {
#ifdef __CUDACC__
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
#else
  const auto rows = cuda_on_host::gather(kWholeWarp, static_cast<const uint16_t*>(row));
  const int r = lane_index() / 4, c = lane_index() % 4 * 2;
  for (int i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (int e = 0; e < 2; e++)
      pair[e] = transposed ? rows[8 * i + c + e][r] : rows[8 * i + r][c + e];
    std::memcpy(&matrices[i], pair, sizeof(pair));
  }
#endif
}

// A float32 as tensor cores take it: rounded to 10 bits of fraction, ties away from zero.
__device__ __forceinline__ uint32_t to_tf32(float value) {
  uint32_t bits;
#ifdef __CUDACC__
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isfinite(value))
    bits = (bits + 0x1000) & ~0x1fffu;
#endif
  return bits;
}

// The k of multiply_add: 32 bytes of each operand's row. T is float for TF32.
template <class T>
constexpr int kMmaDepth = 32 / sizeof(T);

// In what sums of products are.
template <class T>
using MmaSum = std::conditional_t<sizeof(T) == 1, int32_t, float>;

#ifndef __CUDACC__
// What a lane needs of the others: rows of A from the 4 lanes of its own quarter of k ..., columns
// of B from the lanes of two rows of its transpose.
template <class A, class B, class Sum>
void multiply_add_on_host(Sum (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct OfA {
    uint32_t at[4];
  } rows[4];
  struct OfB {
    uint32_t at[2];
  } columns[2][4];
  const unsigned lane = lane_index();
  cuda_on_host::exchange(kWholeWarp, a, sizeof(OfA), lane / 4 * 4, rows, 4);
  cuda_on_host::exchange(kWholeWarp, b, sizeof(OfB), lane % 4 * 8, columns, 8);
  const auto element = []<class T>(std::type_identity<T>, uint32_t bits, int e) {
    T values[4 / sizeof(T)];
    std::memcpy(values, &bits, sizeof(bits));
    return static_cast<Sum>(values[e]);
  };
  const std::type_identity<A> of_a;
  const std::type_identity<B> of_b;
  for (int i = 0; i < 4; i++) {
    Sum sum = 0;
    for (int half = 0; half < 2; half++) {
      for (int k = 0; k < 4; k++)
        for (int e = 0; e < int(4 / sizeof(A)); e++)
          sum += element(of_a, rows[k].at[2 * half + i / 2], e) *
              element(of_b, columns[i % 2][k].at[half], e);
    }
    d[i] += sum;
  }
}
#endif

#define TORCH_DNNL_MMA(constraint, shape_and_types)                                            \
  asm volatile(                                                                                \
      "mma.sync.aligned." shape_and_types                                                      \
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                       \
      : "+" constraint(d[0]), "+" constraint(d[1]), "+" constraint(d[2]), "+" constraint(d[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

// d += A B in float32.
template <class T>
__device__ __forceinline__ void
multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    TORCH_DNNL_MMA("f", "m16n8k16.row.col.f32.bf16.bf16.f32");
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    TORCH_DNNL_MMA("f", "m16n8k16.row.col.f32.f16.f16.f32");
  } else {
    static_assert(std::is_same_v<T, float>);
    TORCH_DNNL_MMA("f", "m16n8k8.row.col.f32.tf32.tf32.f32");
  }
#else
  multiply_add_on_host<T, T>(d, a, b);
#endif
}

// The same of bytes, signed or not in A and signed in B, in int32: exact modulo 2^32.
template <class T>
__device__ __forceinline__ void
multiply_add(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, uint8_t>) {
    TORCH_DNNL_MMA("r", "m16n8k32.row.col.s32.u8.s8.s32");
  } else {
    static_assert(std::is_same_v<T, int8_t>);
    TORCH_DNNL_MMA("r", "m16n8k32.row.col.s32.s8.s8.s32");
  }
#else
  multiply_add_on_host<T, int8_t>(d, a, b);
#endif
}

#undef TORCH_DNNL_MMA

} // namespace torch_dnnl::cuda
