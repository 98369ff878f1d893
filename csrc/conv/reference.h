// The definition of the three convolution operators: one function object each,
// one call per element of the output. The CPU runs them in a loop, CUDA with a
// thread per element.
//
// The sums are nested, axis by axis, so that rounding errors stay small in long
// ones. The output is dense, so consecutive calls write consecutive elements; but
// src may be some rows of a dense image.
#pragma once

#include "conv/problem.h"
#include "core/dispatch.h"
#include "core/host_device.h"
#include "core/math.h"
#include "core/numeric.h"

namespace torch_dnnl {

// The position along one dimension of the element at `offset` in a dense tensor. Division is what
// indexing costs, and 32-bit division is several times faster.
TORCH_DNNL_HD inline int64_t position(int64_t offset, int64_t size, int64_t stride) {
  if (size == 1)
    return 0;
  if ((offset | stride | size) >> 32 != 0)
    return offset / stride % size;
  return static_cast<uint32_t>(offset) / static_cast<uint32_t>(stride) %
      static_cast<uint32_t>(size);
}

struct ImageIndex {
  int64_t n, group, channel, x[3]; // channel: within the group

  // Where the element is in an image; `c`: its channel of all groups.
  TORCH_DNNL_HD int64_t offset(int64_t c, const int64_t* stride) const {
    return n * stride[0] + c * stride[1] + x[0] * stride[2] + x[1] * stride[3] + x[2] * stride[4];
  }
};

TORCH_DNNL_HD inline ImageIndex image_index(
    int64_t offset,
    int64_t n,
    int64_t groups,
    int64_t channels,
    const int64_t* size,
    const int64_t* stride) {
  const int64_t c = position(offset, groups * channels, stride[1]);
  const int64_t group = channels == 1 ? c : c / channels;
  ImageIndex index{position(offset, n, stride[0]), group, c - group * channels, {}};
  for (int a = 0; a < 3; a++)
    index.x[a] = position(offset, size[a], stride[2 + a]);
  return index;
}

// Stores activation(u), u = sum + bias[c] + residual[n, c, x], at `offset` of the image; `c`: the
// output's channel of all groups.
template <class T>
TORCH_DNNL_HD void store_completed(
    const ConvProblem& p,
    compute_t<T> sum,
    const ImageIndex& o,
    int64_t c,
    int64_t offset) {
  using C = compute_t<T>;
  if (p.bias != nullptr)
    sum += static_cast<C>(static_cast<const T*>(p.bias)[c * p.bias_stride]);
  if (p.residual != nullptr)
    sum += static_cast<C>(static_cast<const T*>(p.residual)[o.offset(c, p.residual_stride)]);
  if (p.preactivation != nullptr)
    static_cast<T*>(p.preactivation)[offset] = convert<T>(sum);
  const C alpha = p.slopes == nullptr ? static_cast<C>(p.parameters.alpha)
                                      : static_cast<C>(static_cast<const T*>(p.slopes)[c]);
  const C beta = static_cast<C>(p.parameters.beta);
  const C result = with_activation(
      p.activation, [&](auto tag) { return activate<decltype(tag)::value>(sum, alpha, beta); });
  static_cast<T*>(p.out)[offset] = convert<T>(result);
}

// dst[n, o, x] = activation(u), u = bias[o] + residual[n, o, x] +
//   sum over i, k of src[n, i, x S + k D - pad] * weights[o, i, k]
template <class T>
struct ConvForward {
  using C = compute_t<T>;
  ConvProblem p;

  TORCH_DNNL_HD void operator()(int64_t offset) const {
    const ImageIndex o = image_index(offset, p.n, p.groups, p.oc, p.dst_size, p.dst_stride);
    const int64_t oc = o.group * p.oc + o.channel;
    const int64_t *xs = p.src_stride, *ws = p.weights_stride;
    const T* src = static_cast<const T*>(p.src) + o.n * xs[0] + o.group * p.ic * xs[1];
    const T* weights = static_cast<const T*>(p.weights) + oc * ws[0];
    int64_t first[3];
    Range taps[3];
    for (int a = 0; a < 3; a++) {
      first[a] = o.x[a] * p.stride[a] - p.pad[a];
      taps[a] = within(first[a], p.dilation[a], p.src_size[a], p.kernel[a]);
    }
    C sum = 0;
    for (int64_t d = taps[0].begin; d < taps[0].end; d++) {
      for (int64_t h = taps[1].begin; h < taps[1].end; h++) {
        const T* x = src + (first[0] + d * p.dilation[0]) * xs[2] +
            (first[1] + h * p.dilation[1]) * xs[3] + first[2] * xs[4];
        const T* w = weights + d * ws[2] + h * ws[3];
        C row = 0;
        for (int64_t k = taps[2].begin; k < taps[2].end; k++) {
          const T *xk = x + k * p.dilation[2] * xs[4], *wk = w + k * ws[4];
          C tap = 0;
          for (int64_t i = 0; i < p.ic; i++)
            tap += static_cast<C>(xk[i * xs[1]]) * static_cast<C>(wk[i * ws[1]]);
          row += tap;
        }
        sum += row;
      }
    }
    store_completed<T>(p, sum, o, oc, offset);
  }
};

// src[n, i, y] = activation(u), u = bias[i] + residual[n, i, y] +
//   sum over o, k, x with y = x S + k D - pad of dst[n, o, x] * weights[o, i, k]
template <class T>
struct ConvBackwardData {
  using C = compute_t<T>;
  ConvProblem p;
  int64_t dense_stride[5]; // of src if it had no gaps between its rows

  explicit ConvBackwardData(const ConvProblem& p) : p(p) {
    const int64_t size[5] = {p.n, p.groups * p.ic, p.src_size[0], p.src_size[1], p.src_size[2]};
    for (int i = 0; i < 5; i++) {
      dense_stride[i] = 1;
      for (int j = 0; j < 5; j++)
        if (p.src_stride[j] < p.src_stride[i])
          dense_stride[i] *= size[j];
    }
  }

  TORCH_DNNL_HD void operator()(int64_t offset) const {
    const ImageIndex i = image_index(offset, p.n, p.groups, p.ic, p.src_size, dense_stride);
    const int64_t *ys = p.dst_stride, *ws = p.weights_stride;
    const T* dst = static_cast<const T*>(p.dst) + i.n * ys[0] + i.group * p.oc * ys[1];
    const T* weights =
        static_cast<const T*>(p.weights) + i.group * p.weights_group + i.channel * ws[1];
    // x S = last - k D; taps where that is outside [0, (dst_size - 1) S] are left out.
    int64_t last[3];
    Range taps[3];
    for (int a = 0; a < 3; a++) {
      last[a] = i.x[a] + p.pad[a];
      const int64_t limit = (p.dst_size[a] - 1) * p.stride[a] + 1;
      taps[a].begin = last[a] < limit ? 0 : ceil_div(last[a] - limit + 1, p.dilation[a]);
      taps[a].end = last[a] / p.dilation[a] + 1;
      if (taps[a].end > p.kernel[a])
        taps[a].end = p.kernel[a];
    }
    C sum = 0;
    for (int64_t d = taps[0].begin; d < taps[0].end; d++) {
      const int64_t xd = last[0] - d * p.dilation[0];
      if (xd % p.stride[0] != 0)
        continue;
      for (int64_t h = taps[1].begin; h < taps[1].end; h++) {
        const int64_t xh = last[1] - h * p.dilation[1];
        if (xh % p.stride[1] != 0)
          continue;
        const T* y = dst + xd / p.stride[0] * ys[2] + xh / p.stride[1] * ys[3];
        const T* w = weights + d * ws[2] + h * ws[3];
        C row = 0;
        for (int64_t k = taps[2].begin; k < taps[2].end; k++) {
          const int64_t xw = last[2] - k * p.dilation[2];
          if (p.stride[2] != 1 && xw % p.stride[2] != 0)
            continue;
          const T *yk = y + (p.stride[2] == 1 ? xw : xw / p.stride[2]) * ys[4], *wk = w + k * ws[4];
          C tap = 0;
          for (int64_t o = 0; o < p.oc; o++)
            tap += static_cast<C>(yk[o * ys[1]]) * static_cast<C>(wk[o * ws[0]]);
          row += tap;
        }
        sum += row;
      }
    }
    const int64_t ic = i.group * p.ic + i.channel;
    store_completed<T>(p, sum, i, ic, i.offset(ic, p.src_stride));
  }
};

// weights[o, i, k] = sum over n, x of dst[n, o, x] * src[n, i, x S + k D - pad]
template <class T>
struct ConvBackwardWeights {
  using C = compute_t<T>;
  ConvProblem p;

  TORCH_DNNL_HD void operator()(int64_t offset) const {
    const int64_t *ws = p.weights_stride, *xs = p.src_stride, *ys = p.dst_stride;
    const int64_t oc = position(offset, p.groups * p.oc, ws[0]);
    const int64_t ic = oc / p.oc * p.ic + position(offset, p.ic, ws[1]);
    const T* src = static_cast<const T*>(p.src) + ic * xs[1];
    const T* dst = static_cast<const T*>(p.dst) + oc * ys[1];
    int64_t first[3];
    Range outputs[3];
    for (int a = 0; a < 3; a++) {
      first[a] = position(offset, p.kernel[a], ws[2 + a]) * p.dilation[a] - p.pad[a];
      outputs[a] = within(first[a], p.stride[a], p.src_size[a], p.dst_size[a]);
    }
    C sum = 0;
    for (int64_t n = 0; n < p.n; n++) {
      C image = 0;
      for (int64_t d = outputs[0].begin; d < outputs[0].end; d++) {
        C plane = 0;
        for (int64_t h = outputs[1].begin; h < outputs[1].end; h++) {
          const T* x = src + n * xs[0] + (first[0] + d * p.stride[0]) * xs[2] +
              (first[1] + h * p.stride[1]) * xs[3] + first[2] * xs[4];
          const T* y = dst + n * ys[0] + d * ys[2] + h * ys[3];
          C row = 0;
          for (int64_t w = outputs[2].begin; w < outputs[2].end; w++)
            row += static_cast<C>(x[w * p.stride[2] * xs[4]]) * static_cast<C>(y[w * ys[4]]);
          plane += row;
        }
        image += plane;
      }
      sum += image;
    }
    static_cast<T*>(p.out)[offset] = convert<T>(sum);
  }
};

// out = grad a'(u)
template <class T>
struct ActivationGradientElement {
  using C = compute_t<T>;
  ActivationGradient p;

  TORCH_DNNL_HD void operator()(int64_t offset) const {
    const ImageIndex i = image_index(offset, p.n, /*groups=*/1, p.channels, p.size, p.out_stride);
    const auto load = [&](const void* data, const int64_t* stride) {
      return static_cast<C>(static_cast<const T*>(data)[i.offset(i.channel, stride)]);
    };
    const C grad = load(p.grad, p.grad_stride), value = load(p.value, p.value_stride);
    const C result = with_activation(p.activation, [&](auto tag) {
      return times_derivative<decltype(tag)::value>(
          grad, value, static_cast<C>(p.parameters.alpha), static_cast<C>(p.parameters.beta));
    });
    static_cast<T*>(p.out)[offset] = convert<T>(result);
  }
};

// f(functor) with the function object that computes the problem.
template <class F>
void with_reference(const ConvProblem& p, F&& f) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    switch (p.pass) {
      case ConvPass::forward:
        return f(ConvForward<T>{p});
      case ConvPass::backward_data:
        return f(ConvBackwardData<T>{p});
      case ConvPass::backward_weights:
        return f(ConvBackwardWeights<T>{p});
    }
  });
}

// The number of elements of the output.
inline int64_t output_elements(const ConvProblem& p) {
  switch (p.pass) {
    case ConvPass::forward:
      return p.n * p.groups * p.oc * product(p.dst_size);
    case ConvPass::backward_data:
      return p.n * p.groups * p.ic * product(p.src_size);
    default:
      return p.groups * p.oc * p.ic * product(p.kernel);
  }
}

} // namespace torch_dnnl
