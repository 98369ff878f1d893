// Runs CUDA kernels on the CPU, for tests on machines without a GPU.
//
// A kernel is compiled as C++20 with this header in place of cuda_runtime.h. Blocks run one after
// another. The threads of a block are fibers: each has its own stack and runs until it waits in
// __syncthreads or a warp intrinsic, then the next one goes on. So
//   - it is quick (a switch takes nanoseconds, whatever the number of cores) and repeatable;
//   - to ThreadSanitizer the fibers are concurrent threads ordered by nothing but __syncthreads
//     and __syncwarp (a shuffle or a vote orders no memory, as in CUDA): a missing barrier is
//     reported as a data race even though the run is sequential;
//   - a barrier that some thread never reaches is an exception, never a hang;
//   - to AddressSanitizer, shared memory is an ordinary object of exactly the size asked for, so
//     that an overrun by one element is reported.
// Shared memory is filled with 0xff bytes (NaN in every floating type) before each block.
// Not to be had here: threads that spin until another thread writes, and races between blocks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

// Internal linkage makes the __shared__ variables of kernel templates ones that AddressSanitizer
// guards. The tag goes into a variable's symbol name, by which shared_memory.ld finds it.
#define __global__ static
#define __shared__ static __attribute__((abi_tag("cuda_shared")))
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define CUDA_ON_HOST_VECTORS(type, name)                             \
  struct alignas(2 * sizeof(type)) name##2 {                         \
    type x, y;                                                       \
  };                                                                 \
  struct alignas(sizeof(type) < 8 ? 4 * sizeof(type) : 16) name##4 { \
    type x, y, z, w;                                                 \
  };                                                                 \
  inline name##2 make_##name##2(type x, type y) {                    \
    return {x, y};                                                   \
  }                                                                  \
  inline name##4 make_##name##4(type x, type y, type z, type w) {    \
    return {x, y, z, w};                                             \
  }
CUDA_ON_HOST_VECTORS(signed char, char)
CUDA_ON_HOST_VECTORS(unsigned char, uchar)
CUDA_ON_HOST_VECTORS(short, short)
CUDA_ON_HOST_VECTORS(unsigned short, ushort)
CUDA_ON_HOST_VECTORS(int, int)
CUDA_ON_HOST_VECTORS(unsigned, uint)
CUDA_ON_HOST_VECTORS(long long, longlong)
CUDA_ON_HOST_VECTORS(float, float)
CUDA_ON_HOST_VECTORS(double, double)
#undef CUDA_ON_HOST_VECTORS

inline constexpr int warpSize = 32;
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

using std::max;
using std::min;

namespace cuda_on_host {

// Runs thread() for each thread of the grid. An extent beyond the device's limits, an exception
// in a thread and a barrier not reached by all are thrown.
void run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

// The running block's dynamic shared memory.
void* dynamic_shared();

void sync_block();
void sync_warp(unsigned mask);

// Gives `value` to the warp's lanes in `mask` and receives the values of the `count` lanes from
// `source` on; 0xff bytes for a lane that takes no part.
void exchange(
    unsigned mask,
    const void* value,
    size_t bytes,
    unsigned source,
    void* received,
    unsigned count);

// Lane of the calling thread within its warp.
inline unsigned lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

template <class T>
T shuffle(unsigned mask, const T& value, unsigned source) {
  static_assert(std::is_trivially_copyable_v<T>);
  T received;
  exchange(mask, &value, sizeof(T), source, &received, 1);
  return received;
}

// All the warp's values, by lane: what votes and matrix instructions are made from.
template <class T>
std::array<T, warpSize> gather(unsigned mask, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::array<T, warpSize> values;
  exchange(mask, &value, sizeof(T), 0, values.data(), warpSize);
  return values;
}

} // namespace cuda_on_host

// How many kernels the process has launched; for tests in Python.
extern "C" __attribute__((visibility("default"))) int64_t cuda_on_host_launches();

inline void __syncthreads() {
  cuda_on_host::sync_block();
}

inline void __syncwarp(unsigned mask = ~0u) {
  cuda_on_host::sync_warp(mask);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  const unsigned lane = cuda_on_host::lane();
  return cuda_on_host::shuffle(mask, value, lane / width * width + unsigned(source) % width);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const unsigned lane = cuda_on_host::lane();
  return cuda_on_host::shuffle(mask, value, lane % width < delta ? lane : lane - delta);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const unsigned lane = cuda_on_host::lane();
  const bool inside = lane % width + delta < unsigned(width);
  return cuda_on_host::shuffle(mask, value, inside ? lane + delta : lane);
}

// Lanes of a later group of `width` are out of reach, those of an earlier one are not.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
  const unsigned lane = cuda_on_host::lane(), source = lane ^ unsigned(lane_mask);
  const bool inside = source < (lane / width + 1) * width;
  return cuda_on_host::shuffle(mask, value, inside ? source : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto predicates = cuda_on_host::gather(mask, static_cast<unsigned char>(predicate != 0));
  unsigned ballot = 0;
  for (int lane = 0; lane < warpSize; lane++)
    ballot |= unsigned(predicates[lane] == 1) << lane;
  return ballot;
}

inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}

inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

// Atomic, but like CUDA's it orders no other memory.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
