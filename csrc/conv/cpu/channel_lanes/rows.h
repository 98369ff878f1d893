// The rows of inputs that the outputs of a depthwise convolution meet, as vectors of channels:
// where they are in the image, or in scratch memory.
#pragma once

#include <vector>

#include "conv/cpu/channel_lanes/group_lanes.h"
#include "conv/cpu/channel_lanes/plan.h"
#include "conv/cpu/channel_lanes/tap_kernels.h"
#include "conv/cpu/shared/phases.h"
#include "conv/cpu/shared/pixels.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// The rows of taps that each row of a unit of outputs meets.
template <class C>
using TapRows = std::vector<std::vector<TapRow<C>>>;

// Rows are loaded when they are needed and kept while they may be needed again.
template <class T, class C>
class InputRows {
 public:
  explicit InputRows(const ChannelLanesPlan& plan)
      : plan_(plan),
        image_(static_cast<const T*>(plan.backward_data ? plan.p.dst : plan.p.src)),
        image_end_(image_ + elements(plan)),
        phases_{phases_of(plan.p, 0), phases_of(plan.p, 1)},
        row_size_(plan.cache.width * plan.in_step),
        rows_(plan.reads_image ? 0 : plan.cache.planes * plan.cache.rows * row_size_),
        tags_(plan.cache.planes * plan.cache.rows),
        group_lanes_(plan) {}

  void select_block(int64_t block) {
    forget();
    channel_ = block * plan_.cache.block * n;
    if (!plan_.is_plain())
      group_lanes_.select_channels(channel_);
  }

  // Lists the rows that a unit meets. `weights`: [tap][inner][lane] of a vector.
  void list(const ChannelLanesPlan::Unit& unit, C* weights, TapRows<C>& rows) {
    if (unit.n != n_ || unit.tile != tile_) {
      forget();
      n_ = unit.n;
      tile_ = unit.tile;
    }
    const int64_t *kernel = plan_.p.kernel, *size = plan_.in_size;
    for (int64_t r = 0; r < unit.rows; r++) {
      rows[r].clear();
      for_each_tap(phases_[0], unit.d, size[0], [&](int64_t d, int64_t kd) {
        for_each_tap(phases_[1], unit.h + r, size[1], [&](int64_t h, int64_t kh) {
          const int64_t tap = (kd * kernel[1] + kh) * kernel[2];
          rows[r].push_back({row(d, h), weights + tap * plan_.inner * n});
        });
      });
    }
  }

 private:
  static constexpr int64_t n = kLanes<C>;

  // From the first to behind the last element of the image.
  static int64_t elements(const ChannelLanesPlan& plan) {
    const int64_t* stride = plan.in_stride;
    int64_t last = (plan.p.n - 1) * stride[0] + (plan.p.groups * plan.inner - 1) * stride[1];
    for (int axis = 0; axis < 3; axis++)
      last += (plan.in_size[axis] - 1) * stride[2 + axis];
    return last + 1;
  }

  void forget() {
    std::fill(tags_.begin(), tags_.end(), -1);
  }

  const C* row(int64_t d, int64_t h) {
    if constexpr (std::is_same_v<T, C>) {
      const int64_t* xs = plan_.in_stride;
      if (plan_.reads_image)
        return image_ + n_ * xs[0] + channel_ + d * xs[2] + h * xs[3];
    }
    const LaneCache& cache = plan_.cache;
    const int64_t slot = d % cache.planes * cache.rows + h % cache.rows;
    const int64_t tag = cache.has_planes ? d : d * plan_.in_size[1] + h;
    C* to = rows_.data() + slot * row_size_;
    if (tags_[slot] != tag) {
      load(d, h, to);
      tags_[slot] = tag;
    }
    return cache.has_planes ? to + h * plan_.in_size[2] * plan_.in_step : to;
  }

  // Pixels outside the image are left as they are: no tap is multiplied by them.
  void load(int64_t d, int64_t h, C* to) {
    const int64_t* xs = plan_.in_stride;
    const LaneCache& cache = plan_.cache;
    const T* from = image_ + n_ * xs[0] + d * xs[2];
    int64_t pixels = plan_.in_size[1] * plan_.in_size[2];
    if (!cache.has_planes) {
      const int64_t width = cache.width - cache.margin;
      const int64_t begin = plan_.first_in(2, tile_ * plan_.tile.width);
      const int64_t left = std::clamp<int64_t>(-begin, 0, width);
      pixels = std::clamp(plan_.in_size[2] - begin, left, width) - left;
      from += h * xs[3] + (begin + left) * xs[4];
      to += left * plan_.in_step;
    }
    const int64_t vectors = std::min(cache.block, plan_.vectors - channel_ / n);
    const auto load_channels = [&](int64_t channel, int64_t most, const LaneRun<C>& lanes) {
      const int64_t channels = std::min(most, plan_.p.groups * plan_.inner - channel);
      const T* run = from + channel * xs[1];
      const bool may_exceed = pixels > 0 && run + (channels - 1) * xs[1] + n <= image_end_;
      load_pixels(ImageRun<const T>{run, channels, pixels, xs[1], xs[4]}, lanes, may_exceed);
    };
    if (plan_.is_plain()) {
      load_channels(channel_, vectors * n, {to, n, plan_.in_step});
    } else {
      group_lanes_.load(vectors, pixels, to, load_channels);
    }
  }

  const ChannelLanesPlan& plan_;
  const T *image_, *image_end_;
  const std::vector<Phase> phases_[2];
  const int64_t row_size_;
  const Scratch<C> rows_;
  std::vector<int64_t> tags_; // which row is in a slot of scratch memory
  GroupLanes<C> group_lanes_;
  int64_t n_ = -1, tile_ = -1, channel_ = 0;
};

} // namespace torch_dnnl
