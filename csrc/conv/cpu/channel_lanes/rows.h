// The rows of inputs that the outputs of a depthwise convolution meet, as vectors of channels:
// where they are in the image, or in scratch memory.
#pragma once

#include <vector>

#include "conv/cpu/channel_lanes/group_lanes.h"
#include "conv/cpu/channel_lanes/plan.h"
#include "conv/cpu/channel_lanes/tap_kernels.h"
#include "conv/cpu/shared/pixels.h"
#include "conv/cpu/shared/problems/phases.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// The rows of taps that each row of a unit of outputs meets.
template <class C>
using TapRows = std::vector<std::vector<TapRow<C>>>;

// Rows are loaded when they are needed and kept while they may be needed again.
template <class T, class C>
class InputRows {
 public:
  explicit InputRows(const ChannelLanesPlan& plan) : plan_(plan) {}

  void select_block(int64_t block) {
    forget();
    channel_ = block * plan_.block * n;
    if (!plan_.is_plain)
      group_lanes_.select_channels(channel_);
  }

  // Lists the rows that a unit meets. `weights`: [tap][input channel][lane] of a vector.
  void list(const ChannelLanesPlan::Unit& unit, C* weights, TapRows<C>& rows) {
    if (unit.n != n_ || unit.tile != tile_) {
      forget();
      n_ = unit.n;
      tile_ = unit.tile;
    }
    const int64_t *kernel = plan_.p.kernel, *size = plan_.in_size;
    for (int64_t r = 0; r < unit.rows; r++)
      rows[r].clear();
    for_each_tap(phases_[0], unit.d, size[0], [&](int64_t d, int64_t kd) {
      const int64_t first_slot = d % plan_.in_planes * plan_.in_rows;
      for (int64_t r = 0; r < unit.rows; r++) {
        for_each_tap(phases_[1], unit.h + r, size[1], [&](int64_t h, int64_t kh) {
          const int64_t tap = (kd * kernel[1] + kh) * kernel[2];
          rows[r].push_back({row(d, h, first_slot), weights + tap * plan_.in_channels * n});
        });
      }
    });
  }

 private:
  static constexpr int64_t n = kLanes<C>;

  void forget() {
    std::fill(tags_.begin(), tags_.end(), -1);
  }

  // `first_slot`: of those for the rows of plane d.
  const void* row(int64_t d, int64_t h, int64_t first_slot) {
    const int64_t* xs = plan_.in_stride;
    if (plan_.reads_image)
      return image_ + n_ * xs[0] + channel_ + d * xs[2] + h * xs[3];
    const bool has_planes = plan_.has_planes; // then a plane has one slot
    const int64_t slot = has_planes ? first_slot : first_slot + h % plan_.in_rows;
    const int64_t tag = has_planes ? d : d * plan_.in_size[1] + h;
    C* to = rows_.data() + slot * row_size_;
    if (tags_[slot] != tag) {
      load(d, h, to);
      tags_[slot] = tag;
    }
    return has_planes ? to + h * plan_.in_size[2] * plan_.in_step : to;
  }

  // Pixels outside the image are left as they are: no tap is multiplied by them.
  void load(int64_t d, int64_t h, C* to) {
    const int64_t* xs = plan_.in_stride;
    const T* from = image_ + n_ * xs[0] + d * xs[2];
    int64_t pixels = plan_.in_size[1] * plan_.in_size[2];
    if (!plan_.has_planes) {
      const int64_t width = plan_.in_width - plan_.margin;
      const int64_t begin = plan_.first_in(2, tile_ * plan_.width);
      const int64_t left = std::clamp<int64_t>(-begin, 0, width);
      pixels = std::clamp(plan_.in_size[2] - begin, left, width) - left;
      from += h * xs[3] + (begin + left) * xs[4];
      to += left * plan_.in_step;
    }
    const int64_t vectors = std::min(plan_.block, plan_.vectors - channel_ / n);
    const auto load_channels = [&](int64_t channel, int64_t most, const LaneRun<C>& lanes) {
      const int64_t channels = std::min(most, plan_.p.groups * plan_.in_channels - channel);
      const T* run = from + channel * xs[1];
      const bool may_exceed = pixels > 0 && run + (channels - 1) * xs[1] + n <= image_end_;
      load_pixels(ImageRun<const T>{run, channels, pixels, xs[1], xs[4]}, lanes, may_exceed);
    };
    if (plan_.is_plain)
      load_channels(channel_, vectors * n, {to, n, plan_.in_step});
    else
      group_lanes_.load(vectors, pixels, to, load_channels);
  }

  // Behind the last element of the image.
  const T* image_end() const {
    const int64_t *size = plan_.in_size, *stride = plan_.in_stride;
    return plan_.input<T>(plan_.p.n - 1, plan_.p.groups - 1) + (plan_.in_channels - 1) * stride[1] +
        (size[0] - 1) * stride[2] + (size[1] - 1) * stride[3] + (size[2] - 1) * stride[4] + 1;
  }

  const ChannelLanesPlan& plan_;
  const T* const image_ = plan_.input<T>(0, 0);
  const T* const image_end_ = image_end();
  const std::vector<Phase> phases_[2] = {phases_of(plan_.p, 0), phases_of(plan_.p, 1)};
  const int64_t row_size_ = plan_.in_width * plan_.in_step;
  const int64_t slots_ = plan_.in_planes * plan_.in_rows;
  const Scratch<C> rows_{plan_.reads_image ? 0 : slots_ * row_size_};
  std::vector<int64_t> tags_ = std::vector<int64_t>(slots_); // which row is in a slot of rows_
  GroupLanes<C> group_lanes_{plan_};
  int64_t n_ = -1, tile_ = -1, channel_ = 0;
};

} // namespace torch_dnnl
