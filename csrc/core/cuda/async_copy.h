// Copies from global to shared memory that go on while the thread computes (cp.async).
//
// A thread issues copies, closes groups of them with commit(), and waits until no more than a few
// of its latest groups are under way. Its own copies have then arrived; other threads see them
// after a barrier.
#pragma once

#include <cstdint>
#include <cstring>

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

// The copies of one thread.
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
    open_.push_back({shared, valid ? global : nullptr});
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
          std::memcpy(copy.shared, copy.global, 16);
        else
          std::memset(copy.shared, 0, 16);
    }
  }

 private:
  struct Copy {
    void* shared;
    const void* global;
  };
  std::vector<Copy> open_;
  std::deque<std::vector<Copy> > groups_;
};

#endif

} // namespace torch_dnnl::cuda
