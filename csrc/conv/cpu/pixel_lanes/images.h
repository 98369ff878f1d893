// Planes of channels-first images in scratch memory, a part at a time: in the computing type, rows
// with zeros around them, and pixels that a stride sets apart in rows of their own.
#pragma once

#include <vector>

#include "conv/cpu/pixel_lanes/kernels.h"
#include "conv/cpu/shared/canonical.h"
#include "conv/cpu/shared/phases.h"
#include "conv/reference.h"
#include "core/cpu/simd.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/math.h"

namespace torch_dnnl {

// What forward, backward data and backward weights have in common: outputs that meet inputs. The
// "outputs" of backward weights are the gradients.
//
// Along an axis, outputs of the same phase are counted in steps, and a part of a plane is a range
// of steps for all phases. Inputs whose columns have the same rest to the step of the inputs are a
// class.
struct PixelLanesPlan {
  PixelLanesPlan(const ConvProblem& p, int64_t lanes)
      : p(p),
        lanes(lanes),
        inner(backward_data() ? p.oc : p.ic),
        outer(backward_data() ? p.ic : p.oc),
        in_size(backward_data() ? p.dst_size : p.src_size),
        out_size(backward_data() ? p.src_size : p.dst_size),
        in_stride(backward_data() ? p.dst_stride : p.src_stride),
        out_stride(backward_data() ? p.src_stride : p.dst_stride),
        phases{phases_of(p, 0), phases_of(p, 1), phases_of(p, 2)},
        classes(phases[2][0].in_step),
        columns(ceil_div(out_size[2], phases[2][0].out_step)),
        row_steps(ceil_div(out_size[1], phases[1][0].out_step)) {
    const auto reach = in_reach(2, 0, 1);
    first_class = floor_div(reach.begin, classes);
    last_class = floor_div(reach.end - 1, classes);
    const int64_t left = std::max<int64_t>(-first_class, 0);
    tile = ceil_div(columns, ceil_div(columns, kTile));
    if (tile < columns)
      tile = round_up(tile, lanes);
    tiles = ceil_div(columns, tile);
    vectors = ceil_div(tile, lanes);
    // Zeros behind a row are also those in front of the next one. The last vector of a class may be
    // stored over the first pixels of the next class.
    lead = round_up(left, lanes);
    pitch = tile + std::max(left, last_class) + left;
    if (tiles == 1)
      pitch = std::max(
          std::min(ceil_div(in_size[2], classes), tile + last_class) + left, tile + last_class);
    pitch = round_up(pitch + (classes > 1 ? lanes - 1 : 0), lanes);
    block = vectors == 1 ? std::min(kImages, p.n) : 1;
    blocks = ceil_div(p.n, block);
    const auto depth = in_reach(0, 0, 1);
    slots = std::min(depth.end - depth.begin + 1, in_size[0]);
    rows = row_steps;
    while (rows > kLeastRows && block * inner * slots * plane_size() > kScratch)
      rows = ceil_div(rows, 2);
    row_blocks = ceil_div(row_steps, rows);
    units = p.groups * blocks * tiles * row_blocks * out_size[0];
    scratch = 1.0 * block * inner * slots * plane_size();
  }

  bool backward_data() const {
    return p.pass == ConvPass::backward_data;
  }

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

  int64_t row_pitch() const {
    return classes * pitch;
  }
  // A plane in scratch memory, and room for the last vector.
  int64_t plane_size() const {
    const auto reach = in_reach(1, 0, rows);
    return lead + std::min(reach.end - reach.begin, in_size[1]) * row_pitch() + lanes;
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

  // f(in, tap) for the planes in the image that meet a plane of outputs.
  template <class F>
  void for_each_plane(int64_t d, const F& f) const {
    const Phase& phase = phases[0][d % phases[0].size()];
    int64_t in = phase.in + (d - phase.out) / phase.out_step * phase.in_step;
    for (int64_t m = 0; m < phase.taps; m++, in += phase.tap_in_step) {
      if (in >= 0 && in < in_size[0])
        f(in, phase.tap + m * phase.tap_step);
    }
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
  int64_t class_of(int64_t column) const {
    return column - floor_div(column, classes) * classes;
  }

  static int64_t floor_div(int64_t a, int64_t b) {
    return a >= 0 ? a / b : -ceil_div(-a, b);
  }

  const ConvProblem& p;
  int64_t lanes;
  int64_t inner, outer; // input and output channels of a group
  const int64_t *in_size, *out_size, *in_stride, *out_stride;
  std::vector<Phase> phases[3];
  int64_t classes;                 // of the columns of inputs
  int64_t columns, row_steps;      // of the outputs of a phase
  int64_t first_class, last_class; // that an output meets, from its own on
  int64_t tile, tiles, vectors;    // of columns
  int64_t lead, pitch;             // in front of, and of the rows of a class in scratch memory
  int64_t block, blocks;           // images of a unit: where rows are a vector
  int64_t slots;                   // planes in scratch memory
  int64_t rows, row_blocks;
  int64_t units;
  double scratch; // elements

  static constexpr int64_t kTile = 1024;        // columns
  static constexpr int64_t kImages = 4;         // of narrow planes
  static constexpr int64_t kLeastRows = 16;     // that planes are cut into
  static constexpr int64_t kScratch = 8 * 1024; // elements that stay in the cache
};

// What a plane's rows are prefetched ahead of, in bytes: the processor does so itself, but small
// planes end before it has begun.
inline constexpr int64_t kPrefetched = 1024;

// Rows of whole vectors, with zeros behind the last column.
template <class C, class T>
[[gnu::noinline]] void
load_rows(const T* from, int64_t from_step, int64_t rows, int64_t columns, C* to, int64_t to_step) {
  constexpr int64_t n = kLanes<C>, ahead = kPrefetched / sizeof(T);
  const int64_t whole = columns / n * n, rest = columns - whole;
  for (int64_t y = 0; y < rows; y++, from += from_step, to += to_step) {
    for (int64_t x = 0; x < whole; x += n) {
      __builtin_prefetch(from + x + ahead);
      load_lanes<C>(from + x).store(to + x);
    }
    if (rest > 0) {
      __builtin_prefetch(from + whole + ahead);
      load_lanes<C>(from + whole, rest).store(to + whole);
    }
  }
}

// The same for columns of even number, and for the others `odd` behind them.
template <class C, class T>
[[gnu::noinline]] void load_pairs(
    const T* from,
    int64_t from_step,
    int64_t rows,
    int64_t columns,
    C* to,
    int64_t to_step,
    int64_t odd) {
  constexpr int64_t n = kLanes<C>, ahead = kPrefetched / sizeof(T);
  const auto load = [&](int64_t x) {
    __builtin_prefetch(from + x + ahead);
    return x + n <= columns ? load_lanes<C>(from + x)
                            : load_lanes<C>(from + x, std::max<int64_t>(columns - x, 0));
  };
  for (int64_t y = 0; y < rows; y++, from += from_step, to += to_step) {
    for (int64_t x = 0; x < columns; x += 2 * n) {
      const auto [first, second] = at::vec::deinterleave2(load(x), load(x + n));
      first.store(to + x / 2);
      second.store(to + x / 2 + odd);
    }
  }
}

// Columns that are `step` apart, and nothing behind the last one. The compiler knows which vectors
// they are in, if it knows the step.
template <int64_t kStep, class C, class T>
[[gnu::noinline]] void load_strided(
    const T* from,
    int64_t from_step,
    int64_t step,
    int64_t rows,
    int64_t columns,
    C* to,
    int64_t to_step) {
  for (int64_t y = 0; y < rows; y++, from += from_step, to += to_step) {
    for (int64_t x = 0; x < columns; x++)
      to[x] = static_cast<C>(from[x * (kStep > 0 ? kStep : step)]);
  }
}

template <class C, class T>
void load_rows(
    const T* from,
    int64_t from_step,
    int64_t step,
    int64_t rows,
    int64_t columns,
    C* to,
    int64_t to_step) {
  const auto load = step == 2 ? load_strided<2, C, T>
      : step == 3             ? load_strided<3, C, T>
      : step == 4             ? load_strided<4, C, T>
                              : load_strided<0, C, T>;
  if (step == 1) {
    load_rows(from, from_step, rows, columns, to, to_step);
  } else {
    load(from, from_step, step, rows, columns, to, to_step);
  }
}

// The planes of inputs that units meet, loaded when they are needed and kept while they may be
// needed again.
template <class T, class C>
class PlaneImages {
 public:
  explicit PlaneImages(const PixelLanesPlan& plan)
      : plan_(plan),
        image_(static_cast<const T*>(plan.backward_data() ? plan.p.dst : plan.p.src)),
        plane_size_(plan.plane_size()),
        size_(plan.block * plan.inner * plan.slots * plane_size_ + kSlack),
        planes_(size_),
        tags_(plan.slots),
        are_met_(plan.classes) {
    for (const Phase& phase : plan.phases[2]) {
      for (int64_t m = 0; m < phase.taps; m++)
        are_met_[plan.class_of(phase.in + m * phase.tap_in_step)] = true;
    }
  }

  // The next calls are for this unit.
  void select(const PixelLanesPlan::Unit& unit) {
    const bool is_same = unit.n == unit_.n && unit.group == unit_.group &&
        unit.tile == unit_.tile && unit.row == unit_.row;
    // Margins are zero in all rows, and stay so while columns are the same ones.
    if (unit.tile != unit_.tile)
      std::fill(planes_.data(), planes_.data() + size_, C(0));
    if (!is_same) {
      std::fill(tags_.begin(), tags_.end(), -1);
      const Range reach = plan_.in_reach(1, unit.row, unit.rows);
      rows_ = {std::clamp<int64_t>(reach.begin, 0, plan_.in_size[1]), 0};
      rows_.end = std::clamp(reach.end, rows_.begin, plan_.in_size[1]);
    }
    unit_ = unit;
  }

  // Rows of the image in scratch memory.
  Range rows() const {
    return rows_;
  }

  // Where the pixels of the unit's first column are, in row rows().begin of a plane of an input
  // channel of the group. Those of the next image are image_step() behind.
  const C* plane(int64_t d, int64_t channel) {
    const int64_t slot = d % plan_.slots;
    if (tags_[slot] != d) {
      for (int64_t n = 0; n < unit_.images; n++) {
        for (int64_t c = 0; c < plan_.inner; c++)
          load(n, c, d, at(slot, c) + n * image_step());
      }
      tags_[slot] = d;
    }
    return at(slot, channel);
  }
  int64_t image_step() const {
    return plan_.inner * plan_.slots * plane_size_;
  }

 private:
  static constexpr int64_t n = kLanes<C>;
  static constexpr int64_t kSlack = 2 * n; // kernels read whole vectors

  C* at(int64_t slot, int64_t channel) const {
    return planes_.data() + (channel * plan_.slots + slot) * plane_size_ + plan_.lead;
  }

  // The rows of a plane, in order: what a vector puts behind a row is zeros in front of the next
  // one, or is loaded after it.
  void load(int64_t image, int64_t channel, int64_t d, C* to) const {
    const int64_t *xs = plan_.in_stride, classes = plan_.classes, pitch = plan_.pitch;
    const int64_t begin = std::max<int64_t>(unit_.first + plan_.first_class, 0);
    const int64_t end =
        std::min(plan_.in_size[2], (unit_.first + unit_.width + plan_.last_class) * classes);
    const int64_t columns = end - begin * classes;
    const T* from = image_ + (unit_.n + image) * xs[0] +
        (unit_.group * plan_.inner + channel) * xs[1] + d * xs[2] + rows_.begin * xs[3] +
        begin * classes * xs[4];
    to += begin - unit_.first;
    const int64_t rows = rows_.end - rows_.begin, step = plan_.row_pitch();
    if (classes == 2 && xs[4] == 1 && are_met_[0] && are_met_[1])
      return load_pairs(from, xs[3], rows, columns, to, step, pitch);
    for (int64_t c = 0; c < classes; c++, from += xs[4], to += pitch) {
      if (are_met_[c])
        load_rows(from, xs[3], classes * xs[4], rows, ceil_div(columns - c, classes), to, step);
    }
  }

  const PixelLanesPlan& plan_;
  const T* image_;
  const int64_t plane_size_, size_;
  const Scratch<C> planes_;
  std::vector<int64_t> tags_;
  std::vector<bool> are_met_; // classes of columns, by any tap
  PixelLanesPlan::Unit unit_{-1, 0, 0, -1, 0, 0, 0, 0, 0};
  Range rows_{0, 0};
};

// Rows of outputs that a step of rows of the image is multiplied for.
inline int64_t outputs_of_step(const Phase& row) {
  return ceil_div(row.taps, row.in_step);
}

// Whether rows of outputs meet rows of the image that follow one another.
inline bool can_slide(const Phase& row) {
  const int64_t outputs = outputs_of_step(row);
  return row.tap_in_step == 1 && outputs > 1 && outputs <= kPlaneOutputs;
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
