// The gradient of the weights of a depthwise convolution.
#pragma once

#include "conv/problem.h"
#include "core/host_device.h"

namespace torch_dnnl::cuda {

// The sums of each slice, [slice][tap][pair of channels].
struct PartialSums {
  int64_t taps, pairs;
  float* data;

  TORCH_DNNL_HD int64_t elements() const { // of a slice
    return taps * pairs;
  }
  // Of the first pair.
  TORCH_DNNL_HD int64_t offset(int64_t slice, int64_t tap) const {
    return slice * elements() + tap * pairs;
  }
  TORCH_DNNL_HD float* at(int64_t slice, int64_t tap) const {
    return data + offset(slice, tap);
  }
};

// If the grid is within its limits.
bool supports_depthwise_weights(const ConvProblem& p);
void depthwise_weights(const ConvProblem& p);

} // namespace torch_dnnl::cuda
