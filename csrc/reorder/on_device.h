// Reorder and fake quantization on a device, made of the device's kernels.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <type_traits>

#include "core/kernel_list.h"
#include "core/torch/run_kernel.h"
#include "reorder/fake_reorder.h"
#include "reorder/reorder.h"

namespace torch_dnnl {

// What a device registers: read the call, allocate, and run a kernel where there are elements.
// Device has a table of kernels for each operator.
template <class Device>
struct ReorderOnDevice {
  static at::Tensor reorder(const at::Tensor& src, const ReorderOptions& options) {
    const ReorderArguments call = reorder_arguments(src, options);
    at::Tensor dst = reorder_output(call, call.dtype);
    if constexpr (!is_meta) {
      const c10::DeviceGuard guard(src.device());
      if (dst.numel() > 0)
        compute(Device::kernels, reorder_problem(call, dst), options);
    }
    return dst;
  }

  static FakeReorderOutputs quantize(const at::Tensor& src, const FakeReorderOptions& options) {
    const FakeReorderArguments call = fake_reorder_arguments(src, options);
    at::Tensor dst = reorder_output(call.reorder, call.result_dtype);
    at::Tensor mask = empty(call.mask_size, src.options().dtype(c10::kByte));
    if constexpr (!is_meta) {
      const c10::DeviceGuard guard(src.device());
      if (src.numel() > 0) {
        FakeReorderProblem p = fake_reorder_problem(call, dst, mask);
        p.mask = mask.mutable_data_ptr<uint8_t>();
        p.step_gradient = options.step_gradient;
        compute(Device::quantizing_kernels, p, options.reorder);
      } else {
        mask.zero_();
      }
    }
    return {std::move(dst), std::move(mask)};
  }

  static at::Tensor
  mask(const at::Tensor& grad, const at::Tensor& saved_mask, const ReorderOptions& options) {
    const auto call = fake_reorder_backward_arguments(grad, saved_mask, options);
    at::Tensor dst = reorder_output(call.reorder, call.result_dtype);
    if constexpr (!is_meta) {
      const c10::DeviceGuard guard(grad.device());
      if (grad.numel() > 0) {
        const at::Tensor dense = saved_mask.contiguous();
        FakeReorderProblem p = fake_reorder_problem(call, dst, dense);
        p.saved_mask = dense.const_data_ptr<uint8_t>();
        compute(Device::masking_kernels, p, options);
      }
    }
    return dst;
  }

  static void register_in(torch::Library& m) {
    m.impl("reorder", reorder_kernel<reorder>);
    m.impl("reorder_backward", reorder_backward_kernel<reorder>);
    m.impl("fake_reorder", fake_reorder_kernel<quantize>);
    m.impl("fake_reorder_backward", fake_reorder_backward_kernel<mask>);
  }

  // `device`: "cpu" or "cuda".
  static void list_in(torch::Library& m, const char* device) {
    list_kernels(m, "reorder", device, Device::kernels);
    list_kernels(m, "fake_reorder", device, Device::quantizing_kernels);
  }

 private:
  static constexpr bool is_meta = std::is_same_v<Device, Meta>;

  template <class Problem, size_t n>
  static void
  compute(const Kernel<Problem> (&kernels)[n], const Problem& p, const ReorderOptions& options) {
    run(kernel_named(kernels, options.algorithm, options.names.op, p), p);
  }
};

} // namespace torch_dnnl
