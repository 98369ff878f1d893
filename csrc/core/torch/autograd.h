// Differentiation of the operators, written once for all of them.
//
// An operator is differentiable when it says, for each tensor argument, how the
// gradient of its output becomes the gradient of that argument (a Pullback) and
// how a tangent of that argument becomes a tangent of the output. Both are made
// of operators that are differentiable themselves, so every order of derivative
// follows. The kernels made here do what ATen's generated code does: record a
// torch::autograd::Node, set forward-mode tangents, go on below Autograd; so
// gradcheck, forward mode, torch.func, torch.compile, export and compiled
// autograd all work.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/torch/boxed.h"

namespace torch_dnnl {

// The gradient of one argument: apply(gradient of the output, saved). `saved`
// may hold tensors, lists of SymInt, and constants.
struct Pullback {
  using Function = at::Tensor (*)(const at::Tensor& grad, const Stack& saved);
  Function apply = nullptr;
  Stack saved;
};

// An argument whose gradient is wanted, and what its pullback has saved.
struct ArgumentToDifferentiate {
  size_t argument;
  Stack saved;
};

// For an operator that ends in a function of one value, element by element: result = f(inner).
struct Ending {
  // Makes a call that will be differentiated return what the derivative of f needs.
  void (*prepare)(c10::IValue* args);
  // Whether the second output is `inner`, which is differentiated then too.
  bool (*returns_inner)(const Stack& args);
  // Multiplies a gradient or a tangent by f'; without a function where f is the identity. It saves
  // no tensors but outputs.
  Pullback (*derivative)(const Stack& args, const at::Tensor& result);
  // The gradients of several arguments, from that of the result alone, in one call; null where they
  // are computed one step after the other. `saved`: of the derivative, and of the pullback of each
  // of the arguments.
  std::vector<at::Tensor> (*gradients)(
      const at::Tensor& grad,
      const Stack& saved,
      const std::vector<ArgumentToDifferentiate>& arguments) = nullptr;
};

struct Derivatives {
  // The pullback of tensor argument `argument`; one without a function where
  // there is no gradient. `args` is the call, in the order of the schema, and
  // then its outputs but the first, which is the one that is differentiated.
  Pullback (*pullback)(size_t argument, const Stack& args);
  // The tangent of the output for a tangent of that argument; it may have fewer elements, and is
  // broadcast.
  at::Tensor (*pushforward)(size_t argument, const at::Tensor& tangent, const Stack& args);
  // If the operator has an ending, the two above are those of its inner value.
  const Ending* ending = nullptr;
};

// Those of operators for inference.
inline const Derivatives no_derivatives{
    [](size_t, const Stack&) { return Pullback{}; },
    [](size_t, const at::Tensor&, const Stack&) { return at::Tensor(); }};

// The kernel for the Autograd key. Calls that are made in steps are, where there is something to
// differentiate.
torch::CppFunction differentiable(Derivatives derivatives, InSteps in_steps = {});

// The same of an operator that only saves time. `decomposition`, made of operators that are
// differentiable, is called where there is something to differentiate. If these have batching
// rules, it is also the kernel for the FuncTorchBatched key.
torch::CppFunction differentiable_by(c10::KernelFunction decomposition);

template <size_t n>
struct OperatorName {
  char text[n];
  constexpr OperatorName(const char (&name)[n]) {
    std::copy(name, name + n, text);
  }
};

// Calls an operator of this library through the dispatcher, where it is looked up once. All of its
// outputs; the first one.
template <OperatorName name>
Stack call_outputs(Stack args) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.text, "");
  op.callBoxed(args);
  return args;
}
template <OperatorName name>
at::Tensor call(Stack args) {
  return std::move(call_outputs<name>(std::move(args)).front()).toTensor();
}

} // namespace torch_dnnl
