#include "core/torch/autograd.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/version.h>

#include <functional>
#include <memory>
#include <utility>

namespace torch_dnnl {
namespace {

using at::Tensor;
using c10::IValue;
using c10::SymInt;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
namespace compiled = torch::dynamo::autograd;

// Edge::function is a shared_ptr before torch 2.13 and an intrusive_ptr since.
template <class T, class... Args>
auto make_node(Args&&... args) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  return c10::make_intrusive<T>(std::forward<Args>(args)...);
#else
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...), torch::autograd::deleteNode);
#endif
}

bool is_size_list(const IValue& value) {
  return (value.isIntList() || value.isSymIntList()) && !value.toListRef().empty();
}

// What a node computes: the ending's derivative, then the pullbacks, one for each edge; or all of
// it at once.
struct Steps {
  const Ending* ending = nullptr;
  Pullback derivative;
  std::vector<std::pair<size_t, Pullback>> pullbacks; // with the arguments that they are of
};

// Of the pullbacks only those that are wanted. The tensors and sizes that belong to the pullbacks,
// the last one's first, and then those of the ending's derivative live in the node: autograd must
// own the tensors, and compiled autograd turns both into inputs of its graph. What a pullback has
// saved of them are placeholders: an undefined tensor, a list of as many sizes.
variable_list run_steps(
    const Steps& steps,
    const std::vector<bool>& wanted,
    const variable_list& grads,
    const std::vector<Tensor>& tensors,
    const std::vector<SymInt>& sizes) {
  auto next_tensor = tensors.begin();
  auto next_size = sizes.begin();
  const auto filled = [&](Stack saved) {
    for (auto& value : saved) {
      if (value.isTensor()) {
        value = *next_tensor++;
      } else if (is_size_list(value)) {
        const auto end = next_size + static_cast<int64_t>(value.toListRef().size());
        value = IValue(std::vector<SymInt>(next_size, end));
        next_size = end;
      }
    }
    return saved;
  };
  variable_list result(steps.pullbacks.size());
  std::vector<Stack> of_pullbacks(result.size());
  for (size_t i = result.size(); i-- > 0;)
    of_pullbacks[i] = filled(steps.pullbacks[i].second.saved);
  std::vector<ArgumentToDifferentiate> arguments;
  for (size_t i = 0; i < result.size(); i++)
    if (wanted[i])
      arguments.push_back({steps.pullbacks[i].first, std::move(of_pullbacks[i])});
  const auto for_each_wanted = [&](const auto& gradient) {
    for (size_t i = 0, at = 0; i < result.size(); i++)
      if (wanted[i])
        result[i] = gradient(i, at++);
    return result;
  };

  Tensor grad = grads[0];
  const Tensor of_inner = grads.size() > 1 ? grads[1] : Tensor();
  if (grad.defined() && steps.derivative.apply != nullptr) {
    const Stack saved = filled(steps.derivative.saved);
    if (!of_inner.defined() && steps.ending->gradients != nullptr) {
      const auto gradients = steps.ending->gradients(grad, saved, arguments);
      return for_each_wanted([&](size_t, size_t at) { return gradients[at]; });
    }
    grad = steps.derivative.apply(grad, saved);
  }
  if (of_inner.defined())
    grad = grad.defined() ? at::add(grad, of_inner) : of_inner;
  if (!grad.defined())
    return result;
  return for_each_wanted([&](size_t i, size_t at) {
    return steps.pullbacks[i].second.apply(grad, arguments[at].saved);
  });
}

struct OperatorBackward : torch::autograd::TraceableFunction {
  explicit OperatorBackward(const c10::OperatorHandle& op) : op(op) {}

  c10::OperatorHandle op;
  Steps steps;
  std::vector<SavedVariable> tensors;
  std::vector<SymInt> sizes;

  void add(size_t argument, Pullback pullback) {
    steps.pullbacks.emplace_back(argument, std::move(pullback));
  }

  // Once all are added. The gradient of one of two factors takes the other one: from the last
  // pullback to the first, tensors are saved in the order of the arguments, as torch saves those of
  // a convolution. Then a checkpoint may compute the one again in the place of the other.
  void save() {
    for (auto step = steps.pullbacks.rbegin(); step != steps.pullbacks.rend(); ++step)
      take_values(step->second.saved, /*is_output=*/false);
  }

  // When the outputs have their history: it leads to this node, which must not own itself.
  void end_with(const Ending* ending, Pullback derivative) {
    take_values(derivative.saved, /*is_output=*/true);
    steps.ending = ending;
    steps.derivative = std::move(derivative);
  }

  std::vector<bool> wanted() const {
    std::vector<bool> result(steps.pullbacks.size());
    for (size_t i = 0; i < result.size(); i++)
      result[i] = task_should_compute_output(i);
    return result;
  }

  std::vector<Tensor> unpacked() {
    std::vector<Tensor> result;
    result.reserve(tensors.size());
    for (const auto& tensor : tensors)
      result.push_back(tensor.unpack(getptr()));
    return result;
  }

  variable_list apply(variable_list&& grads) override {
    return run_steps(steps, wanted(), grads, unpacked(), sizes);
  }

  std::string name() const override {
    return op.operator_name().name.substr(sizeof("torch_dnnl::") - 1) + "_backward";
  }

  void release_variables() override {
    for (auto& tensor : tensors)
      tensor.reset_data();
  }

  // Compiled autograd: what tells this node from others, and how to replay it
  // on the compiler's proxies.
  void compiled_args(compiled::CompiledNodeArgs& args) const override {
    collect(steps.derivative, args);
    for (const auto& [argument, pullback] : steps.pullbacks) {
      args.collect(static_cast<int64_t>(argument));
      collect(pullback, args);
    }
    args.collect(tensors, /*is_output=*/true); // some of them are
    args.collect(sizes);
  }

  variable_list
  apply_with_saved(const variable_list& grads, compiled::SwapSavedVariables& saved) override {
    saved.before(tensors);
    saved.before(sizes);
    compiled::PackedArgs packed;
    packed.pack(unpacked());
    packed.pack(sizes);
    const auto metadata =
        compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            compiled::get_input_metadata(next_edges()));
    auto replay = [steps = steps, wanted = wanted()](
                      const variable_list& grads, const std::vector<IValue>& packed) {
      return run_steps(
          steps,
          wanted,
          grads,
          packed[0].toTensorVector(),
          compiled::IValuePacker<std::vector<SymInt>>::unpack(packed[1]));
    };
    const auto& compiler = compiled::getPyCompilerInterface();
    // Bound as a custom function: each node gets a name of its own, for its own closure.
    const auto bound = compiler->bind_function(
        saved.get_py_compiler(),
        name(),
        std::move(replay),
        {compiled::IValuePacker<std::vector<Tensor>>::packed_type(),
         compiled::IValuePacker<std::vector<SymInt>>::packed_type()},
        /*is_custom_function=*/true,
        /*is_traceable=*/true);
    auto result = compiler->call_function(
        saved.get_py_compiler(),
        "apply_functional",
        bound,
        grads,
        std::move(packed).vec(),
        metadata);
    saved.after(tensors);
    saved.after(sizes);
    return result;
  }

 private:
  // Tensors and sizes move to the node.
  void take_values(Stack& saved, bool is_output) {
    for (auto& value : saved) {
      if (value.isTensor()) {
        tensors.emplace_back(value.toTensor(), is_output);
        value = Tensor();
      } else if (is_size_list(value)) {
        for (const IValue& size : value.toListRef())
          sizes.push_back(size.toSymInt());
      }
    }
  }

  static void collect(const Pullback& pullback, compiled::CompiledNodeArgs& args) {
    args.collect(reinterpret_cast<int64_t>(pullback.apply));
    for (const auto& value : pullback.saved)
      args.collect(value_key(value));
  }

  static std::string value_key(const IValue& value) {
    std::ostringstream text;
    text << value.tagKind() << ':';
    if (is_size_list(value))
      text << value.toListRef().size();
    else if (!value.isTensor())
      text << value;
    return text.str();
  }
};

bool has_tangent(const IValue& value) {
  return value.isTensor() && value.toTensor()._fw_grad(/*level=*/0).defined();
}

// What there is to differentiate in a call.
struct Differentiated {
  bool backward = false, forward = false;

  explicit Differentiated(c10::ArrayRef<IValue> arguments) {
    for (const auto& value : arguments) {
      if (!value.isTensor())
        continue;
      backward |= value.toTensor().requires_grad();
      forward |= has_tangent(value);
    }
    backward &= at::GradMode::is_enabled();
  }
};

void run_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  at::AutoDispatchBelowAutograd below;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// An optional list without entries means the same as None, and gets lost in packages of
// AOTInductor. Every call comes here before it is traced.
void drop_empty_lists(const c10::OperatorHandle& op, Stack& stack) {
  const auto& arguments = op.schema().arguments();
  IValue* value = stack.data() + stack.size() - arguments.size();
  for (const auto& argument : arguments) {
    if (value->isIntList() && value->toListRef().empty() &&
        argument.real_type()->kind() == c10::TypeKind::OptionalType)
      *value = IValue();
    value++;
  }
}

struct AutogradKernel {
  Derivatives derivatives;
  InSteps in_steps;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) const {
    drop_empty_lists(op, *stack);
    // The call's arguments are the last ones; a caller may keep others below.
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    const Differentiated differentiated(arguments);
    if (!differentiated.backward && !differentiated.forward)
      return run_below(op, keys, stack);
    if (in_steps.try_call(op, keys, stack))
      return;

    if (derivatives.ending != nullptr)
      derivatives.ending->prepare(stack->data() + stack->size() - arguments.size());
    Stack args = arguments.vec();
    run_below(op, keys, stack);
    IValue* first = stack->data() + stack->size() - op.schema().returns().size();
    args.insert(args.end(), first + 1, stack->data() + stack->size());
    variable_list results{first->toTensor()};
    if (!torch::autograd::isDifferentiableType(results[0].scalar_type()))
      return;
    if (derivatives.ending != nullptr && derivatives.ending->returns_inner(args))
      results.push_back(first[1].toTensor());
    const auto node = differentiated.backward ? record(op, args, results) : nullptr;
    const Pullback derivative = derivatives.ending != nullptr
        ? derivatives.ending->derivative(args, results[0])
        : Pullback{};
    if (differentiated.forward)
      set_tangents(args, derivative, results);
    if (node != nullptr)
      node->end_with(derivatives.ending, derivative);
  }

  // The node that is the history of the results, if they have one.
  auto record(const c10::OperatorHandle& op, const Stack& args, variable_list& results) const
      -> decltype(make_node<OperatorBackward>(op)) {
    auto node = make_node<OperatorBackward>(op);
    for (size_t i = 0; i < args.size(); i++) {
      if (!args[i].isTensor() || !args[i].toTensor().requires_grad())
        continue;
      auto pullback = derivatives.pullback(i, args);
      if (pullback.apply == nullptr)
        continue;
      node->add_next_edge(torch::autograd::impl::gradient_edge(args[i].toTensor()));
      node->add(i, std::move(pullback));
    }
    if (node->steps.pullbacks.empty())
      return nullptr;
    node->save();
    torch::autograd::set_history(results, node);
    return node;
  }

  void
  set_tangents(const Stack& args, const Pullback& derivative, const variable_list& results) const {
    // To the derivative in one argument the others are constants: without their tangents.
    Stack primals = args;
    for (auto& value : primals)
      if (has_tangent(value))
        value = value.toTensor()._fw_primal(/*level=*/0);
    Tensor total;
    for (size_t i = 0; i < args.size(); i++) {
      if (!has_tangent(args[i]))
        continue;
      Tensor tangent =
          derivatives.pushforward(i, args[i].toTensor()._fw_grad(/*level=*/0), primals);
      if (!tangent.defined())
        continue;
      total = total.defined() ? at::add(total, tangent) : std::move(tangent);
    }
    if (!total.defined())
      return;
    const auto sizes = results[0].sym_sizes();
    if (total.dim() < results[0].dim() || total.sym_sizes() != sizes)
      total = total.expand_symint(sizes);
    const Tensor of_result =
        derivative.apply != nullptr ? derivative.apply(total, derivative.saved) : total;
    // Each has a tangent of its own, which may be changed in place.
    if (results.size() > 1)
      results[1]._set_fw_grad(at::clone(total), /*level=*/0, /*is_inplace_op=*/false);
    results[0]._set_fw_grad(of_result, /*level=*/0, /*is_inplace_op=*/false);
  }
};

} // namespace

torch::CppFunction differentiable_by(c10::KernelFunction decomposition) {
  return boxed([=](const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    drop_empty_lists(op, *stack);
    const Differentiated differentiated(torch::jit::last(*stack, op.schema().arguments().size()));
    if (!differentiated.backward && !differentiated.forward)
      return run_below(op, keys, stack);
    decomposition.callBoxed(op, keys, stack);
  });
}

torch::CppFunction differentiable(Derivatives derivatives, InSteps in_steps) {
  return boxed(AutogradKernel{derivatives, in_steps});
}

} // namespace torch_dnnl
