// Rows of the images of a depthwise convolution: which rows and pixels an output meets, and where
// they lie as vectors of channels: in the image, or in scratch memory.
#pragma once

#include <vector>

#include "conv/cpu/channel_lanes/tap_kernels.h"
#include "conv/cpu/shared/phases.h"
#include "conv/cpu/shared/pixels.h"
#include "conv/problem.h"
#include "conv/reference.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/windows.h"
#include "core/math.h"

namespace torch_dnnl {

// What forward, backward data and backward weights have in common: outputs that meet inputs. The
// "outputs" of backward weights are the gradients. Vectors may be where they are in a channels-last
// image, of inputs or of outputs, if the caller can take them there.
struct ChannelLanesPlan {
  ChannelLanesPlan(
      const ConvProblem& p,
      int64_t lanes,
      int64_t element_size,
      bool may_read_image = false,
      bool may_use_outputs = false)
      : p(p),
        lanes(lanes),
        inner(backward_data() ? p.oc : p.ic),
        out_per_group(backward_data() ? p.ic : p.oc),
        vectors(ceil_div(channels(), lanes)),
        in_size(backward_data() ? p.dst_size : p.src_size),
        out_size(backward_data() ? p.src_size : p.dst_size),
        in_stride(backward_data() ? p.dst_stride : p.src_stride),
        out_stride(backward_data() ? p.src_stride : p.dst_stride),
        taps(product(p.kernel)) {
    // Where sums leave the first-level cache anyway, one vector after the other is computed.
    const bool has_many_sums =
        p.pass == ConvPass::backward_weights && taps * inner * lanes * element_size > kCachedSums;
    const bool is_wide = in_stride[1] == 1 && !has_many_sums;
    const int64_t most = (is_wide ? kWideBlock : kBlock) / (inner * lanes * element_size);
    block = ceil_div(vectors, ceil_div(vectors, std::max<int64_t>(1, most))); // of equal size
    // Pixels at such distances compete for the same lines of the first-level cache.
    const bool is_aliased = in_stride[4] * element_size % 4096 == 0 && taps > p.kernel[2];
    reads_image = may_read_image && is_plain() && in_stride[1] == 1 && !is_aliased;
    uses_outputs = may_use_outputs && out_stride[1] == 1;
    overlap_from = vectors;
    if (channels() % lanes != 0) {
      // The last vector ends with the last channel, and overlaps the one before, of the same task.
      if (reads_image && uses_outputs && (vectors - 1) % block > 0) {
        overlap_from = vectors - 1;
      } else {
        reads_image = uses_outputs = false;
      }
    }
    // Transposing a row writes whole vectors of pixels: `margin` pixels beyond its end.
    margin = in_stride[1] == 1 ? 0 : lanes - 1;
    const auto reach = [&](int axis, int64_t outputs) { // inputs that so many outputs meet
      const int64_t kernel = (p.kernel[axis] - 1) * p.dilation[axis], s = p.stride[axis];
      return backward_data() ? (outputs - 1 + kernel) / s + 2 : (outputs - 1) * s + kernel + 1;
    };
    tile = out_size[2];
    rows = std::clamp<int64_t>(kUnitPixels / (tile * inner), 1, out_size[1]);
    rows = ceil_div(out_size[1], ceil_div(out_size[1], rows)); // of equal size
    slots[0] = std::min(reach(0, 1), in_size[0]);
    slots[1] = std::min(reach(1, rows), in_size[1]);
    const auto size = [&] { // in floating point, which does not overflow
      return 1.0 * slots[0] * slots[1] * (reach(2, tile) + margin) * inner * block * lanes;
    };
    while (tile > kLeastTile && size() > kScratch)
      tile = ceil_div(tile, 2);
    while (!reads_image && block > 1 && size() > kScratch)
      block = ceil_div(block, 2);
    width = reach(2, tile) + margin;
    scratch = size();
    // The next plane of outputs meets most of the same planes, if all of their rows stay.
    const auto planes = [&] { return scratch / slots[1] * in_size[1]; };
    const int64_t plane = in_size[1] * in_size[2];
    has_planes = !reads_image && tile == out_size[2] && plane <= kUnitPixels && in_stride[1] != 1 &&
        in_stride[3] == in_size[2] * in_stride[4] &&
        1.0 * slots[0] * (plane + margin) * inner * block * lanes <= kPlanes;
    if (has_planes) {
      slots[1] = 1;
      width = plane + margin;
    } else if (!reads_image && slots[0] > 1 && planes() / block <= kPlanes) {
      while (block > 1 && planes() > kPlanes) {
        block = ceil_div(block, 2);
        scratch = size();
      }
      slots[1] = in_size[1];
    }
    in_step = reads_image ? in_stride[4] : (block * inner + (block * inner % 8 == 0)) * lanes;
    blocks = ceil_div(vectors, block);
    tiles = ceil_div(out_size[2], tile);
    row_blocks = ceil_div(out_size[1], rows);
    units = p.n * tiles * out_size[0] * row_blocks;
  }

  // How many parts the units of a block are dealt out in. Each loads the rows that it meets itself:
  // it should compute no fewer.
  int64_t chunks() const {
    const int64_t loads = reads_image ? 0 : slots[0] * (has_planes ? in_size[1] : slots[1]);
    const int64_t most = ceil_div(units * rows, std::max(loads, rows));
    return std::max<int64_t>(1, std::min(kTasks / blocks, most));
  }

  bool backward_data() const {
    return p.pass == ConvPass::backward_data;
  }
  // Each output channel meets an input channel of its own.
  bool is_plain() const {
    return inner == 1 && out_per_group == 1;
  }

  int64_t channels() const { // output channels
    return p.groups * out_per_group;
  }

  // From the first to behind the last element of the image of inputs.
  int64_t in_elements() const {
    int64_t last = (p.n - 1) * in_stride[0] + (p.groups * inner - 1) * in_stride[1];
    for (int axis = 0; axis < 3; axis++)
      last += (in_size[axis] - 1) * in_stride[2 + axis];
    return last + 1;
  }

  // The last vectors may overlap the ones before.
  int64_t first_channel(int64_t vector) const {
    return vector < overlap_from ? vector * lanes : channels() - (vectors - vector) * lanes;
  }

  // The first input that outputs from `out` on meet.
  int64_t first_in(int axis, int64_t out) const {
    if (!backward_data())
      return out * p.stride[axis] - p.pad[axis];
    const int64_t last = out + p.pad[axis] - (p.kernel[axis] - 1) * p.dilation[axis];
    return last >= 0 ? last / p.stride[axis] : -ceil_div(-last, p.stride[axis]);
  }

  // Outputs are dealt out in units: a tile of some rows of a plane.
  struct Unit {
    int64_t n, tile, d, h;
    int64_t first, width, rows; // of the outputs in the tile
  };
  Unit unit(int64_t index) const {
    // In an image the same rows of all planes follow one another: the next plane meets most of the
    // same planes, of which only so many rows need to stay in the cache. In scratch memory all do.
    const int64_t planes = out_size[0], tile_index = index / (row_blocks * planes);
    const int64_t d = reads_image ? index % planes : index / row_blocks % planes;
    const int64_t h = (reads_image ? index / planes % row_blocks : index % row_blocks) * rows;
    const int64_t t = tile_index % tiles, first = t * tile;
    return {
        tile_index / tiles,
        t,
        d,
        h,
        first,
        std::min(tile, out_size[2] - first),
        std::min(rows, out_size[1] - h)};
  }

  int64_t out_offset(const Unit& unit, int64_t channel) const {
    return unit.n * out_stride[0] + channel * out_stride[1] + unit.d * out_stride[2] +
        unit.h * out_stride[3] + unit.first * out_stride[4];
  }

  // f(first, pixels, offset) for the runs of pixels of a unit in the image of outputs; rows that
  // follow one another in memory are one run.
  template <class F>
  void for_each_run(const Unit& unit, const F& f) const {
    if (out_stride[3] == unit.width * out_stride[4])
      return f(0, unit.rows * unit.width, 0);
    for (int64_t r = 0; r < unit.rows; r++)
      f(r * unit.width, unit.width, r * out_stride[3]);
  }

  const ConvProblem& p;
  int64_t lanes;
  int64_t inner;         // input channels that meet in an output channel
  int64_t out_per_group; // output channels
  int64_t vectors;       // of output channels
  const int64_t *in_size, *out_size, *in_stride, *out_stride;
  int64_t taps;
  bool reads_image;      // rows of inputs lie in the image, not in scratch memory
  bool uses_outputs;     // so do outputs
  bool has_planes;       // planes in scratch memory are loaded as one row, as they are that small
  int64_t overlap_from;  // the first vector that does not begin behind the one before, or none
  int64_t in_step;       // from one pixel of such a row to the next one
  int64_t block, blocks; // vectors that a task computes
  int64_t slots[2];      // planes, and rows of a plane, that scratch memory holds
  int64_t tile, tiles;   // outputs of a row that a task computes at once
  int64_t rows, row_blocks; // rows of outputs that a task computes at once
  int64_t width, margin;    // pixels of a row in scratch memory; those behind its end
  int64_t units;
  double scratch; // elements of all slots

  // Bytes of the channels that a task computes: in a channels-last image they lie together, and
  // the more of them, the better they stream.
  static constexpr int64_t kBlock = 64, kWideBlock = 1024;
  // Bytes of sums of weights that stay in the first-level cache.
  static constexpr int64_t kCachedSums = 16 * 1024;
  // Outputs that are computed at once, and the fewest in a row that is cut up.
  static constexpr int64_t kUnitPixels = 256, kLeastTile = 32;
  static constexpr int64_t kTasks = 64;          // enough for the threads to share
  static constexpr int64_t kScratch = 64 * 1024; // elements; small enough for the caches
  static constexpr int64_t kPlanes = 96 * 1024;  // for all rows of the planes in use
};

// The rows of the input, loaded when they are needed and kept while they may be needed again.
template <class T, class C>
class InputRows {
 public:
  explicit InputRows(const ChannelLanesPlan& plan)
      : plan_(plan),
        image_(static_cast<const T*>(plan.backward_data() ? plan.p.dst : plan.p.src)),
        image_end_(image_ + plan.in_elements()),
        pixel_(plan.inner * n),
        window_vectors_(plan.is_plain() ? 0 : window_vectors(plan)),
        rows_(plan.reads_image ? 0 : plan.slots[0] * plan.slots[1] * row_size()),
        window_(plan.width * window_vectors_ * n),
        tags_(plan.slots[0] * plan.slots[1]),
        index_(plan.is_plain() ? 0 : plan.block * pixel_),
        first_(plan.block) {
    for (int axis = 0; axis < 2; axis++)
      phases_[axis] = phases_of(plan.p, axis);
  }

  void select_block(int64_t block) {
    forget();
    channel_ = block * plan_.block * n;
    if (!plan_.is_plain())
      map_lanes();
  }

  // f(row, tap) with the row of pixels that each row of taps meets at row h of a unit of outputs;
  // `tap` is the first of its taps.
  template <class F>
  void for_each(const ChannelLanesPlan::Unit& unit, int64_t h, const F& f) {
    if (unit.n != n_ || unit.tile != tile_) {
      forget();
      n_ = unit.n;
      tile_ = unit.tile;
    }
    for_each_tap(0, unit.d, [&](int64_t d, int64_t kd) {
      for_each_tap(1, h, [&](int64_t in, int64_t kh) {
        f(row(d, in), (kd * plan_.p.kernel[1] + kh) * plan_.p.kernel[2]);
      });
    });
  }

 private:
  static constexpr int64_t n = kLanes<C>;

  // How many vectors of input channels a vector of output channels meets; one of the numbers that
  // LanesWindow has kernels for, or more.
  static int64_t window_vectors(const ChannelLanesPlan& plan) {
    const int64_t most = plan.p.groups, of_group = plan.out_per_group;
    const int64_t groups =
        std::min(most, n % of_group == 0 ? n / of_group : (n - 2) / of_group + 2);
    const int64_t vectors = ceil_div(groups * plan.inner, n);
    return vectors == 3 ? 4 : vectors;
  }

  int64_t row_size() const {
    return plan_.width * plan_.in_step;
  }

  void forget() {
    std::fill(tags_.begin(), tags_.end(), -1);
  }

  template <class F>
  void for_each_tap(int axis, int64_t out, const F& f) const {
    const auto& phases = phases_[axis];
    const Phase& phase = phases[out % phases.size()];
    int64_t in = phase.in + (out - phase.out) / phase.out_step * phase.in_step;
    for (int64_t m = 0; m < phase.taps; m++, in += phase.tap_in_step) {
      if (in >= 0 && in < plan_.in_size[axis])
        f(in, phase.tap + m * phase.tap_step);
    }
  }

  const C* row(int64_t d, int64_t h) {
    if constexpr (std::is_same_v<T, C>) {
      const int64_t* xs = plan_.in_stride;
      if (plan_.reads_image)
        return image_ + n_ * xs[0] + channel_ + d * xs[2] + h * xs[3];
    }
    const int64_t slot = d % plan_.slots[0] * plan_.slots[1] + h % plan_.slots[1];
    const int64_t tag = plan_.has_planes ? d : d * plan_.in_size[1] + h;
    C* to = rows_.data() + slot * row_size();
    if (tags_[slot] != tag) {
      load(d, h, to);
      tags_[slot] = tag;
    }
    return plan_.has_planes ? to + h * plan_.in_size[2] * plan_.in_step : to;
  }

  // Pixels outside the image are left as they are: no tap is multiplied by them.
  void load(int64_t d, int64_t h, C* to) {
    const int64_t* xs = plan_.in_stride;
    const T* from = image_ + n_ * xs[0] + d * xs[2];
    int64_t pixels = plan_.in_size[1] * plan_.in_size[2];
    if (!plan_.has_planes) {
      const int64_t begin = plan_.first_in(2, tile_ * plan_.tile);
      const int64_t left = std::clamp<int64_t>(-begin, 0, plan_.width - plan_.margin);
      pixels = std::clamp(plan_.in_size[2] - begin, left, plan_.width - plan_.margin) - left;
      from += h * xs[3] + (begin + left) * xs[4];
      to += left * plan_.in_step;
    }
    const int64_t vectors = std::min(plan_.block, plan_.vectors - channel_ / n);
    const auto load_channels = [&](int64_t channel, int64_t most, const LaneRun<C>& lanes) {
      const int64_t channels = std::min(most, plan_.p.groups * plan_.inner - channel);
      const T* run = from + channel * xs[1];
      const bool may_exceed = pixels > 0 && run + (channels - 1) * xs[1] + n <= image_end_;
      load_pixels(ImageRun<const T>{run, channels, pixels, xs[1], xs[4]}, lanes, may_exceed);
    };
    if (plan_.is_plain()) {
      load_channels(channel_, vectors * n, {to, n, plan_.in_step});
    } else {
      for (int64_t v = 0; v < vectors; v++) {
        load_channels(first_[v], window_vectors_ * n, {window_.data(), n, window_vectors_ * n});
        const int32_t* index = index_.data() + v * pixel_;
        C* lanes = to + v * n;
        if (window_vectors_ == 1) {
          spread<1>(index, pixels, lanes);
        } else if (window_vectors_ == 2) {
          spread<2>(index, pixels, lanes);
        } else if (window_vectors_ == 4) {
          spread<4>(index, pixels, lanes);
        } else {
          spread<0>(index, pixels, lanes);
        }
      }
    }
  }

  // To each lane of an output channel the input channels of its group.
  template <int kVectors>
  void spread(const int32_t* index, int64_t pixels, C* to) const {
    const int64_t step = plan_.block * n;
    for (int64_t x = 0; x < pixels; x++, to += plan_.in_step) {
      using Window = LanesWindow<kVectors, C>;
      const Window window(window_.data() + x * window_vectors_ * n);
      for (int64_t i = 0; i < plan_.inner; i++)
        window.pick(typename Window::Index(index + i * n)).store(to + i * step);
    }
  }

  void map_lanes() {
    for (int64_t v = 0; v < plan_.block; v++) {
      first_[v] = (channel_ + v * n) / plan_.out_per_group * plan_.inner;
      for (int64_t lane = 0; lane < n; lane++) {
        // A lane behind the last channel may have any value.
        const int64_t channel = std::min(channel_ + v * n + lane, plan_.channels() - 1);
        const int64_t in = channel / plan_.out_per_group * plan_.inner - first_[v];
        for (int64_t i = 0; i < plan_.inner; i++)
          index_[v * pixel_ + i * n + lane] = static_cast<int32_t>(in + i);
      }
    }
  }

  const ChannelLanesPlan& plan_;
  const T *image_, *image_end_;
  const int64_t pixel_, window_vectors_;
  const Scratch<C> rows_, window_;
  std::vector<int64_t> tags_;
  std::vector<int32_t> index_;
  std::vector<int64_t> first_; // input channel of the lanes of a vector
  std::vector<Phase> phases_[2];
  int64_t n_ = -1, tile_ = -1, channel_ = 0;
};

} // namespace torch_dnnl
