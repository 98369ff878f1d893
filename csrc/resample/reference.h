// The definition of resample and of its adjoint: one function object per
// direction, one call per element of the destination. The CPU runs them in a
// loop, CUDA with a thread per element.
#pragma once

#include "core/numeric.h"
#include "resample/problem.h"

namespace torch_dnnl {

// Which element of dst the i-th call computes: N, C, D, H, W, the order in
// memory where dst is contiguous or channels_last.
struct ResampleIndex {
  int64_t n, c, x[3];
};

TORCH_DNNL_HD inline ResampleIndex resample_index(const ResampleProblem& p, int64_t i) {
  ResampleIndex index;
  if (p.channels_innermost) {
    index.c = i % p.c;
    i /= p.c;
  }
  for (int a = 2; a >= 0; a--) {
    index.x[a] = i % p.dst_size[a];
    i /= p.dst_size[a];
  }
  if (!p.channels_innermost) {
    index.c = i % p.c;
    i /= p.c;
  }
  index.n = i;
  return index;
}

TORCH_DNNL_HD inline int64_t dst_offset(const ResampleProblem& p, const ResampleIndex& i) {
  return i.n * p.dst_stride[0] + i.c * p.dst_stride[1] + i.x[0] * p.dst_stride[2] +
      i.x[1] * p.dst_stride[3] + i.x[2] * p.dst_stride[4];
}

// dst[o] = sum over the taps of every axis of w_d * w_h * w_w * src[...]
template <class T>
struct ResampleForward {
  using C = compute_t<T>;
  ResampleProblem p;
  AxisTable<C> axis[3];

  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ResampleIndex o = resample_index(p, i);
    const T* src = static_cast<const T*>(p.src) + o.n * p.src_stride[0] + o.c * p.src_stride[1];
    const auto row = [&](int a) { return axis[a].weights + o.x[a] * axis[a].width; };
    const C *wd = row(0), *wh = row(1), *ww = row(2);
    const int64_t d0 = axis[0].start[o.x[0]], nd = axis[0].count[o.x[0]];
    const int64_t h0 = axis[1].start[o.x[1]], nh = axis[1].count[o.x[1]];
    const int64_t w0 = axis[2].start[o.x[2]], nw = axis[2].count[o.x[2]];
    C sum = 0;
    for (int64_t d = 0; d < nd; d++) {
      C plane = 0;
      for (int64_t h = 0; h < nh; h++) {
        const T* line = src + (d0 + d) * p.src_stride[2] + (h0 + h) * p.src_stride[3];
        C acc = 0;
        for (int64_t w = 0; w < nw; w++) {
          acc += ww[w] * static_cast<C>(line[(w0 + w) * p.src_stride[4]]);
        }
        plane += wh[h] * acc;
      }
      sum += wd[d] * plane;
    }
    if (nd == 0 || nh == 0 || nw == 0)
      sum = static_cast<C>(p.extrapolation_value);
    store(p.dst, p.dst_dtype, dst_offset(p, o), sum);
  }
};

// dst[i] = sum over the outputs that use input i of w_d * w_h * w_w * grad[...]:
// the transposed tables, gathered.
template <class T>
struct ResampleBackward {
  using C = compute_t<T>;
  ResampleProblem p;
  AxisTable<C> axis[3];

  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ResampleIndex x = resample_index(p, i);
    const T* grad = static_cast<const T*>(p.src) + x.n * p.src_stride[0] + x.c * p.src_stride[1];
    const auto first = [&](int a) { return axis[a].first[x.x[a]]; };
    const auto last = [&](int a) { return axis[a].last[x.x[a]]; };
    C sum = 0;
    for (int64_t d = first(0); d < last(0); d++) {
      C plane = 0;
      for (int64_t h = first(1); h < last(1); h++) {
        const T* line = grad + d * p.src_stride[2] + h * p.src_stride[3];
        C acc = 0;
        for (int64_t w = first(2); w < last(2); w++) {
          acc += table_weight(axis[2], w, x.x[2]) * static_cast<C>(line[w * p.src_stride[4]]);
        }
        plane += table_weight(axis[1], h, x.x[1]) * acc;
      }
      sum += table_weight(axis[0], d, x.x[0]) * plane;
    }
    store(p.dst, p.dst_dtype, dst_offset(p, x), sum);
  }
};

} // namespace torch_dnnl
