// Batching rules: what torch.func.vmap does with an operator.
//
// A rule gets the call with its tensors unwrapped, says where the batch
// dimension of each is, folds it into a dimension that the operator has anyway
// and returns the outputs with the batch dimension in front. No loop.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/torch/boxed.h"

namespace torch_dnnl {

struct BatchedCall {
  Stack args;                                   // in the order of the schema, unwrapped
  std::vector<std::optional<int64_t>> batch_of; // the batch dimension of each argument
  c10::SymInt batch;                            // its size

  bool batched(size_t argument) const {
    return batch_of[argument].has_value();
  }
  // The tensor with its batch dimension moved to `dim`; expanded if it has none.
  at::Tensor with_batch_at(size_t argument, int64_t dim) const;
  // The tensor with the batch folded into dimension `dim` of its own dimensions.
  at::Tensor folded_into(size_t argument, int64_t dim) const;
};

// Splits the batch off the front of dimension `dim` again and moves it first.
at::Tensor unfolded_from(const at::Tensor& result, int64_t dim, const c10::SymInt& batch);

using BatchingRule = Stack (*)(const BatchedCall& call);

// The kernel for the FuncTorchBatched key. Calls that are made in steps need no rule.
torch::CppFunction batched(BatchingRule rule, InSteps in_steps = {});

// The rule of an operator with one output.
template <at::Tensor (*rule)(const BatchedCall&)>
torch::CppFunction batched() {
  return batched([](const BatchedCall& call) { return Stack{rule(call)}; });
}

} // namespace torch_dnnl
