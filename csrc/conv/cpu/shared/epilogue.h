// What sums of forward and backward data begin with, and what becomes of them.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/microkernel.h"
#include "core/cpu/scratch.h"
#include "core/numeric.h"

namespace torch_dnnl {

// The bias in the order in which sums begin with it.
//
// Float32 or float64, [group][channel][copy]. Where a problem has no bias, all channels of all
// groups are the same zeros. A whole panel can be read at any channel: behind the channels are
// zeros.
template <class T>
class Bias {
 public:
  using C = compute_t<T>;

  // Each group takes up `channels`, which are its output channels or more. Vectors of pixels begin
  // with `copies` of each value.
  explicit Bias(const ConvProblem& p, int64_t channels, int64_t copies = 1)
      : channel_step_(p.bias == nullptr ? 0 : copies),
        group_step_(channel_step_ * channels),
        values_(p.groups * group_step_ + kPanel<C>) {
    const T* bias = static_cast<const T*>(p.bias);
    const int64_t outputs = GatherImages{p}.out_channels;
    C* to = values_.data();
    for (int64_t group = 0; group < p.groups && bias != nullptr; group++) {
      for (int64_t c = 0; c < outputs; c++, to += copies, bias += p.bias_stride)
        std::fill_n(to, copies, static_cast<C>(*bias));
      to = std::fill_n(to, (channels - outputs) * copies, C(0));
    }
    std::fill_n(to, kPanel<C>, C(0));
  }

  const C* at(int64_t group, int64_t channel) const {
    return values_.data() + group * group_step_ + channel * channel_step_;
  }
  // From the value of a channel to that of the next.
  int64_t channel_step() const {
    return channel_step_;
  }

 private:
  const int64_t channel_step_, group_step_;
  const Scratch<C> values_;
};

// Neighbouring outputs of a row, from channel `channel` of all groups and pixel (d, h, w) on.
struct OutputRun {
  int64_t n, channel, d, h, w;
  int64_t channels, pixels;

  // Where it begins in an image of these strides.
  int64_t offset(const int64_t* stride) const {
    return n * stride[0] + channel * stride[1] + d * stride[2] + h * stride[3] + w * stride[4];
  }
};

// Rows of sums that lie as vectors, in panels: the steps are those from a vector, from a panel of
// kPanel sums, and from a row, to the next.
template <class C>
struct SumVectors {
  const C* data;
  int64_t vector_step, panel_step, row_step;
};

// Rows of outputs. The outputs of a row are adjacent in all tensors. residual and preactivation may
// be null.
template <class T>
struct EpilogueRows {
  SumVectors<compute_t<T>> sums;
  const T* residual;
  int64_t residual_step;
  T *preactivation, *out;
  int64_t out_step;
  int64_t count, rows; // outputs of a row, and rows
  ActivationParameters parameters;
  const T* slopes;                    // of prelu
  int64_t slope_step, slope_row_step; // from an output to the next, and from a row to the next
};

// The end of sums that a kernel has just completed and that are in the cache: the residual is
// added, what the activation is applied to is stored if it is wanted, the activation is applied,
// and the result rounded and stored. One pass over memory.
template <class T>
class Epilogue {
 public:
  using C = compute_t<T>;

  explicit Epilogue(const ConvProblem& p);

  // Whether there is nothing to do but to round and store.
  bool is_empty() const {
    return p_.activation == Activation::none && is_clamp();
  }

  // Whether there is nothing else to do but to keep sums within bounds.
  bool is_clamp() const {
    const Activation a = p_.activation;
    return (a == Activation::none || a == Activation::relu || a == Activation::relu6 ||
            a == Activation::clamp) &&
        p_.residual == nullptr && p_.preactivation == nullptr;
  }
  // If is_clamp(): a kernel that clamps sums in registers has no epilogue.
  Bounds<C> bounds() const {
    const auto number = [](double x) { return static_cast<C>(x); };
    switch (p_.activation) {
      case Activation::relu:
        return {.low = 0, .are_set = true};
      case Activation::relu6:
        return {0, 6, true};
      case Activation::clamp:
        return {number(p_.parameters.alpha), number(p_.parameters.beta), true};
      default:
        return {};
    }
  }

  // Whether rows of `width` pixels follow one another, so that several are one run.
  bool has_joined_rows(int64_t width) const {
    const auto joined = [&](const int64_t* stride) { return stride[3] == width * stride[4]; };
    return joined(out_stride_) && (p_.residual == nullptr || joined(p_.residual_stride));
  }

  // Where a run begins in the result.
  T* output(const OutputRun& run) const {
    return static_cast<T*>(p_.out) + run.offset(out_stride_);
  }

  // Completes a run whose sums lie as whole vectors of channels: vector v of pixel x at
  // sums + v * vector_stride + x * pixel_stride.
  void store_pixels(
      const C* sums,
      int64_t vector_stride,
      int64_t pixel_stride,
      const OutputRun& run) const;

  // Stores sums that lack nothing but rounding.
  void store_final_pixels(
      const C* sums,
      int64_t vector_stride,
      int64_t pixel_stride,
      const OutputRun& run) const;

  // The same for vectors in panels that are `panel_step` apart. Rows of a panel are pixels.
  void store_panels(const C* sums, int64_t panel_step, const OutputRun& run) const;

  // Completes a run whose sums lie as lines of pixels, one for each channel, `pitch` apart. Each
  // kPanel sums of a line are `panel_step` from those before.
  void store_channels(
      const C* sums,
      int64_t pitch,
      const OutputRun& run,
      int64_t panel_step = kPanel<C>) const;

  // Completes runs of one channel, in rows from `run` on, whose sums lie next to each other, those
  // of the next row `pitch` further.
  void store_lines(const C* sums, int64_t pitch, int64_t lines, const OutputRun& run) const;
  void store_line(const C* sums, const OutputRun& run) const {
    store_lines(sums, /*pitch=*/0, /*lines=*/1, run);
  }

 private:
  // Axes of strides.
  static constexpr int kChannels = 1, kHeight = 3, kWidth = 4;
  struct Axis {
    int index;
    int64_t size; // of the outputs along it
  };

  void store_rows(
      const SumVectors<C>& sums,
      const OutputRun& run,
      const Axis& along,
      const Axis& across) const;

  const ConvProblem& p_;
  const int64_t* const out_stride_;
  void (*const complete_)(const EpilogueRows<T>&);
};

} // namespace torch_dnnl
