// How a depthwise convolution is cut into tasks: vectors of channels, rows and tiles of outputs,
// and where the vectors of both images lie, in the image or in scratch memory.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/gather.h"
#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// The vectors of a problem.
struct LaneImages : GatherImages {
  int64_t lanes;
  int64_t channels = p.groups * out_channels; // of outputs
  int64_t vectors = ceil_div(channels, lanes);
  bool is_plain = in_channels == 1 && out_channels == 1; // each output channel meets one of its own

  // How many inputs along an axis some neighbouring outputs meet.
  int64_t reach(int axis, int64_t outputs) const {
    const int64_t kernel = (p.kernel[axis] - 1) * p.dilation[axis], s = p.stride[axis];
    return backward_data ? (outputs - 1 + kernel) / s + 2 : (outputs - 1) * s + kernel + 1;
  }
  // The first input that outputs from `out` on meet.
  int64_t first_in(int axis, int64_t out) const {
    if (!backward_data)
      return out * p.stride[axis] - p.pad[axis];
    const int64_t last = out + p.pad[axis] - (p.kernel[axis] - 1) * p.dilation[axis];
    return last >= 0 ? last / p.stride[axis] : -ceil_div(-last, p.stride[axis]);
  }
};

// Where the vectors of the images are.
struct LanePlaces {
  bool reads_image;     // rows of inputs lie in the image, not in scratch memory
  bool uses_outputs;    // so do outputs
  int64_t overlap_from; // the first vector that does not begin behind the one before, or none
};

// What a task computes at once, and the rows of inputs in scratch memory.
struct LaneTile {
  int64_t block;              // vectors
  int64_t width, rows;        // of outputs: pixels of a row, and rows
  int64_t in_planes, in_rows; // planes of inputs, and rows of a plane, in scratch memory
  int64_t in_width;           // pixels of such a row
  int64_t margin;             // pixels behind the end of a row, included in its width
  bool has_planes;            // small planes are loaded as one row
  double elements;            // at least
};

namespace channel_lanes_detail {

// Bytes of the channels that a task computes: in a channels-last image they lie together, and the
// more of them, the better they stream.
inline constexpr int64_t kBlock = 64, kWideBlock = 1024;
// Bytes of sums of weights that stay in the first-level cache.
inline constexpr int64_t kCachedSums = 16 * 1024;
// Outputs that are computed at once, and the fewest in a row that is cut up.
inline constexpr int64_t kUnitPixels = 256, kLeastTile = 32;
// A plane that the kernel reads where it lies has at least so many units.
inline constexpr int64_t kLeastUnits = 4;
inline constexpr int64_t kTasks = 64;          // enough for the threads to share
inline constexpr int64_t kScratch = 64 * 1024; // elements; small enough for the caches
inline constexpr int64_t kPlanes = 96 * 1024;  // elements, for all rows of the planes in use

// The vectors of a task.
inline int64_t choose_block(const LaneImages& images, int64_t element_size) {
  const ConvProblem& p = images.p;
  const int64_t bytes = images.in_channels * images.lanes * element_size;
  // Where sums leave the first-level cache anyway, one vector after the other is computed.
  const bool has_many_sums =
      p.pass == ConvPass::backward_weights && product(p.kernel) * bytes > kCachedSums;
  const bool is_wide = images.in_stride[1] == 1 && !has_many_sums;
  const int64_t most = std::max<int64_t>(1, (is_wide ? kWideBlock : kBlock) / bytes);
  return ceil_div(images.vectors, ceil_div(images.vectors, most)); // of equal size
}

inline LanePlaces choose_places(
    const LaneImages& images,
    int64_t element_size,
    int64_t block,
    bool may_read_image,
    bool may_use_outputs) {
  const ConvProblem& p = images.p;
  // Pixels at such distances compete for the same lines of the first-level cache.
  const bool is_aliased =
      images.in_stride[4] * element_size % 4096 == 0 && product(p.kernel) > p.kernel[2];
  const bool reads_image =
      may_read_image && images.is_plain && images.in_stride[1] == 1 && !is_aliased;
  const bool uses_outputs = may_use_outputs && images.out_stride[1] == 1;
  if (images.channels % images.lanes == 0)
    return {reads_image, uses_outputs, images.vectors};
  // The last vector ends with the last channel, and overlaps the one before, of the same task.
  if (reads_image && uses_outputs && (images.vectors - 1) % block > 0)
    return {true, true, images.vectors - 1};
  return {false, false, images.vectors};
}

// Elements of scratch memory, in floating point, which does not overflow.
inline double
elements_of(const LaneImages& images, int64_t planes, int64_t rows, int64_t width, int64_t block) {
  return 1.0 * planes * rows * width * images.in_channels * block * images.lanes;
}

inline LaneTile tile_of(const LaneImages& images, int64_t width, int64_t block) {
  const int64_t* size = images.out_size;
  const int64_t most_rows =
      std::clamp<int64_t>(kUnitPixels / (size[2] * images.in_channels), 1, size[1]);
  LaneTile tile{block, width};
  tile.rows = ceil_div(size[1], ceil_div(size[1], most_rows)); // of equal size
  tile.in_planes = std::min(images.reach(0, 1), images.in_size[0]);
  tile.in_rows = std::min(images.reach(1, tile.rows), images.in_size[1]);
  // Transposing a row writes whole vectors of pixels: `margin` pixels beyond its end.
  tile.margin = images.in_stride[1] == 1 ? 0 : images.lanes - 1;
  tile.in_width = images.reach(2, width) + tile.margin;
  tile.elements = elements_of(images, tile.in_planes, tile.in_rows, tile.in_width, block);
  return tile;
}

inline LaneTile choose_tile(const LaneImages& images, int64_t block, bool reads_image) {
  LaneTile tile = tile_of(images, images.out_size[2], block);
  // Rows are cut up while they do not fit into the scratch memory.
  while (tile.width > kLeastTile && tile.elements > kScratch)
    tile = tile_of(images, ceil_div(tile.width, 2), block);
  if (reads_image) {
    // Threads share rows. Threads that wrote channels of the same pixel would wait for each other's
    // lines. Backward weights keeps larger units, because each chunk has sums of its own.
    if (images.p.pass != ConvPass::backward_weights)
      tile.rows = std::min(tile.rows, ceil_div(images.out_size[1], kLeastUnits));
    return tile;
  }
  // A task computes fewer vectors while rows do not fit.
  while (tile.block > 1 && tile.elements > kScratch)
    tile = tile_of(images, tile.width, ceil_div(tile.block, 2));
  const int64_t* size = images.in_size;
  const int64_t plane = size[1] * size[2];
  const bool is_joined = images.in_stride[1] != 1 && tile.width == images.out_size[2] &&
      images.in_stride[3] == size[2] * images.in_stride[4];
  if (is_joined && plane <= kUnitPixels &&
      elements_of(images, tile.in_planes, 1, plane + tile.margin, tile.block) <= kPlanes) {
    tile.has_planes = true;
    tile.in_rows = 1;
    tile.in_width = plane + tile.margin;
    return tile;
  }
  // The next plane of outputs meets most of the same planes, if all of their rows stay.
  const auto with_all_rows = [&](int64_t vectors) {
    return elements_of(images, tile.in_planes, size[1], tile.in_width, vectors);
  };
  if (tile.in_planes > 1 && with_all_rows(1) <= kPlanes) {
    while (tile.block > 1 && with_all_rows(tile.block) > kPlanes)
      tile.block = ceil_div(tile.block, 2);
    tile.in_rows = size[1];
  }
  return tile;
}

} // namespace channel_lanes_detail

struct ChannelLanesPlan : LaneImages, LanePlaces, LaneTile {
  int64_t in_step;        // from one pixel of a row of inputs to the next one
  int64_t vector_weights; // elements of the packed weights of a vector: [tap][inner][lane]
  int64_t blocks, tiles, row_blocks;
  int64_t units; // of a block of vectors

  // How many parts the units of a block are dealt out in. Each loads the rows that it meets itself:
  // it should compute no fewer.
  int64_t chunks() const {
    const int64_t loads = reads_image ? 0 : in_planes * (has_planes ? in_size[1] : in_rows);
    const int64_t most = ceil_div(units * rows, std::max(loads, rows));
    return std::max<int64_t>(1, std::min(channel_lanes_detail::kTasks / blocks, most));
  }

  // The time of one of `chunks` parts of a block, in multiply-adds of a matrix product. A
  // multiply-add takes four times as long here, because it loads a vector.
  int64_t operations(int64_t chunks) const {
    return 4 * (units / chunks) * rows * width * vector_weights * block;
  }

  // The last vectors may overlap the ones before.
  int64_t first_channel(int64_t vector) const {
    return vector < overlap_from ? vector * lanes : channels - (vectors - vector) * lanes;
  }

  // Outputs are dealt out in units: a tile of some rows of a plane.
  struct Unit {
    int64_t n, tile, d, h;
    int64_t first, width, rows; // of the outputs in the tile
  };
  Unit unit(int64_t index) const {
    // In an image the same rows of all planes follow one another: the next plane meets most of the
    // same planes, of which only so many rows need to stay in the cache. In scratch memory all do.
    Digits digits{index};
    const int64_t fast = digits.next(reads_image ? out_size[0] : row_blocks);
    const int64_t slow = digits.next(reads_image ? row_blocks : out_size[0]);
    const int64_t d = reads_image ? fast : slow;
    const int64_t h = (reads_image ? slow : fast) * rows;
    const int64_t t = digits.next(tiles), first = t * width;
    return {
        digits.rest,
        t,
        d,
        h,
        first,
        std::min(width, out_size[2] - first),
        std::min(rows, out_size[1] - h)};
  }

  int64_t out_offset(const Unit& unit, int64_t channel) const {
    return unit.n * out_stride[0] + channel * out_stride[1] + unit.d * out_stride[2] +
        unit.h * out_stride[3] + unit.first * out_stride[4];
  }
};

// may_read_image, may_use_outputs: vectors of a channels-last image of inputs, or of outputs, can
// stay where they are.
inline ChannelLanesPlan plan_channel_lanes(
    const ConvProblem& p,
    int64_t lanes,
    int64_t element_size,
    bool may_read_image,
    bool may_use_outputs) {
  using namespace channel_lanes_detail;
  const LaneImages images{{p}, lanes};
  const int64_t block = choose_block(images, element_size);
  const LanePlaces places =
      choose_places(images, element_size, block, may_read_image, may_use_outputs);
  const LaneTile tile = choose_tile(images, block, places.reads_image);
  const int64_t pixel = tile.block * images.in_channels;
  ChannelLanesPlan plan{images, places, tile};
  // Pixels at distances of many lines would compete for lines of the cache.
  plan.in_step = places.reads_image ? images.in_stride[4] : (pixel + (pixel % 8 == 0)) * lanes;
  plan.vector_weights = product(p.kernel) * images.in_channels * lanes;
  plan.blocks = ceil_div(images.vectors, tile.block);
  plan.tiles = ceil_div(images.out_size[2], tile.width);
  plan.row_blocks = ceil_div(images.out_size[1], tile.rows);
  plan.units = p.n * plan.tiles * images.out_size[0] * plan.row_blocks;
  return plan;
}

} // namespace torch_dnnl
