// The input channels of groups, brought to the lanes of their output channels.
#pragma once

#include <vector>

#include "conv/cpu/channel_lanes/plan.h"
#include "conv/cpu/shared/pixels.h"
#include "core/cpu/scratch.h"
#include "core/cpu/windows.h"

namespace torch_dnnl {

// For groups of several channels: a vector of output channels meets the channels of a window, from
// which each lane picks those of its group, one after the other.
template <class C>
class GroupLanes {
 public:
  explicit GroupLanes(const ChannelLanesPlan& plan) : plan_(plan) {}

  // The next pixels are for the vectors of output channels from `begin` on.
  void select_channels(int64_t begin) {
    for (int64_t v = 0; v < plan_.block; v++) {
      first_[v] = (begin + v * n) / plan_.out_channels * plan_.in_channels;
      for (int64_t lane = 0; lane < n; lane++) {
        // A lane behind the last channel may have any value.
        const int64_t channel = std::min(begin + v * n + lane, plan_.channels - 1);
        const int64_t in = channel / plan_.out_channels * plan_.in_channels - first_[v];
        for (int64_t i = 0; i < plan_.in_channels; i++)
          index_[v * pixel_ + i * n + lane] = static_cast<int32_t>(in + i);
      }
    }
  }

  // load_channels(first, most, run): loads the pixels of some input channels.
  template <class F>
  void load(int64_t vectors, int64_t pixels, C* to, const F& load_channels) const {
    const int64_t window = window_vectors_ * n;
    for (int64_t v = 0; v < vectors; v++, to += n) {
      load_channels(first_[v], window, LaneRun<C>{window_.data(), n, window});
      const int32_t* index = index_.data() + v * pixel_;
      if (window_vectors_ == 1)
        spread<1>(index, pixels, to);
      else if (window_vectors_ == 2)
        spread<2>(index, pixels, to);
      else if (window_vectors_ == 4)
        spread<4>(index, pixels, to);
      else
        spread<0>(index, pixels, to);
    }
  }

 private:
  static constexpr int64_t n = kLanes<C>;

  // How many vectors of input channels a vector of output channels meets; one of the numbers that
  // LanesWindow has kernels for, or more.
  static int64_t window_vectors(const ChannelLanesPlan& plan) {
    const int64_t out = plan.out_channels;
    const int64_t groups = std::min(plan.p.groups, n % out == 0 ? n / out : (n - 2) / out + 2);
    const int64_t vectors = ceil_div(groups * plan.in_channels, n);
    return vectors == 3 ? 4 : vectors;
  }

  template <int kVectors>
  void spread(const int32_t* index, int64_t pixels, C* to) const {
    const int64_t step = plan_.block * n;
    for (int64_t x = 0; x < pixels; x++, to += plan_.in_step) {
      using Window = LanesWindow<kVectors, C>;
      const Window window(window_.data() + x * window_vectors_ * n);
      for (int64_t i = 0; i < plan_.in_channels; i++)
        window.pick(typename Window::Index(index + i * n)).store(to + i * step);
    }
  }

  const ChannelLanesPlan& plan_;
  const int64_t pixel_ = plan_.in_channels * n;
  const int64_t window_vectors_ = plan_.is_plain ? 0 : window_vectors(plan_);
  const Scratch<C> window_{plan_.in_width * window_vectors_ * n}; // [pixel][channel]
  // [vector][input channel of a group][lane]: in the window
  std::vector<int32_t> index_ = std::vector<int32_t>(plan_.is_plain ? 0 : plan_.block * pixel_);
  // The first channel of the window of a vector.
  std::vector<int64_t> first_ = std::vector<int64_t>(plan_.block);
};

} // namespace torch_dnnl
