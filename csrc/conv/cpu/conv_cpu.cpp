// Convolution on the CPU: the kernels, in order of preference. What each can compute is said by the
// kernel (supports), when it is chosen by choose.cpp (prefers).
#include <torch/library.h>

#include <cstring>
#include <iterator>
#include <string_view>

#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/packed/buffer.h"
#include "conv/cpu/shared/preparing.h"
#include "conv/cpu/shared/problems/canonical.h"
#include "conv/on_device.h"
#include "conv/reference.h"
#include "core/cpu/parallel.h"
#include "core/math.h"
#include "core/torch/run_kernel.h"

namespace torch_dnnl {
namespace {

void run_reference(const ConvProblem& p) {
  const int64_t cost = 64 +
      (p.pass == ConvPass::forward             ? p.ic * product(p.kernel)
           : p.pass == ConvPass::backward_data ? p.oc * product(p.kernel)
                                               : p.n * product(p.dst_size));
  with_reference(
      p, [&](const auto& functor) { for_each_element(output_elements(p), cost, functor); });
}

using ConvKernel = PackingKernel<ConvProblem>;

constexpr ConvKernel kernels[] = {
    {{"pixel_lanes", supports_pixel_lanes, prefers_pixel_lanes, nullptr},
     &pixel_lanes_packing,
     run_pixel_lanes},
    {{"channel_lanes", supports_channel_lanes, prefers_channel_lanes, run_channel_lanes},
     &channel_lanes_packing},
    {{"brgemm", supports_brgemm, prefers_brgemm, nullptr}, &brgemm_packing, run_brgemm},
    {{"gemm", supports_gemm, prefers_gemm, run_gemm}, &gemm_packing},
    {{"few_outputs", supports_few_outputs, prefers_few_outputs, run_few_outputs},
     &few_outputs_packing},
    {{"winograd_2x2", supports_winograd_2x2, prefers_winograd_2x2, run_winograd_2x2},
     &winograd_2x2_packing},
    {{"winograd_4x4", supports_winograd_4x4, prefers_winograd_4x4, run_winograd_4x4},
     &winograd_4x4_packing},
    {{"few_inputs", supports_few_inputs, prefers_few_inputs, run_few_inputs}, &direct_packing},
    {{"blocked", always, prefers_blocked, run_blocked}, &direct_packing},
    {{"reference", always, always, run_reference}},
};

bool is_winograd(const ConvKernel& kernel) {
  return std::string_view(kernel.name).starts_with("winograd");
}

// Runs a kernel, or the next one where the kernel cannot compute the data. A profile has the names
// of both.
void run_kernel(const ConvKernel& kernel, const ConvProblem& p) {
  if (kernel.attempt == nullptr)
    return run<ConvProblem>(kernel, p);
  {
    const Profiled profiled(kernel.name);
    if (kernel.attempt(p))
      return;
  }
  run<ConvProblem>(
      choose(
          kernels,
          p,
          [](const auto& next, const ConvProblem& q) {
            return next.attempt == nullptr && next.prefers(q);
          }),
      p);
}

// The kernel of a family, or of the name that is asked for.
const ConvKernel& kernel_of(std::string_view algorithm, const ConvProblem& p) {
  if (algorithm != "direct" && algorithm != "winograd")
    return kernel_named(kernels, algorithm, name_of(p.pass), p);
  return choose(kernels, p, [&](const auto& kernel, const ConvProblem& q) {
    if (!is_winograd(kernel))
      return kernel.prefers(q);
    const bool is_best_tile = (kernel.run == run_winograd_2x2) == prefers_tiles_2x2(q);
    return algorithm == "winograd" && is_best_tile;
  });
}

// The problem of a call with packed weights. It keeps taps that only meet pads.
ConvProblem packed_problem(const ConvKernel& kernel, const ConvProblem& p) {
  return is_winograd(kernel) ? p : with_long_axes(p);
}

// Sizes of 0, such as an empty batch, are for the reference alone, whatever is asked for.
bool is_empty(const ConvProblem& p) {
  return p.n * p.groups * p.ic * p.oc * product(p.src_size) * product(p.kernel) *
      product(p.dst_size) ==
      0;
}

bool uses_reference(const ConvProblem& p, std::string_view algorithm) {
  const bool is_family = algorithm == "auto" || algorithm == "direct" || algorithm == "winograd";
  return is_empty(p) || algorithm == "reference" || (is_family && prefers_reference(p));
}

// A kernel, and the problem of a call as the kernel takes it.
struct Choice {
  const ConvKernel& kernel;
  ConvProblem problem;

  void run() const {
    run_or_prepare(problem, [&kernel = kernel](const ConvProblem& p) { run_kernel(kernel, p); });
  }
};

Choice choice(const ConvProblem& p, std::string_view algorithm) {
  if (uses_reference(p, algorithm))
    return {kernels[std::size(kernels) - 1], p};
  // Winograd, if that is asked for, takes taps that only meet pads, too.
  const ConvProblem q = algorithm.starts_with("winograd") ? p : canonical(p);
  return {kernel_of(algorithm, q), q};
}

Choice choice_of_packed(
    const ConvProblem& problem,
    std::string_view algorithm,
    const at::Tensor& packed,
    bool has_weights) {
  if (is_empty(problem))
    return choice(problem, algorithm);
  if (const ConvKernel* const kernel = kernel_of_packed(kernels, packed)) {
    ConvProblem p = packed_problem(*kernel, problem);
    // Plain weights without the taps that only meet pads have other sums.
    const ConvProblem plain = is_winograd(*kernel) ? problem : canonical(problem);
    if (has_weights && product(plain.kernel) < product(problem.kernel))
      return kernel->supports(plain) ? Choice{*kernel, plain} : choice(problem, algorithm);
    p = with_packed(p, packed);
    if (is_packed_for(packed, *kernel, p, problem))
      return {*kernel, p};
  }
  conv_detail::check_has_weights(
      "convolution", has_weights, "these are packed for another call, CPU or version");
  return choice(problem, algorithm);
}

struct Cpu {
  // The weights of a forward problem, packed for the kernel that it runs; no elements where that
  // kernel reads plain weights.
  static at::Tensor pack(const ConvProblem& p, std::string_view algorithm) {
    if (uses_reference(p, algorithm))
      return empty({0}, c10::kByte);
    ConvProblem q = algorithm.starts_with("winograd") ? p : with_long_axes(p);
    q.packed = &q; // so that the rules know; nothing reads it
    const ConvKernel& kernel = kernel_of(algorithm, q);
    return kernel.packing == nullptr ? empty({0}, c10::kByte)
                                     : packed_by(kernel, packed_problem(kernel, p), p);
  }

  static void compute_packed(
      const ConvProblem& p,
      std::string_view algorithm,
      const at::Tensor& packed,
      bool has_weights) {
    choice_of_packed(p, algorithm, packed, has_weights).run();
  }

  static void compute(const ConvProblem& p, std::string_view algorithm) {
    const Choice chosen = choice(p, algorithm);
    if (p.pass == ConvPass::backward_weights && product(chosen.problem.kernel) < product(p.kernel))
      std::memset(p.out, 0, output_elements(p) * c10::elementSize(p.dtype));
    chosen.run();
  }
  static void fused_backward(const FusedBackward& call) {
    fused_backward_in_parts(call, compute);
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  register_convolutions<Cpu>(m);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl, m) {
  list_kernels(m, "convolution", "cpu", kernels);
}

TORCH_LIBRARY_FRAGMENT(torch_dnnl_prepare, m) {
  m.def("convolution_packed", prepare<with_options<ConvOnDevice<Cpu>::packed>>);
}

} // namespace
} // namespace torch_dnnl
