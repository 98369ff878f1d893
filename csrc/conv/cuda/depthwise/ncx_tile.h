// What a block of the kernel in ncx.cu has in shared memory, and how it comes there: the inputs of
// a tile of outputs, and the weights.
#pragma once

#include <algorithm>

#include "conv/cuda/depthwise/depthwise.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda::depthwise_ncx_detail {

constexpr int kThreads = 128;
constexpr int kOutputs = 4; // of a thread, along a row
constexpr int kRows = 4;
constexpr int kLoads = 3; // of a thread that are under way

struct NcxPlan {
  int columns, rows, planes;               // threads of a block along each
  int tile_columns, tile_rows;             // outputs of a tile
  int groups;                              // of the convolution
  int parts;                               // of a kernel row
  int vector, line_vectors, lines_at_once; // of the tile: see stage_inputs
  int in_rows, pitch;                      // of the tile of one plane
  int64_t in_plane;                        // from the inputs of a group to the next
  bool is_narrow;                          // offsets in the tile, in bytes, have 32 bits
  int weights;                             // of one plane
  bool is_square;                          // see add_square
  int64_t blocks;                          // consist of, fastest first:
  Divisor tiles_w, tiles_h, depth, out_channels, channels; // channels: planes of each
  Divisor by_columns, by_rows, by_line_vectors, by_in_rows, by_parts, by_taps;
};

// What a thread's outputs in a row meet of a row of inputs, through a part of a kernel row.
template <class Taps>
struct Window {
  static constexpr int kAlign = Taps::kTransposed ? 2 : 4; // a window's first column in the image
  // Inputs before an output's first. So many that windows begin aligned with the usual pads, half
  // of the kernel: with others, inputs are loaded one by one.
  static constexpr int before() {
    if (Taps::kTransposed)
      return -Taps::first_input() / 2 * 2 + 1;
    return Taps::kPartial ? 1 : 4 - (Taps::kTaps - 1) / 2;
  }
  static constexpr int size() {
    return (Taps::last_input(kOutputs) + before() + kAlign) / kAlign * kAlign;
  }
};

// Taps of a part in shared memory: with what makes them whole vectors.
template <class Taps>
constexpr int kPartPitch = Taps::kGeneral ? 1 : (Taps::kTaps + 3) / 4 * 4;

// The column of the image that is first in the tile of outputs from w on.
template <class Taps>
TORCH_DNNL_HD int first_column(const DepthwiseGather& p, const NcxPlan& t, int w) {
  int first;
  if constexpr (Taps::kGeneral) {
    first = p.axis[2].first_input(w);
  } else {
    // Later parts of transposed rows begin further to the left.
    const int parts = Taps::kTransposed ? (t.parts - 1) * Taps::kInputs : 0;
    first = Taps::origin(p.axis[2], w, 0) - Window<Taps>::before() - parts;
  }
  return first & -t.vector;
}

// Loads the lines of the tile, [plane][row][column], n columns of a line at a time. `in`: column 0
// of the image in the tile's first row. A thread stays with its columns and walks down the
// lines, so that it divides but once. Offset: within the tile in memory, in bytes; unsigned, as
// what lies behind the last line is not used.
template <int n, class Offset, class T>
__device__ void stage_vectors(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const T* in,
    int left,
    int lines,
    float* shared) {
  const int first = static_cast<int>(t.by_line_vectors.divide(threadIdx.x));
  if (first >= t.lines_at_once)
    return;
  auto plane = static_cast<uint32_t>(first), step_planes = static_cast<uint32_t>(t.lines_at_once);
  const auto first_row = static_cast<int>(t.by_in_rows.split(plane));
  const auto step_rows = static_cast<int>(t.by_in_rows.split(step_planes));
  constexpr Offset kBytes = sizeof(T);
  const auto row_bytes = static_cast<Offset>(p.in_stride[3]) * kBytes;
  const auto plane_bytes = static_cast<Offset>(t.in_plane) * kBytes;
  const auto column_bytes = static_cast<Offset>(p.in_stride[4]) * kBytes;
  const Offset step = static_cast<Offset>(step_planes) * plane_bytes + step_rows * row_bytes;
  const Offset next_plane = plane_bytes - t.in_rows * row_bytes;
  for (int v = static_cast<int>(threadIdx.x) - first * t.line_vectors; v < t.line_vectors;
       v += kThreads) {
    const int w = left + v * n;
    const bool is_inside = w >= 0 && w < p.axis[2].in;
    const int last = is_inside ? lines : 0; // other columns are zeros
    int row = first_row;
    Offset from = static_cast<Offset>(plane) * plane_bytes + row * row_bytes +
        (is_inside ? w : 0) * column_bytes;
    float* to = shared + first * t.pitch + v * n;
    for (int line = first; line < lines; line += kLoads * t.lines_at_once) {
      PackedVector<T, n> vectors[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; i++) {
        if (line + i * t.lines_at_once < last)
          vectors[i].load(reinterpret_cast<const T*>(reinterpret_cast<const char*>(in) + from));
        from += step;
        row += step_rows;
        if (row >= t.in_rows) {
          row -= t.in_rows;
          from += next_plane;
        }
      }
#pragma unroll
      for (int i = 0; i < kLoads; i++) {
        if (line + i * t.lines_at_once < lines) {
          constexpr int kStored = std::min(n, 4);
          float floats[n];
          widen(vectors[i], floats);
#pragma unroll
          for (int begin = 0; begin < n; begin += kStored) {
            Vector<float, kStored> stored;
#pragma unroll
            for (int e = 0; e < kStored; e++)
              stored.at[e] = floats[begin + e];
            store_vector(to + begin, stored);
          }
        }
        to += t.lines_at_once * t.pitch;
      }
    }
  }
}

template <class T>
__device__ void stage_inputs(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const T* in,
    int left,
    int lines,
    float* shared) {
  constexpr int kWidest = kWidestAccess / sizeof(T);
  if (!t.is_narrow)
    stage_vectors<1, uint64_t>(p, t, in, left, lines, shared);
  else if (t.vector == kWidest)
    stage_vectors<kWidest, uint32_t>(p, t, in, left, lines, shared);
  else if (kWidest > 4 && t.vector == 4)
    stage_vectors<4, uint32_t>(p, t, in, left, lines, shared);
  else if (t.vector == 2)
    stage_vectors<2, uint32_t>(p, t, in, left, lines, shared);
  else
    stage_vectors<1, uint32_t>(p, t, in, left, lines, shared);
}

// [plane][row of the kernel][part][tap], zeros for taps that do not exist.
template <class Taps, class T>
__device__ void stage_weights(
    const DepthwiseGather& p,
    const NcxPlan& t,
    int group,
    int planes,
    int out_channel,
    int in_channel,
    int d,
    float* shared) {
  const int64_t step = p.weights_stride[2];
#pragma unroll 1
  for (int line = threadIdx.x; line < planes * p.axis[1].taps * t.parts; line += kThreads) {
    auto plane = static_cast<uint32_t>(line);
    const auto part = Taps::kPartial ? static_cast<int>(t.by_parts.split(plane)) : 0;
    const auto h = static_cast<int>(t.by_taps.split(plane));
    const T* row = p.kernel_row<T>(group + static_cast<int>(plane), out_channel, in_channel, d, h) +
        (part * Taps::kTaps - p.axis[2].first) * step;
    float taps[Taps::kTaps] = {};
#pragma unroll
    for (int k = 0; k < Taps::kTaps; k++)
      if (Taps::has(p.axis[2], part, k))
        taps[k] = static_cast<float>(row[k * step]);
#pragma unroll
    for (int k = 0; k < Taps::kTaps; k++)
      shared[line * kPartPitch<Taps> + k] = taps[k];
  }
}

} // namespace torch_dnnl::cuda::depthwise_ncx_detail
