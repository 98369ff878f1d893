#include "core/torch/vmap.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

namespace torch_dnnl {
at::Tensor BatchedCall::with_batch_at(size_t argument, int64_t dim) const {
  const at::Tensor& tensor = args[argument].toTensor();
  if (batched(argument))
    return tensor.movedim(*batch_of[argument], dim);
  auto sizes = tensor.sym_sizes().vec();
  sizes.insert(sizes.begin() + dim, batch);
  return tensor.unsqueeze(dim).expand_symint(sizes);
}

at::Tensor BatchedCall::folded_into(size_t argument, int64_t dim) const {
  return with_batch_at(argument, dim).flatten(dim, dim + 1);
}

at::Tensor unfolded_from(const at::Tensor& result, int64_t dim, const c10::SymInt& batch) {
  const c10::SymInt rest = result.sym_size(dim) / batch.max(1);
  return result.unflatten_symint(dim, {batch, rest}).movedim(dim, 0);
}

torch::CppFunction batched(BatchingRule rule, InSteps in_steps) {
  return boxed([=](const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (in_steps.try_call(op, keys, stack))
      return;
    // The innermost vmap that any argument takes part in; tensors of outer levels
    // stay wrapped and are met again when the rule calls the operator.
    int64_t level = -1;
    for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
      if (!value.isTensor())
        continue;
      const auto* impl = at::functorch::maybeGetBatchedImpl(value.toTensor());
      if (impl != nullptr)
        level = std::max(level, impl->level());
    }
    c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
    if (level < 0)
      return op.callBoxed(stack);
    BatchedCall call{torch::jit::pop(*stack, op.schema().arguments().size()), {}, 0};
    call.batch_of.resize(call.args.size());
    for (size_t i = 0; i < call.args.size(); i++) {
      if (!call.args[i].isTensor())
        continue;
      const auto* impl = at::functorch::maybeGetBatchedImpl(call.args[i].toTensor());
      if (impl == nullptr || impl->level() != level)
        continue;
      call.batch_of[i] = impl->bdim();
      call.batch = impl->value().sym_size(impl->bdim());
      call.args[i] = at::Tensor(impl->value());
    }
    for (const auto& output : rule(call))
      stack->emplace_back(at::functorch::makeBatched(output.toTensor(), 0, level));
  });
}

} // namespace torch_dnnl
