// What torch's profiler counts of a convolution.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/profiler/api.h>

#include <optional>
#include <vector>

#include "conv/problem.h"

namespace torch_dnnl {

// With with_flops=True the profiler counts operators that it knows by name; aten::conv2d's products
// are those of a convolution. So a forward pass then has a range of this name within, of a
// convolution with a kernel of 1 over as many channels as the kernel has elements. torch's counts
// leave out backward passes and transposed convolutions, and so do these.
class CountedProducts {
 public:
  explicit CountedProducts(const ConvProblem& p) {
    if (p.pass != ConvPass::forward || !torch::profiler::impl::profilerEnabled() ||
        !torch::profiler::impl::getProfilerConfig().with_flops)
      return;
    record_.emplace(at::RecordScope::FUNCTION);
    if (!record_->isActive())
      return;
    const auto product = [](const int64_t (&of)[3]) { return of[0] * of[1] * of[2]; };
    const int64_t inputs = p.ic * product(p.kernel), pixels = product(p.dst_size);
    const std::vector<int64_t> one{1, 1}, zero{0, 0};
    arguments_ = {
        sizes_alone({p.n, p.groups * inputs, pixels, 1}),
        sizes_alone({p.groups * p.oc, inputs, 1, 1}),
        at::IValue(), // no bias
        one,          // strides
        zero,         // padding
        one,          // dilation
        p.groups};
    record_->before(
        "aten::conv2d", c10::ArrayRef<const at::IValue>(arguments_.data(), arguments_.size()));
  }

 private:
  static at::Tensor sizes_alone(at::IntArrayRef sizes) {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>(), c10::kCPU);
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return tensor;
  }

  std::vector<at::IValue> arguments_; // longer than the range
  std::optional<at::RecordFunction> record_;
};

} // namespace torch_dnnl
