// Reorder and fake quantization on CUDA: the kernels, in order of preference.
#include <torch/library.h>

#include "core/cuda/device.h"
#include "reorder/cuda/kernels.h"
#include "reorder/on_device.h"

namespace torch_dnnl {
namespace {

struct Cuda {
  static constexpr Kernel<ReorderProblem> kernels[] = {
      {"boxes", reorder_cuda::supports_boxes, always, reorder_cuda::run_boxes},
      {"reference", always, always, reorder_cuda::run_reference},
  };
  static constexpr Kernel<FakeReorderProblem> quantizing_kernels[] = {
      {"boxes", reorder_cuda::supports_packs, always, reorder_cuda::fake_quantize},
      {"reference", always, always, reorder_cuda::fake_quantize_reference},
  };
  static constexpr Kernel<FakeReorderProblem> masking_kernels[] = {
      {"boxes", reorder_cuda::supports_packs, always, reorder_cuda::mask_gradient},
      {"reference", always, always, reorder_cuda::mask_gradient_reference},
  };
};

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  ReorderOnDevice<Cuda>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  ReorderOnDevice<Cuda>::list_in(m, TORCH_DNNL_CUDA_NAME);
}

} // namespace
} // namespace torch_dnnl
