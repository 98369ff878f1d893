// The plan of a gradient of weights as GEMMs of packed images, and the layout of these images.
#pragma once

#include <algorithm>

#include "conv/cpu/igemm/types.h"
#include "conv/cpu/shared/gradient_tiles.h"
#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// How packed pixels of src lie along one axis: in phases, one for each remainder of a pixel's
// position by the stride, or in one copy for each tap. All taps of a phase read the same copy, at
// different offsets.
struct PhaseAxis {
  int64_t phases; // that taps use; or taps
  int64_t reach;  // extra pixels that a phase needs beyond its first tap
  int64_t stride, dilation;
  bool are_taps; // a copy for each tap

  int64_t phase(int64_t tap) const {
    return are_taps ? tap : tap * dilation % stride;
  }
  // Where a tap begins in its phase.
  int64_t offset(int64_t tap) const {
    return are_taps ? 0 : tap * dilation / stride;
  }
  // The first pixel of a phase, relative to the first pixel of the first tap.
  int64_t first(int64_t phase) const {
    return are_taps ? phase * dilation : phase;
  }
};

// The rows of dst that meet src, if row 0 of dst meets row `first` of src.
inline Range rows_inside(const ConvProblem& p, int64_t first, Range rows) {
  const Range inside = within(first, p.stride[1], p.src_size[1], rows.end);
  const int64_t begin = std::clamp(inside.begin, rows.begin, rows.end);
  return {begin, std::max(begin, inside.end)};
}

// What a task, or one task for each chunk, computes.
struct WeightsOutput {
  int64_t group;
  Range panels, channels, taps;
};

// An output is some taps, some panels of output channels, and a block of input channels. A task
// computes an output for one chunk of the tiles of a wave of images. A tile is some lines of dst,
// or a part of one line; `tiles` counts those of one image. The plan depends on the problem alone,
// and so does the order of sums.
struct BrgemmWeightsPlan : GradientTiles {
  int64_t taps, task_taps, block, panels, task_panels, outputs, chunks;
  PhaseAxis rows, pixels;
  int64_t pitch;   // of lines, of both images
  int64_t plane;   // from a channel of src to the next: [row phase][pixel phase][row][pixel]
  int64_t columns; // of the panels of a group together
  int64_t waves, wave_images;
  bool reads_src;  // GEMMs read src in place: a plane is one line
  bool joins_taps; // the taps of a kernel row are the rows m of a GEMM of one channel

  // Of a plane of an image.
  int64_t parts() const {
    return row_tiles * width_tiles;
  }

  int64_t sums() const {
    return task_panels * task_taps * block * kPanelColumns;
  }
  // Where those of a panel and a tap are, [input channel][output channel].
  int64_t sums_at(const WeightsOutput& o, int64_t panel, int64_t tap) const {
    return ((panel - o.panels.begin) * task_taps + tap - o.taps.begin) * block * kPanelColumns;
  }
  int64_t columns_of(int64_t panel) const {
    return std::min(kPanelColumns, columns - panel * kPanelColumns);
  }
  // Pixels of some rows of a tile, with the zeros between its lines.
  int64_t depth(const GradientTile& tile, Range of_rows) const {
    return of_rows.count() == 1 ? round_up(tile.pixels.count(), 2) : of_rows.count() * pitch;
  }
  // Where a phase begins in a channel of src.
  int64_t phase_at(const ConvProblem& p, int64_t row, int64_t pixel) const {
    return (row * pixels.phases + pixel) * (p.dst_size[1] + rows.reach) * pitch;
  }
  // Elements of a packed image.
  int64_t src_elements(const ConvProblem& p) const {
    return reads_src ? 0 : p.src_size[0] * p.groups * p.ic * plane;
  }
  int64_t dst_elements(const ConvProblem& p) const {
    return p.dst_size[0] * p.groups * columns * p.dst_size[1] * pitch;
  }
  // Of the images that are packed at once.
  Range images(const ConvProblem& p, int64_t wave) const {
    return nth_range(wave, wave_images, p.n);
  }
};

namespace weights_plan_detail {

inline constexpr int64_t kTaskSums = 128 * 1024; // stay in the second-level cache
inline constexpr int64_t kTaskChannels = 128;    // of src
inline constexpr int64_t kTilePixels = 256;      // of dst, and of the zeros between lines
// The same for few channels of src: AMX reloads accumulators less often.
inline constexpr int64_t kAmxTilePixels = 1024, kFewChannels = 64;
inline constexpr int64_t kTasks = 32;             // enough for the threads to share
inline constexpr int64_t kChunkPixels = 1024;     // that make up for adding sums of chunks
inline constexpr int64_t kWaveElements = 1 << 21; // of packed images that stay in the last cache
inline constexpr int64_t kAliased = 1024; // elements: channels at a multiple compete for the cache
inline constexpr int64_t kApart = 32;
inline constexpr int64_t kCopies = 4; // at most so many times the pixels of phases
inline constexpr double kZeros = 0.2; // fraction of a row; with more zeros each tap is copied

inline PhaseAxis phase_axis(const ConvProblem& p, int axis) {
  const int64_t stride = p.stride[axis], dilation = p.dilation[axis];
  const int64_t shift = (p.kernel[axis] - 1) * dilation;
  return {std::min(stride, shift + 1), shift / stride, stride, dilation, /*are_taps=*/false};
}

// Each tap has its own copy if distant taps would need many zeros between lines, or if the taps of
// a row are joined.
inline PhaseAxis pixel_axis(const ConvProblem& p) {
  const PhaseAxis axis = phase_axis(p, 2);
  const PhaseAxis taps{p.kernel[2], /*reach=*/0, axis.stride, axis.dilation, /*are_taps=*/true};
  const int64_t width = p.dst_size[2];
  const bool are_few = taps.phases * width <= kCopies * axis.phases * (width + axis.reach);
  return are_few && (axis.reach > kZeros * width || p.kernel[2] > p.ic) ? taps : axis;
}

} // namespace weights_plan_detail

inline BrgemmWeightsPlan plan_brgemm_weights(const ConvProblem& p) {
  using namespace weights_plan_detail;
  BrgemmWeightsPlan plan{};
  plan.taps = product(p.kernel);
  plan.block = ceil_div(p.ic, ceil_div(p.ic, kTaskChannels));
  plan.panels = ceil_div(p.oc, kPanelColumns);
  plan.columns = round_up(p.oc, kPanelLanes);
  const int64_t of_tap = plan.block * kPanelColumns;
  plan.task_taps = std::clamp<int64_t>(kTaskSums / of_tap, 1, plan.taps);
  plan.task_panels = std::clamp<int64_t>(kTaskSums / (of_tap * plan.task_taps), 1, plan.panels);

  plan.rows = phase_axis(p, 1);
  plan.pixels = pixel_axis(p);
  const int64_t rows = p.dst_size[1], width = p.dst_size[2];
  plan.pitch = round_up(width + plan.pixels.reach, 2);
  const bool has_amx = p.dtype == c10::kBFloat16 && Float16Gemm<c10::BFloat16>::has_amx();
  const int64_t tile_pixels = has_amx && plan.block <= kFewChannels ? kAmxTilePixels : kTilePixels;
  plan.tile_rows = std::clamp<int64_t>(tile_pixels / plan.pitch, 1, rows);
  plan.row_tiles = ceil_div(rows, plan.tile_rows);
  plan.tile_rows = ceil_div(rows, plan.row_tiles);
  plan.width_tiles = plan.tile_rows == 1 ? ceil_div(width, tile_pixels) : 1;
  plan.tile_width = round_up(ceil_div(width, plan.width_tiles), 2);
  plan.width_tiles = ceil_div(width, plan.tile_width);
  plan.tiles = p.dst_size[0] * plan.parts();
  plan.plane = plan.phase_at(p, plan.rows.phases, 0);
  if (plan.plane % kAliased == 0)
    plan.plane += kApart;
  plan.reads_src = product(p.kernel) == 1 && product(p.stride) == 1 && p.src_stride[4] == 1 &&
      rows == 1 && width % 2 == 0 && p.pad[1] == 0 && p.pad[2] == 0 && p.src_size[2] >= width;
  if (plan.reads_src)
    plan.plane = p.src_stride[1];
  const bool are_taps = plan.pixels.phases == p.kernel[2] && plan.pixels.reach == 0;
  plan.joins_taps = are_taps && p.kernel[2] > p.ic;
  const int64_t elements = plan.src_elements(p) + plan.dst_elements(p);
  plan.wave_images = std::clamp<int64_t>(kWaveElements / std::max<int64_t>(elements, 1), 1, p.n);
  plan.waves = ceil_div(p.n, plan.wave_images);

  plan.outputs = p.groups * ceil_div(plan.panels, plan.task_panels) * ceil_div(p.ic, plan.block) *
      ceil_div(plan.taps, plan.task_taps);
  const int64_t pixel_chunks = p.n * product(p.dst_size) / kChunkPixels;
  plan.chunks = std::clamp<int64_t>(
      std::min(kTasks / plan.outputs, pixel_chunks), 1, plan.wave_images * plan.tiles);
  return plan;
}

inline WeightsOutput
weights_output(const ConvProblem& p, const BrgemmWeightsPlan& plan, int64_t i) {
  Digits digits{i};
  WeightsOutput o;
  o.taps = nth_range(digits.next(ceil_div(plan.taps, plan.task_taps)), plan.task_taps, plan.taps);
  o.channels = nth_range(digits.next(ceil_div(p.ic, plan.block)), plan.block, p.ic);
  o.panels = nth_range(
      digits.next(ceil_div(plan.panels, plan.task_panels)), plan.task_panels, plan.panels);
  o.group = digits.rest;
  return o;
}

} // namespace torch_dnnl
