// Quantized convolution on the CPU: the kernels, in order of preference. All have the same bits.
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "conv/cpu/quantized/kernels.h"
#include "conv/cpu/shared/problems/canonical.h"
#include "conv/quantized/on_device.h"
#include "core/cpu/parallel.h"
#include "core/torch/run_kernel.h"

namespace torch_dnnl {
namespace {

bool prefers_reference(const QuantizedProblem& q) {
  constexpr int64_t few = 4096; // products
  const ConvProblem& p = q.conv;
  return output_elements(p) * p.ic * product(p.kernel) <= few;
}

void run_reference(const QuantizedProblem& q) {
  const int64_t cost = 64 + q.conv.ic * product(q.conv.kernel);
  with_reference(
      q, [&](const auto& functor) { for_each_element(output_elements(q.conv), cost, functor); });
}

constexpr Kernel<QuantizedProblem> kernels[] = {
    {"depthwise_quads",
     supports_quantized_depthwise_quads,
     prefers_quantized_depthwise_quads,
     run_quantized_depthwise_quads},
    {"depthwise",
     supports_quantized_depthwise,
     prefers_quantized_depthwise,
     run_quantized_depthwise},
    {"brgemm", supports_quantized_brgemm, always, run_quantized_brgemm},
    {"winograd_2x2",
     supports_quantized_winograd,
     prefers_quantized_winograd,
     run_quantized_winograd},
    {"pairs", supports_quantized_pairs, always, run_quantized_pairs},
    {"reference", always, always, run_reference},
};

struct Cpu {
  static constexpr bool kReadsMemory = true;

  static void compute(QuantizedProblem q, std::string_view algorithm) {
    constexpr const char* op = "quantized_convolution";
    const bool is_family = algorithm == "direct" || algorithm == "winograd";
    // Sums of nothing.
    const bool is_empty = q.conv.ic * product(q.conv.kernel) * product(q.conv.src_size) == 0;
    if (is_empty || algorithm == "reference" ||
        ((is_family || algorithm == "auto") && prefers_reference(q)))
      return run(kernels[std::size(kernels) - 1], q);
    q.conv = with_joined_pixels(canonical(q.conv));
    run(kernel_named(kernels, is_family ? "auto" : algorithm, op, q), q);
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  QuantizedOnDevice<Cpu>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "quantized_convolution", "cpu", kernels);
}

} // namespace
} // namespace torch_dnnl
