// How a convolution whose lanes are pixels is cut into tasks, and how the planes of its inputs lie
// in scratch memory.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/problems/canonical.h"
#include "conv/cpu/shared/problems/phases.h"
#include "core/math.h"

namespace torch_dnnl {

// Outputs that a pixel is multiplied for: channels, or rows.
inline constexpr int kPlaneOutputs = 7;

// Outputs of the same phase along an axis are counted in steps. Inputs whose columns leave the same
// rest when they are divided by the step of the inputs are a class.
struct PlanePhases : GatherImages {
  std::vector<Phase> phases[3] = {phases_of(p, 0), phases_of(p, 1), phases_of(p, 2)};
  int64_t classes = phases[2][0].in_step; // of the columns of inputs
  // Of the outputs of a phase.
  int64_t columns = ceil_div(out_size[2], phases[2][0].out_step);
  int64_t row_steps = ceil_div(out_size[1], phases[1][0].out_step);
  // That an output meets, from its own on.
  int64_t first_class = floor_div(in_reach(2, 0, 1).begin, classes);
  int64_t last_class = floor_div(in_reach(2, 0, 1).end - 1, classes);

  // The inputs that a range of steps of outputs meets in any phase, be they in the image or not.
  Range in_reach(int axis, int64_t first, int64_t steps) const {
    Range reach{0, 0};
    for (const Phase& f : phases[axis]) {
      const int64_t begin = f.in + first * f.in_step;
      const Range met{begin, begin + (steps - 1) * f.in_step + (f.taps - 1) * f.tap_in_step + 1};
      if (f.taps > 0) {
        const bool is_first = reach.begin == reach.end;
        reach.begin = is_first ? met.begin : std::min(reach.begin, met.begin);
        reach.end = is_first ? met.end : std::max(reach.end, met.end);
      }
    }
    return reach;
  }

  int64_t class_of(int64_t column) const {
    return column - floor_div(column, classes) * classes;
  }
  static int64_t floor_div(int64_t a, int64_t b) {
    return a >= 0 ? a / b : -ceil_div(-a, b);
  }
};

// What is computed at once, in steps of outputs, and how the rows of inputs that it meets lie in
// scratch memory, in elements.
struct PlaneTile {
  int64_t lanes;
  int64_t tile, tiles;   // columns
  int64_t vectors;       // of a tile
  int64_t lead;          // zeros in front of a plane
  int64_t pitch;         // of the rows of a class
  int64_t block, blocks; // images, where rows are a vector
  int64_t rows, row_blocks;
  int64_t slots;      // planes of an input channel
  int64_t plane_size; // of a plane, with room for the last vector
  double scratch;     // of all planes
};

namespace pixel_lanes_detail {

inline constexpr int64_t kTile = 1024;        // columns
inline constexpr int64_t kImages = 4;         // of narrow planes
inline constexpr int64_t kLeastRows = 16;     // that planes are cut into
inline constexpr int64_t kScratch = 8 * 1024; // elements that stay in the cache

inline PlaneTile choose_tile(const PlanePhases& o, int64_t lanes) {
  PlaneTile t{lanes};
  t.tile = ceil_div(o.columns, ceil_div(o.columns, kTile));
  if (t.tile < o.columns)
    t.tile = round_up(t.tile, lanes);
  t.tiles = ceil_div(o.columns, t.tile);
  t.vectors = ceil_div(t.tile, lanes);
  // Zeros behind a row are also those in front of the next one. The last vector of a class may be
  // stored over the first pixels of the next class.
  const int64_t left = std::max<int64_t>(-o.first_class, 0), met = t.tile + o.last_class;
  const int64_t in_columns = ceil_div(o.in_size[2], o.classes);
  const int64_t pitch = t.tiles == 1 ? std::max(std::min(in_columns, met) + left, met)
                                     : std::max(t.tile + left, met) + left;
  t.lead = round_up(left, lanes);
  t.pitch = round_up(pitch + (o.classes > 1 ? lanes - 1 : 0), lanes);

  t.block = t.vectors == 1 ? std::min(kImages, o.p.n) : 1;
  t.blocks = ceil_div(o.p.n, t.block);
  t.slots = std::min(o.in_reach(0, 0, 1).count() + 1, o.in_size[0]);
  const auto plane_size = [&](int64_t rows) {
    const int64_t in_rows = std::min(o.in_reach(1, 0, rows).count(), o.in_size[1]);
    return t.lead + in_rows * o.classes * t.pitch + lanes;
  };
  t.rows = o.row_steps;
  while (t.rows > kLeastRows && t.block * o.in_channels * t.slots * plane_size(t.rows) > kScratch)
    t.rows = ceil_div(t.rows, 2);
  t.row_blocks = ceil_div(o.row_steps, t.rows);
  t.plane_size = plane_size(t.rows);
  t.scratch = 1.0 * t.block * o.in_channels * t.slots * t.plane_size;
  return t;
}

} // namespace pixel_lanes_detail

struct PixelLanesPlan : PlanePhases, PlaneTile {
  // All parts of outputs, of all groups.
  int64_t units() const {
    return p.groups * blocks * tiles * row_blocks * out_size[0];
  }
  int64_t row_pitch() const {
    return classes * pitch;
  }
  // The outputs of a unit in scratch memory: [image][channel][row][phase of columns][pixel].
  int64_t out_rows() const {
    return rows * phases[1][0].out_step;
  }
  int64_t out_pitch() const {
    return vectors * lanes;
  }
  int64_t out_elements() const {
    return block * out_channels * out_rows() * static_cast<int64_t>(phases[2].size()) * out_pitch();
  }
  // Multiply-adds of a unit.
  int64_t operations() const {
    return block * rows * tile * out_channels * in_channels * product(p.kernel);
  }

  // A part of the outputs of a group in some images: `rows` and `width` are steps.
  struct Unit {
    int64_t group, n, images, tile, first, width, row, rows, d;
  };
  Unit unit(int64_t index) const {
    Digits digits{index};
    Unit u;
    u.d = digits.next(out_size[0]);
    u.row = digits.next(row_blocks) * rows;
    u.rows = std::min(rows, row_steps - u.row);
    u.tile = digits.next(tiles);
    u.first = u.tile * tile;
    u.width = std::min(tile, columns - u.first);
    u.n = digits.next(blocks) * block;
    u.images = std::min(block, p.n - u.n);
    u.group = digits.rest;
    return u;
  }

  // Where the pixels of taps are in a row, from that of its first output on.
  std::vector<int64_t> column_taps(const Phase& phase) const {
    std::vector<int64_t> taps;
    for (int64_t m = 0; m < phase.taps; m++) {
      const int64_t in = phase.in + m * phase.tap_in_step;
      taps.push_back(class_of(in) * pitch + floor_div(in, classes));
    }
    return taps;
  }
};

inline PixelLanesPlan plan_pixel_lanes(const ConvProblem& p, int64_t lanes) {
  const PlanePhases phases{{p}};
  return {phases, pixel_lanes_detail::choose_tile(phases, lanes)};
}

// Rows of outputs that a step of rows of the image is multiplied for.
inline int64_t outputs_of_step(const Phase& row) {
  return ceil_div(row.taps, row.in_step);
}

// Whether rows of outputs meet rows of the image that follow one another.
inline bool can_slide(const Phase& row) {
  const int64_t outputs = outputs_of_step(row);
  return row.tap_in_step == 1 && outputs > 1 && outputs <= kPlaneOutputs;
}

// Whether the parts of a phase of rows slide: with one output channel, they compute several rows.
inline bool slides(const GatherImages& images, const Phase& row) {
  return images.out_channels == 1 && can_slide(row);
}

// Short rows are columns instead.
inline ConvProblem with_long_rows(ConvProblem p) {
  constexpr int64_t short_row = 8, long_row = 64;
  if (std::max(p.src_size[2], p.dst_size[2]) <= short_row &&
      std::min(p.src_size[1], p.dst_size[1]) >= long_row)
    swap_axes(p, 1, 2);
  return p;
}

} // namespace torch_dnnl
