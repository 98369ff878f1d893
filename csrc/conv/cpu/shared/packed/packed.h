// Weights in the layout that a kernel reads.
#pragma once

#include <cstdint>

#include "conv/problem.h"
#include "core/cpu/scratch.h"
#include "core/kernel_list.h"

namespace torch_dnnl {

// The name of the library of kernels: layouts have its vectors.
const char* cpu_library();

// How a kernel packs weights once for many calls, whose problems have them as `packed`. The layout
// depends on the weights, the attributes and `layout`, not on sizes of images or on threads.
template <class Problem>
struct Packing {
  int64_t (*size)(const Problem& p);        // bytes
  bool (*pack)(const Problem& p, void* to); // false: the kernel does not take these weights
  // Equal numbers say equal layouts. If the problem has packed weights and their layout serves the
  // problem, the number is that of their layout.
  int64_t (*layout)(const Problem& p) = nullptr;
};

template <class Problem>
struct PackingKernel : Kernel<Problem> {
  const Packing<Problem>* packing = nullptr; // null: the kernel reads weights as they are
  // In the place of `run`, of a kernel that may meet data which it cannot compute. False: another
  // kernel has to compute the problem.
  bool (*attempt)(const Problem&) = nullptr;
};

// Those that the problem brings; else memory of `size` elements that pack(C* to) fills.
template <class C>
class PackedWeights {
 public:
  template <class Pack>
  PackedWeights(const ConvProblem& p, int64_t size, const Pack& pack)
      : own_(p.packed == nullptr ? size : 0), data_(static_cast<const C*>(p.packed)) {
    if (data_ == nullptr) {
      pack(own_.data());
      data_ = own_.data();
    }
  }
  const C* data() const {
    return data_;
  }

 private:
  const Scratch<C> own_;
  const C* data_;
};

} // namespace torch_dnnl
