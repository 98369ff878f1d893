// The operators of resample on a device, made of what the device can compute.
#pragma once

#include <c10/core/DeviceGuard.h>

#include "core/kernel_list.h"
#include "resample/resample.h"

namespace torch_dnnl {

// How many elements a copy takes in the time of fetching one element of the result one by one.
constexpr int64_t kCopiedPerFetched = 64;

// What a device registers: allocate the output and let Device::compute a problem that is not empty,
// by the algorithm that is asked for.
template <class Device>
struct ResampleOnDevice {
  static at::Tensor compute(const at::Tensor& src, const ResampleArguments& call) {
    const c10::DeviceGuard guard(src.device());
    at::Tensor dst = resample_output(src, call);
    if (dst.numel() == 0)
      return dst;
    ResampleProblem p = resample_problem(src, dst, call);
    at::Tensor image = src; // lives as long as it is read
    // An image may be so much larger than the result (an expanded one may have any size) that a
    // copy would take longer than the rest.
    const bool may_copy = src.numel() / kCopiedPerFetched <= dst.numel();
    if (call.algorithm != "reference" && may_copy && !Device::has_dense_rows(p)) {
      image = src.contiguous(call.nxc ? at::MemoryFormat::Contiguous : memory_format(dst));
      p = resample_problem(image, dst, call);
    }
    Device::compute(p, call.algorithm);
    return dst;
  }

  static void register_in(torch::Library& m) {
    register_resample<compute>(m);
  }
};

// The name of the operator that a problem belongs to, for messages.
inline const char* name_of(const ResampleProblem& p) {
  return p.transposed ? "resample_backward" : "resample";
}

} // namespace torch_dnnl
