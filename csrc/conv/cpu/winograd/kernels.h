// Kernels as Winograd's filtering F multiplies by them, in panels of output channels.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/panels.h"
#include "conv/cpu/shared/roles.h"
#include "conv/cpu/winograd/tiles.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/math.h"

namespace torch_dnnl {

template <class T, class F>
class WinogradKernels : Roles {
 public:
  static constexpr int64_t kWidth = 64; // of a panel, the most

  WinogradKernels(const ConvProblem& p, int64_t width) : Roles(p), width_(width) {}

  // Those of one panel and `depth` input channels, from `channel` on: [position][channel][width],
  // the positions `step` apart. What is beyond the last vector of a panel's channels is not
  // written.
  void transform(
      const T* weights,
      int64_t group,
      int64_t panel,
      int64_t channel,
      int64_t depth,
      float* to,
      int64_t step) const {
    const T* from = weights + group * p_.weights_group + panel * width_ * weights_out_stride_ +
        channel * weights_in_stride_;
    const int64_t n = std::min(width_, out_channels_ - panel * width_);
    for (int64_t c = 0; c < depth; c += kIn) {
      for (int64_t o = 0; o < n; o += kOut) {
        const auto part_at = [&](int64_t c, int64_t o) {
          return from + c * weights_in_stride_ + o * weights_out_stride_;
        };
        transform_part(
            {part_at(c, o),
             o + kOut < n ? part_at(c, o + kOut) : part_at(c + kIn, 0),
             std::min(kOut, n - o),
             std::min(kIn, depth - c)},
            to + c * width_ + o,
            step);
      }
    }
  }

 private:
  static constexpr int64_t kTaps = 9, kLine = 64 / sizeof(T);
  // Channels whose taps stay in the first-level cache.
  static constexpr int64_t kIn = 16, kOut = 32;

  struct Part {
    const T *from, *next; // next: the one that follows
    int64_t out, in;      // channels
  };

  void transform_part(const Part& part, float* to, int64_t step) const {
    // In the order they lie in.
    const bool are_taps_apart = weights_in_stride_ == 1;
    const int64_t in_step = are_taps_apart ? 1 : kTaps, tap_step = are_taps_apart ? part.in : 1;
    int64_t rows[kOut], columns[kIn * kTaps];
    for (int64_t o = 0; o < part.out; o++)
      rows[o] = o * weights_out_stride_;
    for (int64_t tap = 0; tap < kTaps; tap++) {
      for (int64_t c = 0; c < part.in; c++)
        columns[c * in_step + tap * tap_step] = c * weights_in_stride_ +
            tap / 3 * p_.weights_stride[3] + tap % 3 * p_.weights_stride[4];
    }
    alignas(64) float taps[kIn * kTaps * kOut];
    const int64_t terms = part.in * kTaps;
    for (int64_t run, t = 0; t < terms; t += run) {
      run = weights_out_stride_ == 1 ? terms : run_length(columns + t, terms - t);
      pack_panels<kOut>(part.from, rows, part.out, columns + t, run, taps + t * kOut, /*step=*/0);
    }
    for (int64_t c = 0; c < part.in; c++) {
      // Where output channels lie far apart, the processor does not foresee what is read next.
      if (weights_out_stride_ > weights_in_stride_) {
        for (int64_t o = part.out * c / part.in; o < part.out * (c + 1) / part.in; o++) {
          for (int64_t t = 0; t < terms; t += kLine)
            __builtin_prefetch(part.next + rows[o] + columns[t]);
        }
      }
      for (int64_t o = 0; o < part.out; o += kLanes<float>) {
        Vec g[3][3];
        for (int64_t tap = 0; tap < kTaps; tap++) {
          const int64_t from = forward_ ? tap : kTaps - 1 - tap;
          g[tap / 3][tap % 3] = Vec::loadu(taps + (c * in_step + from * tap_step) * kOut + o);
        }
        store_positions<F, F::transform_kernel>(g, to + c * width_ + o, step);
      }
    }
  }

  const int64_t width_;
};

} // namespace torch_dnnl
