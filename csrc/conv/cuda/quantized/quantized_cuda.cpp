// Quantized convolution on CUDA: the kernels, in order of preference. All have the bits of the
// CPU's.
#include <torch/library.h>

#include <string_view>

#include "conv/cuda/quantized/kernels.h"
#include "conv/quantized/on_device.h"
#include "core/cuda/device.h"
#include "core/torch/run_kernel.h"

namespace torch_dnnl {
namespace {

// Whether tiles of 64 output channels and of 16 input channels would be mostly empty. A thread that
// multiplies words takes some `times` as long for a product as tensor cores do.
bool prefers_depthwise(const QuantizedProblem& q) {
  constexpr int64_t columns = 64, bytes = 16, times = 16;
  const ConvProblem& p = q.conv;
  return round_up(p.oc, columns) * round_up(p.ic, bytes) > times * p.ic * p.oc;
}

constexpr Kernel<QuantizedProblem> kernels[] = {
    {"depthwise",
     cuda::supports_quantized_depthwise,
     prefers_depthwise,
     cuda::run_quantized_depthwise},
    {"dense", cuda::supports_quantized_dense, always, cuda::run_quantized_dense},
    {"reference", always, always, cuda::run_quantized_reference},
};

struct Cuda {
  static void compute(const QuantizedProblem& p, std::string_view algorithm) {
    const bool is_family = algorithm == "direct" || algorithm == "winograd";
    run(kernel_named(kernels, is_family ? "auto" : algorithm, "quantized_convolution", p), p);
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, TORCH_DNNL_CUDA_KEY, m) {
  QuantizedOnDevice<Cuda>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "quantized_convolution", TORCH_DNNL_CUDA_NAME, kernels);
}

} // namespace
} // namespace torch_dnnl
