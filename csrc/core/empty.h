// Where results come from.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_cpu_dispatch.h>

namespace torch_dnnl {

// at::empty_symint, which reaches the CPU's allocator without the dispatcher: two
// dispatches take as long as a small operator.
inline at::Tensor empty(c10::SymIntArrayRef sizes, const at::TensorOptions& options) {
  return options.device().is_cpu() ? at::cpu::empty_symint(sizes, options)
                                   : at::empty_symint(sizes, options);
}

} // namespace torch_dnnl
