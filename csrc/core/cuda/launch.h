// Launching CUDA kernels, and memory for them.
//
// Kernels are written in CUDA C++ in */cuda/*.cu and launched with the functions below. nvcc
// compiles them for the device. With TORCH_DNNL_CUDA_ON_HOST a plain C++ compiler compiles the
// same sources against tests/cuda_on_host/cuda_on_host.h, which runs a kernel on the CPU, so that
// every kernel is tested (under AddressSanitizer and ThreadSanitizer too) on machines without a
// GPU. A kernel registered under TORCH_DNNL_CUDA_KEY works in both.
#pragma once

#ifdef TORCH_DNNL_CUDA_ON_HOST
#include "cuda_on_host.h"
#else
#include <cuda_runtime.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "core/math.h"

namespace torch_dnnl::cuda {

// Memory of the current device from torch's allocator, for what one kernel leaves to the next;
// later kernels of the current stream may have it once it is given back. On the host it is filled
// with 0xff bytes: NaN in every floating type.
class Scratch {
 public:
  explicit Scratch(size_t bytes);

  void* data() const {
    return memory_.get();
  }

 private:
  std::unique_ptr<void, void (*)(void*)> memory_;
};

#ifndef TORCH_DNNL_CUDA_ON_HOST
// Launches a kernel on the current stream of the current device, given the addresses of its
// arguments. A function of its own, as torch's headers of streams take nvcc longer than most
// kernels.
void launch_kernel(
    const void* kernel,
    dim3 grid,
    dim3 block,
    size_t shared_bytes,
    void** arguments);
#endif

// Work is cut up for so many multiprocessors, as an H200 has, where bits depend on it, so that
// every GPU computes the same.
constexpr int64_t kMultiprocessors = 132;

// Those of the current device.
int64_t multiprocessors();

// Of sm_70 and newer, in code of CUDA 12.1 or newer (CUDA C++ Programming Guide, "Function
// Parameters").
constexpr size_t kMostArgumentBytes = 32'764;

// Runs kernel(args...) on the current stream of the current device. `shared_bytes` is the size of
// what dynamic_shared() returns in the kernel. Arguments are converted to the kernel's own types;
// those that have them already, which may be large, are copied by the launch alone.
template <class... P>
void launch(
    void (*kernel)(P...),
    dim3 grid,
    dim3 block,
    size_t shared_bytes,
    const std::type_identity_t<P>&... args) {
  static_assert((sizeof(P) + ... + 0) <= kMostArgumentBytes, "too many bytes of arguments");
#ifdef TORCH_DNNL_CUDA_ON_HOST
  cuda_on_host::run(grid, block, shared_bytes, [&] { kernel(args...); });
#else
  void* addresses[] = {const_cast<P*>(&args)...};
  launch_kernel(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, addresses);
#endif
}

// The block's dynamic shared memory, aligned to 1024 bytes (what a swizzled TMA tile needs).
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef TORCH_DNNL_CUDA_ON_HOST
  return static_cast<T*>(cuda_on_host::dynamic_shared());
#else
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
#endif
}

constexpr int kElementThreads = 128;
constexpr int kReferenceBlocks = 5; // of a multiprocessor: a thread of a reference has 96 registers

// The functor stays in constant memory (__grid_constant__): arrays in it that are indexed at run
// time are not copied to each thread's local memory.
template <class F, int kResidentBlocks>
__global__ void __launch_bounds__(kElementThreads, kResidentBlocks)
    for_each_element_kernel(int64_t n, const __grid_constant__ F functor) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kElementThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x; i < n;
       i += stride) {
    functor(i);
  }
}

// Calls functor(i) for 0 <= i < n (n up to 2^62), one thread per element; a thread takes several
// only when the grid's limit leaves no other way. kResidentBlocks: of a multiprocessor, which
// share its registers; 0: as the compiler likes.
template <int kResidentBlocks = 0, class F>
void for_each_element(int64_t n, F functor) {
  if (n == 0)
    return;
  const int64_t blocks = ceil_div(n, kElementThreads);
  constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
  const dim3 grid(static_cast<unsigned>(std::min(blocks, kMaxBlocks)));
  launch(for_each_element_kernel<F, kResidentBlocks>, grid, dim3(kElementThreads), 0, n, functor);
}

} // namespace torch_dnnl::cuda
