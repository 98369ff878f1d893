// What the CPU kernels of convolution share: scratch memory, and work dealt out to threads.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>

#include "core/huge_pages.h"

namespace torch_dnnl {

// A multiply-add takes a core about 10 ps: tasks of fewer are not worth a thread.
inline constexpr int64_t kTaskOperations = 500000;

inline int64_t product(const int64_t* size) {
  return size[0] * size[1] * size[2];
}

inline int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

// The digits of a number, such as that of a task; the first one runs fastest.
struct Digits {
  int64_t rest;

  int64_t next(int64_t count) {
    const int64_t digit = rest % count;
    rest /= count;
    return digit;
  }
};

template <class C>
struct Scratch {
  explicit Scratch(int64_t n) : memory(c10::GetCPUAllocator()->allocate(n * sizeof(C))) {
    prefer_huge_pages(memory.get(), n * sizeof(C));
  }
  c10::DataPtr memory;
  C* data() const {
    return static_cast<C*>(memory.get());
  }
};

// f(begin, end) over parts of [0, tasks), each of about so many operations.
template <class F>
void parallel_tasks(int64_t tasks, int64_t operations, const F& f) {
  at::parallel_for(0, tasks, kTaskOperations / std::max<int64_t>(operations, 1) + 1, f);
}

} // namespace torch_dnnl
