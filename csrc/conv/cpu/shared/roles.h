// Forward and backward data as one computation: an output gathers from an input. What src is to the
// one, dst is to the other.
#pragma once

#include "conv/problem.h"

namespace torch_dnnl {

// What a kernel for both passes is built on.
struct Roles {
  explicit Roles(const ConvProblem& p)
      : p_(p),
        forward_(p.pass == ConvPass::forward),
        in_channels_(forward_ ? p.ic : p.oc),
        out_channels_(forward_ ? p.oc : p.ic),
        in_stride_(forward_ ? p.src_stride : p.dst_stride),
        out_stride_(forward_ ? p.dst_stride : p.src_stride),
        in_size_(forward_ ? p.src_size : p.dst_size),
        out_size_(forward_ ? p.dst_size : p.src_size),
        weights_in_stride_(p.weights_stride[forward_ ? 1 : 0]),
        weights_out_stride_(p.weights_stride[forward_ ? 0 : 1]) {}

  // The input of an image and a group.
  template <class T>
  const T* input(int64_t n, int64_t group) const {
    return static_cast<const T*>(forward_ ? p_.src : p_.dst) + n * in_stride_[0] +
        group * in_channels_ * in_stride_[1];
  }

  const ConvProblem& p_;
  const bool forward_;
  const int64_t in_channels_, out_channels_; // of one group
  const int64_t *in_stride_, *out_stride_, *in_size_, *out_size_;
  const int64_t weights_in_stride_, weights_out_stride_;
};

} // namespace torch_dnnl
