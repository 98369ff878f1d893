// Kernels that serve operators with any arguments: they get a call as a stack of values.
#pragma once

#include <ATen/core/stack.h>
#include <torch/library.h>

#include <memory>
#include <utility>

namespace torch_dnnl {

using torch::jit::Stack;

// The kernel f(operator, keys, stack), which puts the outputs in the place of the arguments.
template <class F>
torch::CppFunction boxed(F f) {
  struct Kernel : c10::OperatorKernel {
    explicit Kernel(F f) : f(std::move(f)) {}
    F f;

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
      f(op, keys, stack);
    }
  };
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(f)));
}

// Calls of an operator that other operators compute, in steps that are differentiable and have
// batching rules.
struct InSteps {
  bool (*applies)(const c10::IValue* args) = nullptr;
  void (*call)(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) = nullptr;

  // Whether the call was made.
  bool try_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) const {
    const c10::IValue* args = stack->data() + stack->size() - op.schema().arguments().size();
    if (applies == nullptr || !applies(args))
      return false;
    call(op, keys, stack);
    return true;
  }
};

} // namespace torch_dnnl
