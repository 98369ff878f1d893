// What the kernels of convolution with few channels in a group share.
//
// Results and data gradients are one problem: an image `out` gathers from an image `in`. A gradient
// is a result with mirrored taps along axes of stride 1; along others an output meets every
// stride-th tap only.
#pragma once

#include "conv/cuda/epilogue.h"
#include "conv/problem.h"
#include "core/cuda/divide.h"
#include "core/dispatch.h"
#include "core/host_device.h"
#include "core/math.h"

namespace torch_dnnl::cuda {

// How outputs meet inputs along one axis: output y and tap k at input y S + k D - pad, or, if
// transposed, at (y + pad - k D) / S where that is whole. Taps before `first` do not exist. Of the
// taps that meet an output, each is tap_step behind the one before.
struct GatherAxis {
  int in, out, first, taps, stride, dilation, pad, tap_step;
  int pad_phase, dilation_phase; // modulo the stride
  bool transposed;
  Divisor by_stride;

  // The input that output y meets with tap k; negative if there is none.
  TORCH_DNNL_HD int input(int y, int k) const {
    const int i = transposed ? y + pad - k * dilation : y * stride + k * dilation - pad;
    if (!transposed)
      return i < in ? i : -1;
    auto quotient = static_cast<uint32_t>(i);
    if (i < 0 || by_stride.split(quotient) != 0)
      return -1;
    return static_cast<int>(quotient) < in ? static_cast<int>(quotient) : -1;
  }

  // The first tap that meets output y, or one that does not exist.
  TORCH_DNNL_HD int first_tap(int y) const {
    if (!transposed)
      return 0;
    auto quotient = static_cast<uint32_t>(y + pad_phase);
    auto distance = static_cast<int>(by_stride.split(quotient));
    int k = 0;
    for (; distance != 0 && k < tap_step; k++)
      distance += (distance < dilation_phase ? stride : 0) - dilation_phase;
    if (k < first)
      return k + tap_step;
    return k < tap_step ? k : taps;
  }

  // The first input that `count` outputs from y on may meet, inside the image or not, and up to how
  // many there are from it on.
  TORCH_DNNL_HD int first_input(int y) const {
    if (!transposed)
      return y * stride - pad;
    const int i = y + pad - (taps - 1) * dilation;
    return i > 0 ? static_cast<int>(by_stride.divide(i + stride - 1))
                 : -static_cast<int>(by_stride.divide(-i));
  }
  TORCH_DNNL_HD int inputs(int count) const {
    const int reach = (taps - 1) * dilation;
    return transposed ? (count - 1 + reach) / stride + 1 : (count - 1) * stride + reach + 1;
  }
};

// An offset along an axis, two instructions: indices are not negative, strides may be.
TORCH_DNNL_HD inline int64_t along(int index, int64_t stride) {
  return static_cast<int64_t>(static_cast<uint32_t>(index) * static_cast<uint64_t>(stride));
}

// A pixel of an image in one channel, or the first one of a run.
struct ImageIndex {
  int n, channel, d, h, w;

  TORCH_DNNL_HD int64_t offset(const int64_t* stride) const {
    return along(n, stride[0]) + along(channel, stride[1]) + along(d, stride[2]) +
        along(h, stride[3]) + along(w, stride[4]);
  }
};

struct DepthwiseGather {
  const void *in, *weights, *bias;
  Epilogue epilogue;
  int64_t n;
  int channels;                  // of out
  int out_channels, in_channels; // of a group
  GatherAxis axis[3];
  int64_t in_stride[5], out_stride[5], residual_stride[5];
  int64_t weights_group, weights_out, weights_in; // strides of the weights
  int64_t weights_stride[3];
  int64_t bias_stride;

  // Of output channel o and input channel i of a group; the tap that exists first along w.
  template <class T>
  __device__ const T* kernel_row(int group, int o, int i, int d, int h) const {
    return static_cast<const T*>(weights) + along(group, weights_group) + along(o, weights_out) +
        along(i, weights_in) + along(d, weights_stride[0]) + along(h, weights_stride[1]);
  }

  // From input channel i of its group to channel c; w counts from the axis's first tap on.
  template <class T>
  __device__ float weight(int c, int i, int d, int h, int w) const {
    const int group = group_of(c);
    return static_cast<float>(kernel_row<T>(
        group, c - group * out_channels, i, d, h)[(w - axis[2].first) * weights_stride[2]]);
  }

  template <class T>
  __device__ float bias_of(int c) const {
    return bias == nullptr ? 0.f : static_cast<float>(static_cast<const T*>(bias)[c * bias_stride]);
  }

  TORCH_DNNL_HD int group_of(int c) const {
    return out_channels == 1 ? c : c / out_channels; // division takes long
  }

  // The first channel of in that belongs to the group of channel c.
  TORCH_DNNL_HD int first_in_channel(int c) const {
    return group_of(c) * in_channels;
  }
};

// The taps of a kernel row that are summed together, for outputs that lie next to each other:
// input i, counted from the first output's first, meets output r with tap(i, r), known when the
// kernel is compiled. Taps before kFirst do not exist. Rows of other lengths are parts of kTaps; in
// these not all may exist.
template <int kTaps_, int kStride_, bool kTransposed_, bool kPartial_, int kFirst_ = 0>
struct RowTaps {
  static constexpr bool kGeneral = false, kPartial = kPartial_, kTransposed = kTransposed_;
  static constexpr int kTaps = kTaps_, kStride = kStride_, kFirst = kFirst_;
  static constexpr int kInputs = kTransposed ? kTaps / kStride : kTaps; // that a part moves on by

  static constexpr int first_input() {
    return kTransposed ? -((kTaps - 1) / kStride) : 0;
  }
  static constexpr int last_input(int outputs) {
    return kTransposed ? (outputs - 1) / kStride : (outputs - 1) * kStride + kTaps - 1;
  }
  static constexpr int tap(int input, int output) {
    return kTransposed ? output - input * kStride : input - output * kStride;
  }
  // Whether the axis has tap k of a part.
  TORCH_DNNL_HD static bool has(const GatherAxis& a, int part, int k) {
    if constexpr (kPartial)
      return part * kTaps + k >= a.first && part * kTaps + k < a.taps;
    return k >= kFirst && k < kTaps;
  }
  // The input that output y, a multiple of the stride, meets with the first tap of a part.
  TORCH_DNNL_HD static int origin(const GatherAxis& a, int y, int part) {
    if constexpr (kTransposed)
      return (y + a.pad) / kStride - part * kInputs;
    return y * kStride - a.pad + part * kTaps * a.dilation;
  }
};

// Any stride and dilation: a tap at a time.
struct GeneralTaps {
  static constexpr bool kGeneral = true, kPartial = true;
  static constexpr int kTaps = 1, kStride = 0; // known at run time

  TORCH_DNNL_HD static bool has(const GatherAxis& a, int tap, int) {
    return tap >= a.first && tap < a.taps;
  }
};

// Calls f(taps) with the taps of rows; `dilates`: whether f spaces its outputs by the dilation.
// Rows of more than 7 taps are parts of kLong.
template <int kLong, class F>
void with_row_taps(const GatherAxis& a, bool dilates, F&& f) {
  if (!a.transposed && a.stride == 1 && (dilates || a.dilation == 1)) {
    const int taps = a.taps > 7 ? kLong : a.taps;
    return with_constant<4, 3, 5, 7, kLong>(
        taps, [&](auto kTaps) { f(RowTaps < kTaps, 1, false, kTaps == 4 || kTaps == kLong > {}); });
  }
  if (a.stride == 2 && a.dilation == 1 && a.transposed) {
    // What is left of 3x3 and 5x5 with the usual pads.
    if (a.taps == 4 && a.first == 1)
      return f(RowTaps<4, 2, true, false, 1>{});
    if (a.taps == 5 && a.first == 0)
      return f(RowTaps<5, 2, true, false>{});
    return f(RowTaps<4, 2, true, true>{});
  }
  if (a.stride == 2 && a.dilation == 1) {
    return with_constant<4, 3, 5>(
        a.taps, [&](auto kTaps) { f(RowTaps<kTaps, 2, false, kTaps == 4>{}); });
  }
  f(GeneralTaps{});
}

// `size` in as few parts as with `most` in each, of about equal sizes.
constexpr int equal_parts(int64_t size, int64_t most) {
  return static_cast<int>(ceil_div(size, ceil_div(size, most)));
}

// The floats of a row in shared memory that has at least `floats`: an odd number of vectors of 16
// bytes, so that threads whose rows are next to each other find what they load in different banks.
inline int odd_vectors(int64_t floats) {
  return static_cast<int>(round_up(round_up(floats, 4) - 4, 8)) + 4;
}

using DepthwiseTypes = TypeList<float, c10::BFloat16, c10::Half>;

// With channels innermost in both images.
bool supports_depthwise_nxc(const DepthwiseGather& p);
void depthwise_nxc(const DepthwiseGather& p, c10::ScalarType dtype);

// In every layout, if what a thread's outputs meet fits in shared memory.
bool supports_depthwise_ncx(const DepthwiseGather& p, c10::ScalarType dtype);
void depthwise_ncx(const DepthwiseGather& p, c10::ScalarType dtype);

// ---- The gradient of the weights ----

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
