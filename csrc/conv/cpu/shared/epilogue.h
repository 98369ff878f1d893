// The end of forward and backward data, for sums that a kernel has just completed and that are in
// the cache: the residual is added, what the activation is applied to is stored if it is wanted,
// the activation is applied, and the result rounded and stored. One pass over memory.
#pragma once

#include "conv/cpu/shared/gather.h"
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

  explicit Epilogue(const ConvProblem& p) : p_(p), out_stride_(GatherImages{p}.out_stride) {}

  // Whether there is nothing to do but to round and store.
  bool is_empty() const {
    return p_.activation == Activation::none && p_.residual == nullptr &&
        p_.preactivation == nullptr;
  }

  // Whether rows of `width` pixels follow one another, so that several are one run.
  bool has_joined_rows(int64_t width) const {
    const auto joined = [&](const int64_t* stride) { return stride[3] == width * stride[4]; };
    return joined(out_stride_) && (p_.residual == nullptr || joined(p_.residual_stride));
  }

  // Where a run begins in the result.
  T* output(const OutputRun& run) const {
    return static_cast<T*>(p_.out) + run.n * out_stride_[0] + run.channel * out_stride_[1] +
        run.d * out_stride_[2] + run.h * out_stride_[3] + run.w * out_stride_[4];
  }

  // Completes a run whose sums lie as whole vectors of channels: vector v of pixel x at
  // sums + v * vector_stride + x * pixel_stride.
  void store_pixels(
      const C* sums,
      int64_t vector_stride,
      int64_t pixel_stride,
      const OutputRun& run) const;

  // Completes runs of one channel, in rows from `run` on, whose sums lie next to each other, those
  // of the next row `pitch` further.
  void store_lines(const C* sums, int64_t pitch, int64_t lines, const OutputRun& run) const;
  void store_line(const C* sums, const OutputRun& run) const {
    store_lines(sums, /*pitch=*/0, /*lines=*/1, run);
  }

 private:
  const ConvProblem& p_;
  const int64_t* const out_stride_;
};

} // namespace torch_dnnl
