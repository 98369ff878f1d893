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

} // namespace torch_dnnl
