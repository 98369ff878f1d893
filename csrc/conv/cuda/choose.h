// When each kernel is the best choice for a problem that it supports: one rule for each row of the
// table in conv_cuda.cu, in the same order.
#pragma once

#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl::cuda {

// More products of a tap are worth a matrix product.
inline bool prefers_depthwise(const ConvProblem& p) {
  constexpr int64_t few = 64;
  return p.ic * p.oc <= few;
}

// Whether tiles are filled well enough: the product's columns are computed 64 at a time, and what
// is summed is padded to 16 bytes. A thread per element takes about `times` as long for a product.
inline bool prefers_dense(const ConvProblem& p) {
  constexpr int64_t columns = 64, bytes = 16, times = 32;
  const bool is_data = p.pass == ConvPass::backward_data;
  const int64_t outputs = is_data ? p.ic : p.oc, inputs = is_data ? p.oc : p.ic;
  const auto element = static_cast<int64_t>(c10::elementSize(p.dtype));
  return round_up(outputs, columns) * round_up(inputs, bytes / element) <= times * p.ic * p.oc;
}

} // namespace torch_dnnl::cuda
