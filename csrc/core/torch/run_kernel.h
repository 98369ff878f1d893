// Kernels as torch sees them: listed by an operator, and shown by torch.profiler.
#pragma once

#include <ATen/record_function.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "core/kernel_list.h"

namespace torch_dnnl {

// While it lives, a profile has the kernel's name under that of the operator.
struct Profiled {
  explicit Profiled(const char* kernel) : guard_(at::RecordScope::FUNCTION) {
    if (guard_.isActive())
      guard_.before(
          std::string("torch_dnnl::kernel::") + kernel, c10::ArrayRef<const c10::IValue>());
  }

 private:
  at::RecordFunction guard_;
};

template <class Problem>
void run(const Kernel<Problem>& kernel, const Problem& p) {
  const Profiled profiled(kernel.name);
  kernel.run(p);
}

// Defines the operator <primitive>_kernels_<device>() -> str[], which returns the table's names.
template <class Row, size_t n>
void list_kernels(
    torch::Library& m,
    const std::string& primitive,
    const std::string& device,
    const Row (&kernels)[n]) {
  std::vector<std::string> names;
  for (const Row& kernel : kernels)
    names.emplace_back(kernel.name);
  const std::string schema = primitive + "_kernels_" + device + "() -> str[]";
  m.def(schema.c_str(), [names] { return names; });
}

} // namespace torch_dnnl
