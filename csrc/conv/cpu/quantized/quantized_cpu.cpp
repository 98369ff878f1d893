// Quantized convolution on the CPU: the kernels, in order of preference. All have the same bits.
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "conv/cpu/quantized/kernels.h"
#include "conv/cpu/shared/packed/buffer.h"
#include "conv/cpu/shared/preparing.h"
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

using QuantizedKernel = PackingKernel<QuantizedProblem>;

constexpr QuantizedKernel kernels[] = {
    {{"depthwise_quads",
      supports_quantized_depthwise_quads,
      prefers_quantized_depthwise_quads,
      run_quantized_depthwise_quads},
     &quantized_depthwise_quads_packing},
    {{"depthwise",
      supports_quantized_depthwise,
      prefers_quantized_depthwise,
      run_quantized_depthwise},
     &quantized_depthwise_packing},
    {{"brgemm", supports_quantized_brgemm, always, run_quantized_brgemm},
     &quantized_brgemm_packing},
    {{"winograd_2x2",
      supports_quantized_winograd,
      prefers_quantized_winograd,
      run_quantized_winograd},
     &quantized_winograd_packing},
    {{"pairs", supports_quantized_pairs, always, run_quantized_pairs}, &quantized_pairs_packing},
    {{"reference", always, always, run_reference}},
};

// The problem of a call with packed weights. It keeps taps that only meet pads.
QuantizedProblem packed_problem(QuantizedProblem q) {
  q.conv = with_joined_pixels(with_long_axes(q.conv));
  return q;
}

// The attributes of a call, and the type of the weights.
ConvProblem as_called(const QuantizedProblem& q) {
  ConvProblem p = q.conv;
  p.dtype = c10::kChar;
  return p;
}

constexpr const char* op = "quantized_convolution";

// Sums of nothing, or nothing to sum.
bool is_empty(const QuantizedProblem& q) {
  return q.conv.ic * product(q.conv.kernel) * product(q.conv.src_size) * output_elements(q.conv) ==
      0;
}

bool uses_reference(const QuantizedProblem& q, std::string_view algorithm) {
  const bool is_family = algorithm == "auto" || algorithm == "direct" || algorithm == "winograd";
  return is_empty(q) || algorithm == "reference" || (is_family && prefers_reference(q));
}

void run_kernel(const QuantizedKernel& kernel, const QuantizedProblem& problem) {
  run_or_prepare(problem, [&kernel](const QuantizedProblem& q) { run(kernel, q); });
}

struct Cpu {
  static constexpr bool kReadsMemory = true;

  static at::Tensor pack(const QuantizedProblem& q, std::string_view algorithm) {
    if (uses_reference(q, algorithm))
      return empty({0}, c10::kByte);
    const QuantizedProblem p = packed_problem(q);
    const bool is_family = algorithm == "direct" || algorithm == "winograd";
    const QuantizedKernel& kernel = kernel_named(kernels, is_family ? "auto" : algorithm, op, p);
    return kernel.packing == nullptr ? empty({0}, c10::kByte) : packed_by(kernel, p, as_called(q));
  }

  static void compute_packed(
      const QuantizedProblem& q,
      std::string_view algorithm,
      const at::Tensor& packed,
      bool has_weights) {
    if (is_empty(q))
      return compute(q, algorithm);
    if (const QuantizedKernel* const kernel = kernel_of_packed(kernels, packed)) {
      QuantizedProblem p = packed_problem(q);
      p.conv = with_packed(p.conv, packed);
      if (is_packed_for(packed, *kernel, p, as_called(q)))
        return run_kernel(*kernel, p);
    }
    conv_detail::check_has_weights(
        op, has_weights, "these are packed for another call, CPU or version");
    compute(q, algorithm);
  }

  static void compute(QuantizedProblem q, std::string_view algorithm) {
    if (uses_reference(q, algorithm))
      return run_kernel(kernels[std::size(kernels) - 1], q);
    q.conv = with_joined_pixels(canonical(q.conv));
    const bool is_family = algorithm == "direct" || algorithm == "winograd";
    run_kernel(kernel_named(kernels, is_family ? "auto" : algorithm, op, q), q);
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  QuantizedOnDevice<Cpu>::register_in(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "quantized_convolution", "cpu", kernels);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl_prepare, m) {
  m.def("quantized_convolution_packed", prepare<with_options<QuantizedOnDevice<Cpu>::packed>>);
}

} // namespace
} // namespace torch_dnnl
