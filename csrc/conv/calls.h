// Calls of the operators as stacks of arguments: positions, layouts, batching.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <utility>

#include "conv/attributes.h"
#include "core/torch/vmap.h"

namespace torch_dnnl {

// Positions of the arguments in the schemas: two tensors, then bias, src_size or
// kernel_size, then the attributes, which are the same for all three.
namespace conv_arg {
enum {
  first,
  second,
  third,
  strides,
  pads_begin,
  pads_end,
  dilations,
  auto_pad,
  groups,
  data_format,
  weights_format,
  algorithm,
  // of convolution_fused and convolution_transpose
  residual,
  activation,
  alpha,
  beta,
  slope,
  keep_preactivation,
  dst_size // of convolution_transpose
};
} // namespace conv_arg

inline conv_detail::Dims dims_of_images(const Stack& args, int64_t rank) {
  return conv_detail::image_dims(args[conv_arg::data_format].toStringRef() == "NXC", rank);
}

inline conv_detail::Dims dims_of_weights(const Stack& args, int64_t rank) {
  return conv_detail::weights_dims(args[conv_arg::weights_format].toStringRef() == "XIO", rank);
}

// Batching. A batch of images alone is folded into N; otherwise it is folded into the channels,
// where each of its elements has groups of its own. `images`: the arguments that are images.
struct Folded {
  Stack args;
  int64_t dim; // of the result, that the batch is folded into
};

inline Folded
image_batch(const BatchedCall& batched_call, std::initializer_list<size_t> image_arguments) {
  using namespace conv_arg;
  Stack args = batched_call.args;
  const auto fold_images = [&](int64_t dim) {
    for (const size_t argument : image_arguments)
      if (args[argument].isTensor())
        args[argument] = batched_call.folded_into(argument, dim);
  };
  if (!batched_call.batched(second) && !batched_call.batched(third)) {
    fold_images(0);
    return {std::move(args), 0};
  }
  const int64_t rank = args[first].toTensor().dim() - batched_call.batched(first);
  const auto images = dims_of_images(args, rank), weights = dims_of_weights(args, rank);
  fold_images(images.channel);
  args[second] = batched_call.folded_into(second, weights.outer);
  if (args[third].isTensor())
    args[third] = batched_call.folded_into(third, 0);
  args[groups] = args[groups].toSymInt() * batched_call.batch;
  return {std::move(args), images.channel};
}

// The call with a residual that has a batch of the images' size, or has none: the batch of vmap is
// folded into it.
inline BatchedCall with_whole_batch_of(size_t residual, BatchedCall call) {
  using namespace conv_arg;
  if (!call.args[residual].isTensor())
    return call;
  const at::Tensor& src = call.args[first].toTensor();
  const bool is_first = call.batch_of[first] == 0; // vmap's dimension before N
  const c10::SymInt n = src.sym_size(is_first ? 1 : 0);
  at::Tensor tensor = call.args[residual].toTensor();
  const int64_t dim = call.batch_of[residual] == 0 ? 1 : 0;
  c10::SymDimVector sizes(tensor.sym_sizes());
  sizes[dim] = n;
  call.args[residual] = tensor.expand_symint(sizes);
  return call;
}

inline at::Tensor batch_to_pack(const BatchedCall& /*call*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, Expected("pack_weights") << "weights without a dimension of vmap, got a batch");
}

} // namespace torch_dnnl
