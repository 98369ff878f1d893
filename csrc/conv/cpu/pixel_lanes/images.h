// Planes of channels-first images in scratch memory, a part at a time: in the computing type, rows
// with zeros around them, and pixels that a stride sets apart in rows of their own.
#pragma once

#include <vector>

#include "conv/cpu/pixel_lanes/plan.h"
#include "core/cpu/scratch.h"
#include "core/cpu/shuffles.h"
#include "core/cpu/vectors.h"
#include "core/math.h"

namespace torch_dnnl {

// What a plane's rows are prefetched ahead of, in bytes: the processor does so itself, but small
// planes end before it has begun.
inline constexpr int64_t kPrefetched = 1024;

// Rows of an image, and where they go to; steps are from one row to the next.
template <class T, class C>
struct PlaneRows {
  const T* from;
  int64_t from_step, rows, columns;
  C* to;
  int64_t to_step;
};

// Rows of whole vectors, with zeros behind the last column.
template <class T, class C>
[[gnu::noinline]] void load_dense(const PlaneRows<T, C>& o) {
  constexpr int64_t n = kLanes<C>, ahead = kPrefetched / sizeof(T);
  auto [from, from_step, rows, columns, to, to_step] = o; // in registers
  const int64_t whole = columns / n * n, rest = columns - whole;
  for (int64_t y = 0; y < rows; y++, from += from_step, to += to_step) {
    for (int64_t x = 0; x < whole; x += n) {
      __builtin_prefetch(from + x + ahead);
      store_lanes<C>(to + x, load_lanes<C>(from + x));
    }
    if (rest > 0) {
      __builtin_prefetch(from + whole + ahead);
      store_lanes<C>(to + whole, load_lanes<C>(from + whole, rest));
    }
  }
}

// The same for columns of even number, and for the others `odd` behind them.
template <class T, class C>
[[gnu::noinline]] void load_pairs(const PlaneRows<T, C>& o, int64_t odd) {
  constexpr int64_t n = kLanes<C>, ahead = kPrefetched / sizeof(T);
  auto [from, from_step, rows, columns, to, to_step] = o;
  for (int64_t y = 0; y < rows; y++, from += from_step, to += to_step) {
    const auto load = [from = from, columns = columns](int64_t x) {
      __builtin_prefetch(from + x + ahead);
      return x + n <= columns ? load_lanes<C>(from + x)
                              : load_lanes<C>(from + x, std::max<int64_t>(columns - x, 0));
    };
    for (int64_t x = 0; x < columns; x += 2 * n) {
      const auto [first, second] = deinterleave_lanes(load(x), load(x + n));
      store_lanes<C>(to + x / 2, first);
      store_lanes<C>(to + x / 2 + odd, second);
    }
  }
}

// Columns that are `step` apart, and nothing behind the last one. The compiler knows which vectors
// they are in, if it knows the step.
template <class T, class C, class Step>
[[gnu::noinline]] void load_strided(const PlaneRows<T, C>& o, Step step) {
  auto [from, from_step, rows, columns, to, to_step] = o;
  for (int64_t y = 0; y < rows; y++, from += from_step, to += to_step)
    for (int64_t x = 0; x < columns; x++)
      to[x] = static_cast<C>(from[x * step]);
}

template <class T, class C>
void load_rows(const PlaneRows<T, C>& o, int64_t step) {
  switch (step) {
    case 1:
      return load_dense(o);
    case 2:
      return load_strided(o, std::integral_constant<int64_t, 2>());
    case 3:
      return load_strided(o, std::integral_constant<int64_t, 3>());
    case 4:
      return load_strided(o, std::integral_constant<int64_t, 4>());
    default:
      return load_strided(o, step);
  }
}

// The planes of inputs that units meet, loaded when they are needed and kept while they may be
// needed again.
template <class T, class C>
class PlaneImages {
 public:
  explicit PlaneImages(const PixelLanesPlan& plan) : plan_(plan) {
    for (const Phase& phase : plan.phases[2])
      for (int64_t m = 0; m < phase.taps; m++)
        are_met_[plan.class_of(phase.in + m * phase.tap_in_step)] = true;
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
      for (int64_t n = 0; n < unit_.images; n++)
        for (int64_t c = 0; c < plan_.in_channels; c++)
          load(n, c, d, at(slot, c) + n * image_step());
      tags_[slot] = d;
    }
    return at(slot, channel);
  }
  int64_t image_step() const {
    return plan_.in_channels * plan_.slots * plan_.plane_size;
  }

 private:
  static constexpr int64_t n = kLanes<C>;

  C* at(int64_t slot, int64_t channel) const {
    return planes_.data() + (channel * plan_.slots + slot) * plan_.plane_size + plan_.lead;
  }

  // The rows of a plane, in order: what a vector puts behind a row is zeros in front of the next
  // one, or is loaded after it.
  void load(int64_t image, int64_t channel, int64_t d, C* to) const {
    const int64_t *xs = plan_.in_stride, classes = plan_.classes, pitch = plan_.pitch;
    const int64_t begin = std::max<int64_t>(unit_.first + plan_.first_class, 0);
    const int64_t end =
        std::min(plan_.in_size[2], (unit_.first + unit_.width + plan_.last_class) * classes);
    const int64_t columns = end - begin * classes;
    const T* from = plan_.input<T>(unit_.n + image, unit_.group) + channel * xs[1] + d * xs[2] +
        rows_.begin * xs[3] + begin * classes * xs[4];
    to += begin - unit_.first;
    const int64_t rows = rows_.count(), step = plan_.row_pitch();
    if (classes == 2 && xs[4] == 1 && are_met_[0] && are_met_[1])
      return load_pairs<T, C>({from, xs[3], rows, columns, to, step}, pitch);
    for (int64_t c = 0; c < classes; c++, from += xs[4], to += pitch)
      if (are_met_[c])
        load_rows<T, C>(
            {from, xs[3], rows, ceil_div(columns - c, classes), to, step}, classes * xs[4]);
  }

  const PixelLanesPlan& plan_;
  // Kernels read whole vectors.
  const int64_t size_ = plan_.block * image_step() + 2 * n;
  const Scratch<C> planes_{size_};
  std::vector<int64_t> tags_ = std::vector<int64_t>(plan_.slots);
  std::vector<bool> are_met_ = std::vector<bool>(plan_.classes); // classes of columns, by any tap
  PixelLanesPlan::Unit unit_{-1, 0, 0, -1, 0, 0, 0, 0, 0};
  Range rows_{0, 0};
};

} // namespace torch_dnnl
