// How the direct kernel cuts its work into tiles. What is chosen changes no sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "conv/cpu/direct/weights.h"
#include "conv/cpu/shared/blocks.h"
#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// Bytes of weights that are packed at once, and of the sums that wait for the next ones. Weights
// are packed again for other sums, so these take more; weights that take no more are packed all at
// once.
inline constexpr int64_t kMostWeights = int64_t(5) << 19, kMostSums = int64_t(5) << 20;

// Times for a panel in one step (weights.h). Their unit is the time of one pixel: of its products
// with the weights.
struct BlockedCosts {
  // To read the weights, from the second-level cache if all weights are there, or from further
  // away.
  static constexpr double read_cached = 2, read = 10;
  static constexpr int64_t cached_bytes = int64_t(1) << 19;
  // To read the inputs of a pixel, shared by the panels of a task.
  static constexpr double read_pixel = 0.1;
  // To pack the weights; and where not all taps are packed at once, shared by those that are.
  static constexpr double pack = 50, pack_some_taps = 3200;

  // Bounds of a task: larger ones would share weights hardly better, and take more than the cache.
  static constexpr int64_t most_panels = 8, most_pixels = 512;
};

// A task computes a tile: some pixels of some rows of the result, of some panels of output
// channels. Rows of all images are one axis.
struct BlockedTiles {
  int64_t rows, width, panels;                 // of a tile
  int64_t row_tiles, width_tiles, panel_tiles; // panel_tiles: of a group
  int64_t tasks_at_once;                       // whose sums wait for the next weights

  int64_t pixel_tiles() const {
    return row_tiles * width_tiles;
  }
  int64_t pixels() const {
    return rows * width;
  }
};

// What tiles are chosen for.
struct BlockedShape {
  const GatherImages& images;
  const DirectSteps& steps;
  int64_t threads;
  int64_t rows = images.p.n * images.out_size[0] * images.out_size[1]; // of all images
  int64_t row_pixels = images.out_size[2];
  // Pixels of the result for each of the input: one of them meets a tap.
  int64_t pixels_of_input = images.backward_data ? product(images.p.stride) : 1;
  bool are_packed = steps.groups * steps.group_bytes() <= kMostSums; // all weights at once
};

// As many tasks as have sums that fit, and weights of a block of input channels that do, but no
// fewer than threads where so many share panels: all tasks of some panels, or equal parts of them.
inline int64_t choose_tasks_at_once(const BlockedShape& s, const BlockedTiles& t) {
  const int64_t all = s.steps.groups * t.panel_tiles * t.pixel_tiles();
  if (s.are_packed)
    return all;
  const int64_t sums = t.panels * t.pixels() * s.steps.panels.width * s.steps.element_size;
  const int64_t tasks = std::max(kMostSums / sums, s.threads);
  if (tasks < t.pixel_tiles())
    return std::min(ceil_div(t.pixel_tiles(), ceil_div(t.pixel_tiles(), tasks)), all);
  const int64_t weights = t.panels * s.steps.taps * s.steps.bytes();
  const int64_t panel_tiles =
      std::max(kMostWeights / weights, ceil_div(s.threads, t.pixel_tiles()));
  return std::min(std::min(tasks / t.pixel_tiles(), panel_tiles) * t.pixel_tiles(), all);
}

// The time that a convolution takes with these tiles, in the unit of BlockedCosts, for each step.
inline double time_of(const BlockedShape& s, const BlockedTiles& t) {
  const DirectSteps& steps = s.steps;
  const int64_t tasks = steps.groups * t.panel_tiles * t.pixel_tiles(), at_once = t.tasks_at_once;
  // Tasks that are cut into those at once, and in how many rounds they are computed.
  const int64_t series = at_once < t.pixel_tiles() ? t.pixel_tiles() : tasks;
  const int64_t rounds = tasks / series *
      (series / at_once * ceil_div(at_once, s.threads) + ceil_div(series % at_once, s.threads));
  const double reading = steps.group_bytes() > BlockedCosts::cached_bytes
      ? BlockedCosts::read
      : BlockedCosts::read_cached;
  const double time = rounds * t.panels * t.pixels() *
      (1 + reading / t.pixels() + BlockedCosts::read_pixel / t.panels);
  if (s.are_packed)
    return time;
  const int64_t packed = steps.groups * steps.panels.count * ceil_div(t.pixel_tiles(), at_once);
  const int64_t step_bytes = ceil_div(at_once, t.pixel_tiles()) * t.panels * steps.bytes();
  const double taps = std::max(double(kMostWeights) / step_bytes, 1.0);
  const double packing =
      BlockedCosts::pack + (taps < steps.taps ? BlockedCosts::pack_some_taps / taps : 0);
  return time + packed * packing * s.pixels_of_input / s.threads;
}

// Rows share weights that are in the cache, panels share inputs, and pixels share weights that are
// packed at once; but threads get equal tasks.
inline BlockedTiles choose_tiles(const BlockedShape& s) {
  BlockedTiles best{}, t{};
  t.width = ceil_div(s.row_pixels, ceil_div(s.row_pixels, kPixels));
  t.width_tiles = ceil_div(s.row_pixels, t.width);
  double least = std::numeric_limits<double>::infinity();
  for (int64_t most = kPixels / t.width; most <= kPixels; most *= 2) {
    t.row_tiles = ceil_div(s.rows, most);
    t.rows = ceil_div(s.rows, t.row_tiles);
    if (t.pixels() > BlockedCosts::most_pixels && t.rows > 1)
      continue;
    for (t.panel_tiles = 1; t.panel_tiles <= s.steps.panels.count; t.panel_tiles++) {
      t.panels = ceil_div(s.steps.panels.count, t.panel_tiles);
      if (t.panels > BlockedCosts::most_panels)
        continue;
      t.tasks_at_once = choose_tasks_at_once(s, t);
      const double time = time_of(s, t);
      if (time < least) {
        least = time;
        best = t;
      }
    }
  }
  best.panel_tiles = ceil_div(s.steps.panels.count, best.panels);
  best.row_tiles = ceil_div(s.rows, best.rows);
  return best;
}

} // namespace torch_dnnl
