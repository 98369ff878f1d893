// A call of an operator that was checked once, for images of the same sizes, strides and type. What
// is left to do is to allocate the result and to run the kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_dnnl {

class PreparedCall {
 public:
  virtual ~PreparedCall() = default;
  // Weights, bias and all else are where they were. `residual` is undefined if the call has none.
  virtual at::Tensor run(const at::Tensor& src, const at::Tensor& residual) const = 0;
};

} // namespace torch_dnnl
