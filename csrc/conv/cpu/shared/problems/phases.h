// Which inputs and taps an output meets along an axis.
#pragma once

#include <numeric>
#include <vector>

#include "conv/problem.h"

namespace torch_dnnl {

// Outputs of one axis that meet the same taps, in a regular pattern: output out + j * out_step
// meets tap + m * tap_step, for m in [0, taps), at in + j * in_step + m * tap_in_step.
struct Phase {
  int64_t out, out_step, in, in_step, tap, tap_step, taps, tap_in_step;
};

// Output o is in phase o % phases. The "outputs" of backward weights are the gradients.
inline std::vector<Phase> phases_of(const ConvProblem& p, int axis) {
  const int64_t s = p.stride[axis], d = p.dilation[axis], k = p.kernel[axis], pad = p.pad[axis];
  if (p.pass != ConvPass::backward_data)
    return {{0, 1, -pad, s, 0, 1, k, d}};
  // Tap t meets output o at (o + pad - t d) / s, if that is an integer.
  const int64_t period = s / std::gcd(s, d);
  std::vector<Phase> result;
  for (int64_t out = 0; out < std::min(s, p.src_size[axis]); out++) {
    int64_t first = 0;
    while (first < std::min(period, k) && (out + pad - first * d) % s != 0)
      first++;
    const int64_t count = first < std::min(period, k) ? (k - 1 - first) / period + 1 : 0;
    const int64_t last = first + (count - 1) * period;
    const int64_t in = count > 0 ? (out + pad - last * d) / s : 0;
    result.push_back({out, s, in, 1, last, -period, count, d * period / s});
  }
  return result;
}

// f(in, tap) for the taps that output `out` of an axis meets in an image of `size` pixels.
template <class F>
void for_each_tap(const std::vector<Phase>& phases, int64_t out, int64_t size, const F& f) {
  const int64_t count = static_cast<int64_t>(phases.size()), step = out / count;
  const Phase& phase = phases[out - step * count];
  int64_t in = phase.in + step * phase.in_step;
  for (int64_t m = 0; m < phase.taps; m++, in += phase.tap_in_step)
    if (in >= 0 && in < size)
      f(in, phase.tap + m * phase.tap_step);
}

} // namespace torch_dnnl
