// Weights as Winograd's filtering F multiplies by them, in panels of output channels.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/panels.h"
#include "conv/cpu/winograd/plan.h"
#include "core/cpu/parallel.h"

namespace torch_dnnl {

template <class T, class F>
class TransformedWeights : GatherImages {
 public:
  TransformedWeights(const GatherImages& images, const WinogradPanels& plan)
      : GatherImages(images), plan_(plan) {}

  // The weights of one panel and of the input channels [channels.begin, channels.end), to
  // [position][channel][width], the positions `step` apart. What is beyond the last vector of a
  // panel's channels is not written.
  void
  transform_panel(int64_t group, int64_t panel, Range channels, float* to, int64_t step) const {
    const T* from = static_cast<const T*>(p.weights) + group * p.weights_group +
        panel * plan_.width * weights_out_stride + channels.begin * weights_in_stride;
    const int64_t n = plan_.channels_of(panel), depth = channels.count();
    for (int64_t c = 0; c < depth; c += kIn) {
      for (int64_t o = 0; o < n; o += kOut) {
        const auto weights_at = [&](int64_t c, int64_t o) {
          return from + c * weights_in_stride + o * weights_out_stride;
        };
        const T* next = o + kOut < n ? weights_at(c, o + kOut) : weights_at(c + kIn, 0);
        const int64_t ins = std::min(kIn, depth - c), outs = std::min(kOut, n - o);
        transform_part(weights_at(c, o), next, ins, outs, to + c * plan_.width + o, step);
      }
    }
  }

  // The weights of groups, to [group][panel][position][input channel][width].
  void transform(Range groups, float* to) const {
    constexpr int64_t depth = 32, cost = 100; // input channels of a task; operations of an element
    const int64_t step = plan_.weights_step(in_channels), parts = ceil_div(in_channels, depth);
    const int64_t tasks = groups.count() * plan_.panels * parts;
    parallel_tasks(tasks, depth * plan_.width * cost, [&](SharedTasks::OfThread mine) {
      for (const int64_t task : mine) {
        const int64_t c = task % parts * depth, panel = task / parts;
        transform_panel(
            groups.begin + panel / plan_.panels,
            panel % plan_.panels,
            {c, std::min(c + depth, in_channels)},
            to + panel * plan_.weights_of_panel() + c * plan_.width,
            step);
      }
    });
  }

 private:
  static constexpr int64_t kTaps = 9, kLine = 64 / sizeof(T);
  // Channels whose taps stay in the first-level cache.
  static constexpr int64_t kIn = 16, kOut = 32;

  // Of `ins` input and `outs` output channels. next: the part that follows.
  void
  transform_part(const T* from, const T* next, int64_t ins, int64_t outs, float* to, int64_t step)
      const {
    // Elements are read in the order in which they lie.
    const bool are_taps_apart = weights_in_stride == 1;
    const int64_t in_step = are_taps_apart ? 1 : kTaps, tap_step = are_taps_apart ? ins : 1;
    int64_t rows[kOut], columns[kIn * kTaps];
    for (int64_t o = 0; o < outs; o++)
      rows[o] = o * weights_out_stride;
    for (int64_t tap = 0; tap < kTaps; tap++)
      for (int64_t c = 0; c < ins; c++)
        columns[c * in_step + tap * tap_step] =
            c * weights_in_stride + tap / 3 * p.weights_stride[3] + tap % 3 * p.weights_stride[4];
    alignas(64) float taps[kIn * kTaps * kOut];
    const int64_t terms = ins * kTaps;
    for (int64_t run, t = 0; t < terms; t += run) {
      const Offsets left(columns + t, terms - t);
      run = weights_out_stride == 1 ? terms : run_length(left);
      pack_panels<kOut>(from, Offsets(rows, outs), left.first(run), taps + t * kOut, /*step=*/0);
    }
    for (int64_t c = 0; c < ins; c++) {
      // Where output channels lie far apart, the processor does not foresee what is read next.
      if (weights_out_stride > weights_in_stride) {
        for (int64_t o = outs * c / ins; o < outs * (c + 1) / ins; o++)
          for (int64_t t = 0; t < terms; t += kLine)
            __builtin_prefetch(next + rows[o] + columns[t]);
      }
      for (int64_t o = 0; o < outs; o += kLanes<float>) {
        Lanes<float> g[3][3];
        for (int64_t tap = 0; tap < kTaps; tap++) {
          // Backward data turns the kernels around.
          const int64_t at = c * in_step + (backward_data ? kTaps - 1 - tap : tap) * tap_step;
          g[tap / 3][tap % 3] = load_lanes<float>(taps + at * kOut + o);
        }
        store_positions<F, F::transform_weights>(g, to + c * plan_.width + o, step);
      }
    }
  }

  const WinogradPanels& plan_;
};

} // namespace torch_dnnl
