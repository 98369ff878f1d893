// The definition of resample and of its adjoint: a function object with one call per element of the
// destination. The CPU runs it in a loop, CUDA with a thread per element.
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
// kReaders: the taps are the outputs that may use an input, so that this is the adjoint: the tables
// are those of the forward, which have AxisTable::first and last.
template <class T, bool kReaders>
struct ResampleReference {
  using C = compute_t<T>;
  ResampleProblem p;
  AxisTable<C> axis[3];

  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ResampleIndex o = resample_index(p, i);
    const T* src = static_cast<const T*>(p.src) + o.n * p.src_stride[0] + o.c * p.src_stride[1];
    const Range rd = taps(0, o), rh = taps(1, o), rw = taps(2, o);
    C sum = 0;
    for (int64_t d = rd.begin; d < rd.end; d++) {
      C plane = 0;
      for (int64_t h = rh.begin; h < rh.end; h++) {
        const T* line = src + d * p.src_stride[2] + h * p.src_stride[3];
        C acc = 0;
        for (int64_t w = rw.begin; w < rw.end; w++)
          acc += weight(2, o, w) * static_cast<C>(line[w * p.src_stride[4]]);
        plane += weight(1, o, h) * acc;
      }
      sum += weight(0, o, d) * plane;
    }
    if (rd.count() == 0 || rh.count() == 0 || rw.count() == 0)
      sum = static_cast<C>(p.extrapolation_value); // of the adjoint: 0
    store(p.dst, p.dst_dtype, dst_offset(p, o), sum);
  }

 private:
  TORCH_DNNL_HD Range taps(int a, const ResampleIndex& o) const {
    const AxisTable<C>& t = axis[a];
    const int64_t x = o.x[a];
    return kReaders ? Range{t.first[x], t.last[x]} : Range{t.start[x], t.start[x] + t.count[x]};
  }
  TORCH_DNNL_HD C weight(int a, const ResampleIndex& o, int64_t tap) const {
    const AxisTable<C>& t = axis[a];
    const int64_t x = o.x[a];
    return kReaders ? table_weight(t, tap, x) : t.weights[x * t.width + tap - t.start[x]];
  }
};

} // namespace torch_dnnl
