// Where results come from, and where there is nothing but their sizes.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/ops/empty_strided.h>

#include "core/cpu/huge_pages.h"

namespace torch_dnnl {

// In the place of a device: what is registered for meta tensors allocates and computes nothing.
struct Meta {};

// A tensor that is about to be written for the first time.
inline at::Tensor in_huge_pages(at::Tensor empty) {
  if (empty.is_cpu())
    prefer_huge_pages(empty.mutable_data_ptr(), static_cast<int64_t>(empty.nbytes()));
  return empty;
}

// at::empty_symint, which reaches the CPU's allocator without the dispatcher: two
// dispatches take as long as a small operator.
inline at::Tensor empty(c10::SymIntArrayRef sizes, const at::TensorOptions& options) {
  return options.device().is_cpu() ? in_huge_pages(at::cpu::empty_symint(sizes, options))
                                   : at::empty_symint(sizes, options);
}

inline at::Tensor empty_strided(
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    const at::TensorOptions& options) {
  return in_huge_pages(at::empty_strided_symint(sizes, strides, options));
}

} // namespace torch_dnnl
