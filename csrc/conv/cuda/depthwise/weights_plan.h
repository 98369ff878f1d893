// What a block of the gradient of depthwise weights computes: see weights_gradient.cu.
#pragma once

#include <algorithm>
#include <optional>

#include "conv/cuda/depthwise/depthwise.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda::depthwise_weights_detail {

constexpr int kThreads = 256;
constexpr int kOutputs = 8; // of a strip
constexpr int kVector = 4;  // channels that are staged at once
constexpr int kWarp = 32;
constexpr int kWidestVector = kWidestAccess / 2; // elements of 2 bytes
constexpr int kSharedFloats = 12 * 1024;
constexpr int kBlocks = 8 * kMultiprocessors; // that keep a large GPU busy

// What a thread sums: kTaps neighbouring taps of kRows rows that move by kStride, or, if that is 0,
// one tap, with any stride and dilation. kLanes: output channels of a block, which lie next to each
// other in both images; 1 for any layout.
template <int kTaps_, int kStride_, int kLanes_, int kRows_ = 1>
struct Unit {
  static constexpr int kTaps = kTaps_, kStride = kStride_, kLanes = kLanes_, kRows = kRows_;
  static constexpr int kSums = kRows * kTaps;
  static_assert(kStride > 0 || kSums == 1);
};

struct WeightsPlan {
  int inputs, parts, kernel_rows, units; // of a block: of a group, of a row, and all together
  int row_chunks, part_chunks;           // that the kernel's rows, and their parts, are cut into
  int strips;                            // that are summed at once
  int rows, columns;                     // of a tile of outputs
  int in_rows, in_columns;               // of the tile of inputs
  int pitch, in_pitch;                   // of the rows of tiles, in floats
  int channel_tiles;
  int64_t tiles_h, tiles_w, tiles, length; // tiles: of all images; length: those of a slice
  bool is_square;             // whether the tile of inputs has all that its outputs meet
  int src_vector, dst_vector; // elements that are read at once: channels, or of a row if a block
                              // has single channels
  int staged_columns;         // of inputs, also of those that vectors begin before the tile
  Divisor by_rows, by_columns, by_in_columns; // columns: of vectors of a row, groups of kWarp

  // Whole warps, whose last threads may have no unit.
  int threads(int lanes) const {
    return static_cast<int>(round_up(units * strips * lanes, kWarp));
  }
  int64_t slices() const {
    return ceil_div(tiles, length);
  }
};

// The floats of a row of `columns` pixels. Of single channels: one more than a multiple of 8, so
// that neighbouring rows lie in different banks.
inline int pitch_of(int64_t columns, int lanes) {
  return static_cast<int>(lanes == 1 ? round_up(columns, 8) + 1 : columns * lanes);
}

// Of blocks with the units and the tile in `t`.
template <class U>
WeightsPlan plan_block(const ConvProblem& p, WeightsPlan t) {
  const auto reach = [&](int axis, int outputs, int taps) {
    return (outputs - 1) * p.stride[axis] + (taps - 1) * p.dilation[axis] + 1;
  };
  t.row_chunks = ceil_div(p.kernel[1], t.kernel_rows);
  t.part_chunks = ceil_div(ceil_div(p.kernel[2], U::kTaps), t.parts);
  t.units = t.kernel_rows / U::kRows * t.parts * t.inputs;
  t.strips = std::min(kThreads / U::kLanes / t.units, t.rows * t.columns / kOutputs);
  constexpr int64_t kMost = kSharedFloats; // more than fits is all the same
  t.in_rows = static_cast<int>(std::min(kMost, reach(1, t.rows, t.kernel_rows)));
  t.in_columns = static_cast<int>(std::min(kMost, reach(2, t.columns, t.parts * U::kTaps)));
  t.pitch = pitch_of(t.columns, U::kLanes);
  // The first vector of a row may begin before the tile.
  constexpr int kBefore = U::kLanes == 1 ? kWidestVector - 1 : 0;
  t.in_pitch = pitch_of(t.in_columns + kBefore, U::kLanes);
  t.channel_tiles = ceil_div(p.groups * p.oc, U::kLanes);
  t.tiles_h = ceil_div(p.dst_size[1], t.rows);
  t.tiles_w = ceil_div(p.dst_size[2], t.columns);
  t.tiles = p.n * p.dst_size[0] * t.tiles_h * t.tiles_w;
  t.by_rows = Divisor(t.rows);
  return t;
}

inline dim3 grid_of(const ConvProblem& p, const WeightsPlan& t, int64_t slices) {
  return {
      static_cast<unsigned>(slices * t.channel_tiles),
      static_cast<unsigned>(p.ic / t.inputs * p.kernel[0] * t.row_chunks * t.part_chunks)};
}

inline int64_t shared_floats(const WeightsPlan& t) {
  return int64_t(t.in_rows) * t.in_pitch + int64_t(t.rows) * t.pitch;
}

// Whether a thread takes a whole kernel of 3x3: its rows are neighbours, and there are strips for
// the threads of half a warp at least.
inline bool takes_3x3(const ConvProblem& p) {
  return p.kernel[1] == 3 && p.kernel[2] == 3 && p.dilation[1] == 1 &&
      p.dst_size[1] * ceil_div(p.dst_size[2], kOutputs) >= kWarp / 2;
}

// The widest that all rows of an image consist of.
template <class T>
int row_vector(const void* data, const int64_t* size, const int64_t* stride) {
  int n = kWidestAccess / sizeof(T);
  while (n > 1 && (size[2] % n != 0 || !can_move_runs<T>(data, stride, n, /*axis=*/4)))
    n /= 2;
  return n;
}

// As much of the kernel as there are threads for, and a large tile; halved until it fits into
// shared memory, and while that makes more work for blocks which are few. None if the least of both
// does not fit.
template <class T, class U>
std::optional<WeightsPlan> plan_weights(const ConvProblem& p) {
  constexpr int kEnoughStrips = 4; // for each thread
  constexpr int kColumns = U::kLanes == 1 ? 64 : 16, kLongRow = 8 * kColumns;
  const int64_t parts = ceil_div(p.kernel[2], U::kTaps), height = p.dst_size[1];
  WeightsPlan t{};
  t.is_square = p.ic == p.oc && p.ic <= kThreads / U::kLanes && U::kLanes % p.ic == 0;
  t.inputs = t.is_square ? static_cast<int>(p.ic) : 1;
  const int slots = kThreads / U::kLanes / t.inputs;
  t.parts = equal_parts(parts, slots);
  const int64_t row_units = ceil_div(p.kernel[1], U::kRows);
  t.kernel_rows = U::kRows * (t.parts == parts ? equal_parts(row_units, slots / t.parts) : 1);
  t.columns = static_cast<int>(
      std::min<int64_t>(round_up(p.dst_size[2], kOutputs), height == 1 ? kLongRow : kColumns));
  t.rows = static_cast<int>(std::min<int64_t>(height, kColumns));
  const auto halve = [](int& count) { count = (count + 1) / 2; };
  for (;;) {
    t = plan_block<U>(p, t);
    const int64_t tiles = t.tiles * t.channel_tiles * t.row_chunks * t.part_chunks;
    const bool fits = shared_floats(t) <= kSharedFloats;
    if (fits &&
        (t.rows == 1 || tiles >= kBlocks ||
         t.rows * t.columns <= kEnoughStrips * t.strips * kOutputs))
      break;
    if (t.rows > 1)
      halve(t.rows);
    else if (t.columns > kOutputs)
      t.columns = static_cast<int>(round_up(t.columns / 2, kOutputs));
    else if (t.kernel_rows > U::kRows)
      t.kernel_rows = static_cast<int>(round_up((t.kernel_rows + 1) / 2, U::kRows));
    else if (t.parts > 1)
      halve(t.parts);
    else
      return std::nullopt;
  }
  const dim3 one = grid_of(p, t, 1);
  constexpr int64_t kMaxGridY = 65535;
  if (p.ic / t.inputs * p.kernel[0] * t.row_chunks * t.part_chunks > kMaxGridY)
    return std::nullopt;
  const int64_t most_slices = ceil_div(kBlocks, int64_t(one.x) * one.y);
  t.length = ceil_div(t.tiles, most_slices);
  const auto vector = [&](const void* data, const int64_t* size, const int64_t* stride) {
    if (U::kLanes == 1)
      return row_vector<T>(data, size, stride);
    const bool fits =
        p.groups * p.oc % kVector == 0 && can_move_runs<T>(data, stride, kVector, /*axis=*/1);
    return fits ? kVector : 1;
  };
  const bool is_shifted = U::kLanes > 1 && !t.is_square; // inputs are not those of the lanes
  t.src_vector = is_shifted ? 1 : vector(p.src, p.src_size, p.src_stride);
  t.dst_vector = vector(p.dst, p.dst_size, p.dst_stride);
  t.staged_columns = t.in_columns + (U::kLanes == 1 ? t.src_vector - 1 : 0);
  const auto by = [&](int columns, int n) {
    return Divisor(U::kLanes == 1 && n > 1 ? ceil_div(columns, kWarp) : columns);
  };
  t.by_columns = by(t.columns, t.dst_vector);
  t.by_in_columns = by(t.staged_columns, t.src_vector);
  return t;
}

} // namespace torch_dnnl::cuda::depthwise_weights_detail
