// How the functions of this folder call operators: argument by argument, checked by name against
// the schema of the library that is loaded. For these headers alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_dnnl {

// Sizes, strides and such; empty where the operator is to use its default.
using Sizes = std::vector<int64_t>;

namespace detail {

inline c10::OperatorHandle find(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({std::string("torch_dnnl::") + name, ""});
  TORCH_CHECK(
      op.has_value(), name, ": expected torch_dnnl::load() to have loaded the operators, got none");
  return *op;
}

class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {
    stack_.reserve(schema().arguments().size());
  }

  // The next argument of the schema.
  template <class T>
  Call& operator()(std::string_view name, const T& value) {
    check(name);
    stack_.emplace_back(value);
    return *this;
  }

  // Whether a list is optional in the schema is up to the library: None is then its default.
  Call& operator()(std::string_view name, const Sizes& value) {
    check(name);
    const auto& type = schema().arguments()[stack_.size()].type();
    const bool is_none = value.empty() && type->kind() == c10::TypeKind::OptionalType;
    stack_.push_back(is_none ? c10::IValue() : c10::IValue(value));
    return *this;
  }

  // The arguments that a struct of options stands for.
  template <class Options>
  Call& with(const Options& options) {
    options.pass(*this);
    return *this;
  }

  // The results.
  torch::jit::Stack run() {
    check({});
    op_.callBoxed(stack_);
    return std::move(stack_);
  }

  at::Tensor tensor() {
    return run().front().toTensor();
  }

  std::pair<at::Tensor, at::Tensor> tensors() {
    const auto results = run();
    return {results[0].toTensor(), results[1].toTensor()};
  }

 private:
  const c10::FunctionSchema& schema() const {
    return op_.schema();
  }

  // Whether `name` is the next argument; no name: whether there are no more arguments.
  void check(std::string_view name) const {
    const auto& arguments = schema().arguments();
    const size_t next = stack_.size();
    std::string_view expected;
    if (next < arguments.size())
      expected = arguments[next].name();
    TORCH_CHECK(
        name == expected,
        schema().name(),
        ": expected headers of the version of the library, got the argument \"",
        name,
        "\" in the place of \"",
        expected,
        "\"");
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack stack_;
};

} // namespace detail
} // namespace torch_dnnl
