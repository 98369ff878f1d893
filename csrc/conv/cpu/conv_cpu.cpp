// Convolution on the CPU: the kernels, in order of preference.
#include <torch/library.h>

#include <cstring>

#include "conv/cpu/activation_gradient.h"
#include "conv/cpu/canonical.h"
#include "conv/cpu/depthwise.h"
#include "conv/cpu/direct.h"
#include "conv/cpu/narrow.h"
#include "conv/cpu/patches.h"
#include "conv/cpu/planes.h"
#include "conv/cpu/shallow.h"
#include "conv/cpu/tasks.h"
#include "conv/cpu/winograd.h"
#include "conv/on_device.h"
#include "conv/reference.h"
#include "core/parallel.h"

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

struct Kernel {
  const char* name;
  bool (*can_run)(const ConvProblem&);
  void (*run)(const ConvProblem&);
};

// The first that can run a problem runs it.
constexpr Kernel kernels[] = {
    {"planes", can_run_planes, run_planes},
    {"depthwise", can_run_depthwise, run_depthwise},
    {"patches", can_run_patches, run_patches},
    {"narrow", can_run_narrow, run_narrow},
    {"winograd", can_run_winograd, run_winograd},
    {"shallow", can_run_shallow, run_shallow},
    {"direct", can_run_direct, run_direct},
};

// Multiply-adds, and outputs, that take less time than a kernel takes to get ready. Strides may
// leave outputs of backward data without any.
bool is_tiny(const ConvProblem& p) {
  constexpr int64_t few = 1024;
  const int64_t products = p.n * p.groups * p.oc * p.ic * product(p.kernel) * product(p.dst_size);
  return products == 0 || (products <= few && output_elements(p) <= few);
}

void compute(const ConvProblem& p) {
  if (p.algorithm == ConvAlgorithm::reference || is_tiny(p)) {
    return run_reference(p);
  }
  // Winograd, if that is asked for, takes taps that only meet pads, too.
  const ConvProblem q = p.algorithm == ConvAlgorithm::winograd ? p : canonical(p);
  if (p.pass == ConvPass::backward_weights && product(q.kernel) < product(p.kernel))
    std::memset(p.out, 0, output_elements(p) * c10::elementSize(p.dtype));
  for (const auto& kernel : kernels) {
    if (kernel.can_run(q))
      return kernel.run(q);
  }
  run_reference(p);
}

struct Cpu {
  // A part of h and what is made of it stay in the second- and third-level cache. Where products
  // take most of the time, what is done once for a part, such as Winograd's transforms of weights,
  // weighs more.
  static int64_t part_bytes(int64_t products) {
    return int64_t(products < 64 ? 4 : 6) << 20;
  }

  static void compute(const ConvProblem& p) {
    torch_dnnl::compute(p);
  }
  static void compute(
      const ActivationGradient& p,
      const at::Tensor& /*h*/,
      int64_t /*channel*/,
      const at::Tensor& sums) {
    activation_gradient(p, sums.defined() ? sums.mutable_data_ptr<double>() : nullptr);
  }
};

TORCH_LIBRARY_IMPL(torch_dnnl, CPU, m) {
  ConvOnDevice<Cpu>::register_in(m);
}

} // namespace
} // namespace torch_dnnl
