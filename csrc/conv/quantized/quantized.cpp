// Registration of quantized_convolution: shapes and batching. It is for inference and has no
// derivatives.
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include "conv/calls.h"
#include "conv/quantized/on_device.h"
#include "core/torch/autograd.h"

namespace torch_dnnl {
namespace {

using at::Tensor;

// Positions of the arguments after the epilogue.
enum {
  dtype = conv_arg::slope + 1,
  operands,
  weights_scale = operands + quantized_operands::kWeightsScale
};

constexpr auto quantized_convolution = call<"torch_dnnl::quantized_convolution">;

// One call for each element of the batch.
Tensor call_each(const BatchedCall& batched_call) {
  std::vector<Tensor> results;
  const int64_t batch = batched_call.batch.expect_int();
  for (int64_t i = 0; i < batch; i++) {
    Stack args = batched_call.args;
    for (size_t a = 0; a < args.size(); a++)
      if (batched_call.batched(a))
        args[a] = args[a].toTensor().select(*batched_call.batch_of[a], i);
    results.push_back(quantized_convolution(std::move(args)));
  }
  return at::stack(results);
}

Tensor quantized_batch(const BatchedCall& batched_call) {
  for (int i = 0; i < quantized_operands::kCount; i++)
    if (batched_call.batched(operands + i))
      return call_each(batched_call);
  auto [args, dim] = image_batch(batched_call, {conv_arg::first, conv_arg::residual});
  const bool has_scales =
      args[weights_scale].isTensor() && args[weights_scale].toTensor().dim() > 0;
  if (dim != 0 && has_scales) // folded into the channels
    args[weights_scale] = batched_call.folded_into(weights_scale, 0);
  return unfolded_from(quantized_convolution(std::move(args)), dim, batched_call.batch);
}

// By the plain weights.
Tensor packed_batch(const BatchedCall& batched_call) {
  BatchedCall plain = batched_call;
  conv_detail::check_has_weights(
      "quantized_convolution",
      conv_detail::has_weights(plain.args[conv_arg::second].toTensor()),
      "batches are computed with these");
  plain.args.pop_back();
  return quantized_batch(plain);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Meta, m) {
  QuantizedOnDevice<Meta>::register_in(m);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Autograd, m) {
  m.impl("quantized_convolution", differentiable(no_derivatives));
  m.impl("quantized_convolution_packed", differentiable(no_derivatives));
  m.impl("pack_quantized_weights", differentiable(no_derivatives));
}

TORCH_LIBRARY_IMPL(torch_dnnl, FuncTorchBatched, m) {
  m.impl("quantized_convolution", batched<quantized_batch>());
  m.impl("quantized_convolution_packed", batched<packed_batch>());
  m.impl("pack_quantized_weights", batched<batch_to_pack>());
}

} // namespace
} // namespace torch_dnnl
