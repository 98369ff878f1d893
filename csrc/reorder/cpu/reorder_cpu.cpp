// Reorder and fake quantization on the CPU: the kernels, in order of preference.
#include <torch/library.h>

#include "reorder/cpu/kernels.h"
#include "reorder/on_device.h"

namespace torch_dnnl {
namespace {

struct Cpu {
  static constexpr Kernel<ReorderProblem> kernels[] = {
      {"boxes", supports_boxes, always, run_boxes},
      {"reference", always, always, run_reference},
  };
  static constexpr Kernel<FakeReorderProblem> quantizing_kernels[] = {
      {"boxes", supports_fake_quantize, always, fake_quantize},
      {"reference", always, always, fake_quantize_reference},
  };
  static constexpr Kernel<FakeReorderProblem> masking_kernels[] = {
      {"boxes", always, always, mask_gradient},
      {"reference", always, always, mask_gradient_reference},
  };
};

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  ReorderOnDevice<Cpu>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  ReorderOnDevice<Cpu>::list_in(m, "cpu");
}

} // namespace
} // namespace torch_dnnl
