// The bias of a convolution in the order in which sums begin with it.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/microkernel.h"
#include "conv/problem.h"
#include "core/cpu/scratch.h"
#include "core/math.h"
#include "core/numeric.h"

namespace torch_dnnl {

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
    C* to = values_.data();
    for (int64_t group = 0; group < p.groups && bias != nullptr; group++) {
      for (int64_t c = 0; c < p.oc; c++, to += copies, bias += p.bias_stride)
        std::fill_n(to, copies, static_cast<C>(*bias));
      to = std::fill_n(to, (channels - p.oc) * copies, C(0));
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

} // namespace torch_dnnl
