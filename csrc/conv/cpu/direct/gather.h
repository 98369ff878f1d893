// Which inputs the outputs of a row gather, in forward and backward data alike, and how the outputs
// are stored.
#pragma once

#include "conv/cpu/shared/blocks.h"
#include "conv/cpu/shared/epilogue.h"
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

  // Where a run of outputs begins.
  template <class T>
  T* output(const OutputRun& run) const {
    return static_cast<T*>(p_.out) + run.n * out_stride_[0] + run.channel * out_stride_[1] +
        run.d * out_stride_[2] + run.h * out_stride_[3] + run.w * out_stride_[4];
  }

  // Sums: [pixel][channel], pixels `width` apart, in whole vectors of channels.
  template <class T, class C = compute_t<T>>
  void
  store(const Epilogue<T>& epilogue, const C* sums, int64_t width, const OutputRun& run) const {
    if (!epilogue.is_empty())
      return epilogue.store_pixels(sums, kLanes<C>, width, run);
    store_rows(
        sums, width, run.pixels, run.channels, output<T>(run), out_stride_[4], out_stride_[1]);
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
