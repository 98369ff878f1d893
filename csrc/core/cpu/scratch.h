// Memory that a kernel needs while it runs.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <cstdint>

#include "core/cpu/huge_pages.h"

namespace torch_dnnl {

// n values, not initialised, in ATen's aligned memory.
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

} // namespace torch_dnnl
