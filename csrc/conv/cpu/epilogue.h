// The end of a forward convolution, for sums that a kernel has just completed and that are in the
// cache: the residual is added, what the activation is applied to is stored if it is wanted, the
// activation is applied, and the result rounded and stored. One pass over memory.
#pragma once

#include "conv/conv.h"
#include "core/numeric.h"

namespace torch_dnnl {

// Neighbouring outputs of a row, from channel `channel` of all groups and pixel (d, h, w) on.
struct OutputRun {
  int64_t n, channel, d, h, w;
  int64_t channels, pixels;
};

template <class T>
class Epilogue {
 public:
  using C = compute_t<T>;

  explicit Epilogue(const ConvProblem& p) : p_(p) {}

  // Whether there is nothing to do but to round and store.
  bool is_empty() const {
    return p_.activation == Activation::none && p_.residual == nullptr &&
        p_.preactivation == nullptr;
  }

  // Completes a run whose sums lie as whole vectors of channels: vector v of pixel x at
  // sums + v * vector_stride + x * pixel_stride. The sums are overwritten.
  void
  store_pixels(C* sums, int64_t vector_stride, int64_t pixel_stride, const OutputRun& run) const;

  // Completes a run of one channel whose sums lie next to each other. They are overwritten.
  void store_line(C* sums, const OutputRun& run) const;

 private:
  const ConvProblem& p_;
};

} // namespace torch_dnnl
