// Which inputs the outputs of a row gather, in forward and backward data alike.
#pragma once

#include "conv/cpu/shared/blocks.h"
#include "conv/cpu/shared/roles.h"
#include "core/math.h"

namespace torch_dnnl {

struct DirectGather : Roles {
  using Roles::Roles;

  // The inputs and outputs, among outputs [begin, end) of an axis, that meet a tap.
  Segment segment(int axis, int64_t tap, int64_t begin, int64_t end) const {
    return forward_ ? segment_of_dst(p_, axis, tap, begin, end)
                    : segment_of_src(p_, axis, tap, begin, end);
  }
  int64_t in(const Segment& s) const {
    return forward_ ? s.src : s.dst;
  }
  int64_t out(const Segment& s) const {
    return forward_ ? s.dst : s.src;
  }

  // A row of the output; rows of all images are one axis.
  struct RowAt {
    int64_t n, d, h;
  };
  int64_t rows() const {
    return p_.n * out_size_[0] * out_size_[1];
  }
  RowAt row_at(int64_t row) const {
    Digits digits{row};
    const int64_t h = digits.next(out_size_[1]), d = digits.next(out_size_[0]);
    return {digits.rest, d, h};
  }
};

} // namespace torch_dnnl
