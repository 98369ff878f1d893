// The inputs that the taps of a tile of gradients meet, in the type that they are computed with.
//
// Numbers of half types are widened. Taps meet most inputs several times, so a row of the image is
// widened for the first tap that meets it, and kept for the other taps of the tile. Where the rows
// of a tile would not stay in the cache, as taps are far apart, each tap widens what it meets.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/direct/operands.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/gradient_tiles.h"
#include "core/cpu/scratch.h"
#include "core/numeric.h"

namespace torch_dnnl {

struct TileInputsPlan {
  bool are_kept;        // rows, for all taps of a tile
  int64_t planes, rows; // in memory: planes of the image, and rows of a plane
  int64_t row_size;     // numbers
};

inline TileInputsPlan
plan_tile_inputs(const ConvProblem& p, const GradientTiles& tiles, int64_t channels) {
  constexpr int64_t most_kept = 64 * 1024; // numbers, in the second-level cache
  const auto met = [&](int axis, int64_t outputs) {
    const int64_t between = (p.kernel[axis] - 1) * p.dilation[axis];
    return std::min((outputs - 1) * p.stride[axis] + between + 1, p.src_size[axis]);
  };
  const auto row_size = [&](int64_t pixels, int64_t step) {
    return copied_pixels(pixels, p.src_stride[1], step * p.src_stride[4]) * channels;
  };
  const int64_t of_tap = tiles.tile_rows * tiles.tile_width;
  const TileInputsPlan kept{
      true, p.kernel[0], met(1, tiles.tile_rows), row_size(met(2, tiles.tile_width), 1)};
  const int64_t size = kept.planes * kept.rows * kept.row_size;
  if (size <= std::min(product(p.kernel) * of_tap * channels, most_kept))
    return kept;
  return {false, 1, tiles.tile_rows, row_size(tiles.tile_width, p.stride[2])};
}

template <class T>
class TileInputs : GatherImages {
 public:
  using C = compute_t<T>;

  TileInputs(const ConvProblem& p, const TileInputsPlan& plan) : GatherImages{p}, plan_(plan) {}

  // image: the first of the channels that are read.
  void select_tile(const GradientTile& tile, const T* image, int64_t channels) {
    image_ = image;
    channels_ = channels;
    const int64_t between = (p.kernel[2] - 1) * p.dilation[2];
    const int64_t last = (tile.pixels.end - 1) * p.stride[2] - p.pad[2] + between;
    pixels_ = {first_met(2, tile.pixels.begin), std::min(last + 1, p.src_size[2])};
    first_row_ = first_met(1, tile.rows.begin);
    std::fill(kept_.begin(), kept_.end(), Block<C>{});
  }

  // The inputs that a tap meets; kd: the tap along the first axis.
  void select_tap(int64_t kd, const Segment& d, const Segment& h, const Segment& w) {
    plane_ = image_ + d.in * p.src_stride[2];
    first_slot_ = plan_.are_kept ? kd * plan_.rows - first_row_ : 0;
    h_ = h;
    w_ = w;
  }

  // Those of one of its rows. Strides are the same in all rows.
  Block<C> row(int64_t row) {
    const int64_t *xs = p.src_stride, y = h_.in + row * h_.in_step;
    const T* line = plane_ + y * xs[3];
    const ImageRun<const T> run{
        line + w_.in * xs[4], channels_, w_.count, xs[1], w_.in_step * xs[4]};
    if (std::is_same_v<T, C> || !plan_.are_kept)
      return load_block(run, widened_.data() + row * plan_.row_size);
    const int64_t slot = first_slot_ + y;
    Block<C>& kept = kept_[slot];
    if (kept.data == nullptr) {
      const T* first = line + pixels_.begin * xs[4];
      kept = copy_block(
          ImageRun<const T>{first, channels_, pixels_.count(), xs[1], xs[4]},
          widened_.data() + slot * plan_.row_size);
    }
    return {
        kept.data + (w_.in - pixels_.begin) * kept.pixel_stride,
        w_.in_step * kept.pixel_stride,
        kept.channel_stride};
  }

 private:
  // The first input that outputs from `out` on may meet.
  int64_t first_met(int axis, int64_t out) const {
    return std::max<int64_t>(out * p.stride[axis] - p.pad[axis], 0);
  }

  const TileInputsPlan& plan_;
  const int64_t slots_ = std::is_same_v<T, C> ? 0 : plan_.planes * plan_.rows;
  const Scratch<C> widened_{slots_ * plan_.row_size};
  std::vector<Block<C>> kept_ = std::vector<Block<C>>(slots_);
  const T *image_ = nullptr, *plane_ = nullptr;
  int64_t channels_ = 0, first_row_ = 0, first_slot_ = 0;
  Range pixels_{};
  Segment h_{}, w_{};
};

} // namespace torch_dnnl
