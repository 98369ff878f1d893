// Depthwise and grouped convolution in any layout but channels innermost: a block computes a tile
// of outputs of a plane, or small planes of several groups. The inputs of the tile lie in shared
// memory as float, with zeros to the left and to the right of the image, so that every input is
// read from memory once; a thread computes kRows x kOutputs outputs. It goes through the rows of
// inputs that these meet, and adds a window of each, in registers, to all rows of its outputs.
#include <algorithm>
#include <optional>

#include "conv/cuda/depthwise/depthwise.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMinBlocks = 8; // of a multiprocessor, whose registers they share
constexpr int kOutputs = 4;   // of a thread, along a row
constexpr int kRows = 4;
constexpr int kLongPart = 8;
constexpr int kSharedFloats = 12 * 1024;
constexpr int kLoads = 4; // of a thread that are under way
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

struct NcxPlan {
  int columns, rows, planes;                               // threads of a block along each
  int parts;                                               // of a kernel row
  int vector, line_vectors, lines_at_once;                 // of the tile: see stage_inputs
  int in_rows, pitch;                                      // of the tile of one plane
  int64_t in_plane;                                        // from the inputs of a group to the next
  int weights;                                             // of one plane
  int64_t blocks;                                          // consist of, fastest first:
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

// Loads the tile of `planes` groups, [plane][row][column], n columns of a line at a time. `in`:
// column 0 of the image in the tile's first row. A thread stays with its columns and walks down the
// lines, so that it divides but once.
template <int n, class T>
__device__ void stage_vectors(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const T* in,
    int left,
    int planes,
    float* shared) {
  const int first = static_cast<int>(t.by_line_vectors.divide(threadIdx.x));
  if (first >= t.lines_at_once)
    return;
  auto plane = static_cast<uint32_t>(first), step_planes = static_cast<uint32_t>(t.lines_at_once);
  const auto first_row = static_cast<int>(t.by_in_rows.split(plane));
  const auto step_rows = static_cast<int>(t.by_in_rows.split(step_planes));
  const int64_t step = step_planes * t.in_plane + step_rows * p.in_stride[3];
  const int64_t next_plane = t.in_plane - t.in_rows * p.in_stride[3];
  const int lines = planes * t.in_rows;
  for (int v = static_cast<int>(threadIdx.x) - first * t.line_vectors; v < t.line_vectors;
       v += kThreads) {
    const int w = left + v * n;
    const bool is_inside = w >= 0 && w < p.axis[2].in;
    int row = first_row;
    const T* from = in + plane * t.in_plane + row * p.in_stride[3] + w * p.in_stride[4];
    float* to = shared + first * t.pitch + v * n;
    for (int line = first; line < lines; line += kLoads * t.lines_at_once) {
      PackedVector<T, n> vectors[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; i++) {
        if (is_inside && line + i * t.lines_at_once < lines)
          vectors[i].load(from);
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
    int planes,
    float* shared) {
  constexpr int kWidest = kWidestAccess / sizeof(T);
  if (t.vector == kWidest)
    stage_vectors<kWidest>(p, t, in, left, planes, shared);
  else if (kWidest > 4 && t.vector == 4)
    stage_vectors<4>(p, t, in, left, planes, shared);
  else if (t.vector == 2)
    stage_vectors<2>(p, t, in, left, planes, shared);
  else
    stage_vectors<1>(p, t, in, left, planes, shared);
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
  for (int line = threadIdx.x; line < planes * p.axis[1].taps * t.parts; line += kThreads) {
    auto plane = static_cast<uint32_t>(line);
    const auto part = static_cast<int>(t.by_parts.split(plane));
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

// Adds to the sums of a row of outputs what a window gives through a part of a kernel row.
template <class Taps>
__device__ __forceinline__ void add_part(
    const GatherAxis& a,
    const float (&window)[Window<Taps>::size()],
    const float* kernel,
    int part,
    float (&sums)[kOutputs]) {
  float taps[kPartPitch<Taps>];
#pragma unroll
  for (int k = 0; k < kPartPitch<Taps>; k += 4) {
    const auto vector = load_vector<4>(kernel + k);
#pragma unroll
    for (int e = 0; e < 4; e++)
      taps[k + e] = vector.at[e];
  }
#pragma unroll
  for (int k = 0; k < Taps::kTaps; k++) {
    if (!Taps::has(a, part, k))
      continue;
#pragma unroll
    for (int i = Taps::first_input(); i <= Taps::last_input(kOutputs); i++) {
#pragma unroll
      for (int r = 0; r < kOutputs; r++)
        if (Taps::tap(i, r) == k)
          sums[r] += window[i + Window<Taps>::before()] * taps[k];
    }
  }
}

// Adds all taps of a plane. `inputs`: of the tile, as if it began at row 0 and column 0 of the
// image.
template <class Taps>
__device__ __forceinline__ void add_plane(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const float* inputs,
    const float* kernel,
    int oh,
    int ow,
    float (&sums)[kRows][kOutputs]) {
  using W = Window<Taps>;
  const GatherAxis &rows = p.axis[1], &columns = p.axis[2];
  const int first = rows.first_input(oh), count = rows.inputs(kRows);
  // The tap through which an output row meets one of the inputs, and what it is more in the next.
  const int step = rows.transposed ? 1 : -rows.stride;
  for (int i = 0; i < count; i++) {
    const int ih = first + i;
    if (ih < 0 || ih >= rows.in)
      continue;
    const int tap = rows.transposed ? oh + rows.pad - ih * rows.stride : i;
    for (int part = 0; part < t.parts; part++) {
      const float* const begin =
          inputs + ih * t.pitch + Taps::origin(columns, ow, part) - W::before();
      float window[W::size()];
#pragma unroll
      for (int e = 0; e < W::size(); e += W::kAlign) {
        const auto vector = load_vector<W::kAlign>(begin + e);
#pragma unroll
        for (int j = 0; j < W::kAlign; j++)
          window[e + j] = vector.at[j];
      }
#pragma unroll
      for (int r = 0; r < kRows; r++) {
        const int h = tap + r * step;
        if (h >= 0 && h < rows.taps)
          add_part<Taps>(
              columns, window, kernel + (h * t.parts + part) * kPartPitch<Taps>, part, sums[r]);
      }
    }
  }
}

// The same for any strides and dilations.
__device__ __forceinline__ void add_plane_by_taps(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const float* inputs,
    const float* kernel,
    int oh,
    int ow,
    float (&sums)[kRows][kOutputs]) {
  const GatherAxis &rows = p.axis[1], &columns = p.axis[2];
  int first[kOutputs]; // taps, of which transposed rows meet few
#pragma unroll
  for (int i = 0; i < kOutputs; i++)
    first[i] = columns.first_tap(ow + i);
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    if (oh + r >= rows.out)
      break;
    for (int h = rows.first_tap(oh + r); h < rows.taps; h += rows.tap_step) {
      const int ih = rows.input(oh + r, h);
      if (ih < 0)
        continue;
      const float* const line = inputs + ih * t.pitch;
      const float* const taps = kernel + h * t.parts;
      if (!columns.transposed) { // the tile has all of the outputs' inputs
        const float* at = line + columns.first_input(ow);
        for (int w = 0; w < columns.taps; w++, at += columns.dilation) {
#pragma unroll
          for (int i = 0; i < kOutputs; i++)
            sums[r][i] += at[i * columns.stride] * taps[w];
        }
        continue;
      }
#pragma unroll
      for (int i = 0; i < kOutputs; i++) {
        for (int w = first[i]; w < columns.taps; w += columns.tap_step) {
          const int iw = ow + i < columns.out ? columns.input(ow + i, w) : -1;
          if (iw >= 0)
            sums[r][i] += line[iw] * taps[w];
        }
      }
    }
  }
}

template <class T, class Taps>
__global__ void __launch_bounds__(kThreads, kMinBlocks) depthwise_ncx_kernel(
    const __grid_constant__ DepthwiseGather p,
    const __grid_constant__ NcxPlan t,
    const __grid_constant__ bool vectors) {
  float* const tile = dynamic_shared<float>();
  float* const weights = tile + t.planes * t.in_rows * t.pitch;
  uint32_t rest = threadIdx.x;
  const auto column = static_cast<int>(t.by_columns.split(rest));
  const auto row = static_cast<int>(t.by_rows.split(rest));
  const auto plane = static_cast<int>(rest);
  rest = blockIdx.x;
  const int tile_w = static_cast<int>(t.tiles_w.split(rest)) * t.columns * kOutputs;
  const int tile_h = static_cast<int>(t.tiles_h.split(rest)) * t.rows * kRows;
  const auto od = static_cast<int>(t.depth.split(rest));
  const auto out_channel = static_cast<int>(t.out_channels.split(rest));
  const int group = static_cast<int>(t.channels.split(rest)) * t.planes;
  const int64_t n = rest;
  const int planes = min(t.planes, p.channels / p.out_channels - group);
  const int ow = tile_w + column * kOutputs, oh = tile_h + row * kRows;
  const bool active = plane < planes && ow < p.axis[2].out && oh < p.axis[1].out;
  // Where the image ends, the tile has other rows of it.
  const int first_row = max(0, min(p.axis[1].first_input(tile_h), p.axis[1].in - t.in_rows));
  const int left = first_column<Taps>(p, t, tile_w);

  float sums[kRows][kOutputs] = {};
  for (int channel = 0; channel < p.in_channels; channel++) {
    for (int d = 0; d < p.axis[0].taps; d++) {
      const int id = p.axis[0].input(od, d);
      if (id < 0)
        continue;
      const T* const in = static_cast<const T*>(p.in) + n * p.in_stride[0] + group * t.in_plane +
          channel * p.in_stride[1] + id * p.in_stride[2] + first_row * p.in_stride[3];
      __syncthreads(); // the tile before is no longer used
      stage_weights<Taps, T>(p, t, group, planes, out_channel, channel, d, weights);
      stage_inputs(p, t, in, left, planes, tile);
      __syncthreads();
      if (!active)
        continue;
      const float* const inputs = tile + (plane * t.in_rows - first_row) * t.pitch - left;
      const float* const kernel = weights + plane * t.weights;
      if constexpr (Taps::kGeneral)
        add_plane_by_taps(p, t, inputs, kernel, oh, ow, sums);
      else
        add_plane<Taps>(p, t, inputs, kernel, oh, ow, sums);
    }
  }
  if (!active)
    return;
  const int c = (group + plane) * p.out_channels + out_channel;
  const float bias = p.bias_of<T>(c);
  const OutputIndex first{n, c, od, oh, ow};
  const int64_t offset = first.offset(p.out_stride), residual = first.offset(p.residual_stride);
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    if (oh + r >= p.axis[1].out)
      break;
#pragma unroll
    for (int i = 0; i < kOutputs; i++)
      sums[r][i] += bias;
    p.epilogue.complete<T>(
        sums[r],
        min(kOutputs, p.axis[2].out - ow),
        offset + r * p.out_stride[3],
        p.out_stride[4],
        residual + r * p.residual_stride[3],
        p.residual_stride[4],
        vectors);
  }
}

// The most columns that can be loaded as one into the tiles of `t`.
template <class T, class Taps>
int choose_vector(const DepthwiseGather& p, NcxPlan t) {
  int align = kWidestAccess; // of the first of a thread's inputs in the tile
  t.vector = 1;
  if constexpr (!Taps::kGeneral)
    align = Window<Taps>::kAlign;
  const int left = first_column<Taps>(p, t, 0);
  for (int n = kWidestAccess / sizeof(T); n > 1; n /= 2)
    if (left % std::min(n, align) == 0 && p.axis[2].in % n == 0 &&
        can_move_runs<T>(p.in, p.in_stride, n, /*axis=*/4))
      return n;
  return 1;
}

template <class T, class Taps>
NcxPlan plan_block(const DepthwiseGather& p, int columns, int rows, int planes) {
  const GatherAxis& a = p.axis[2];
  const int groups = p.channels / p.out_channels;
  NcxPlan t{};
  t.columns = columns;
  t.rows = rows;
  t.planes = planes;
  t.parts = ceil_div(a.taps, Taps::kTaps);
  t.vector = choose_vector<T, Taps>(p, t);
  int width;
  if constexpr (Taps::kGeneral) {
    width = a.inputs(columns * kOutputs);
  } else {
    // Through the end of the last thread's window in the last part.
    constexpr int kStep = Taps::kTransposed ? kOutputs / Taps::kStride : kOutputs * Taps::kStride;
    width = (columns - 1) * kStep + (t.parts - 1) * Taps::kInputs + Window<Taps>::size();
  }
  t.line_vectors = ceil_div(width + t.vector - 1, t.vector);
  t.lines_at_once = std::max(1, kThreads / t.line_vectors);
  t.in_rows = std::min(p.axis[1].inputs(rows * kRows), p.axis[1].in);
  t.pitch = odd_vectors(t.line_vectors * t.vector);
  t.in_plane = p.in_channels * p.in_stride[1];
  t.weights = p.axis[1].taps * t.parts * kPartPitch<Taps>;
  const int64_t tiles_w = ceil_div(a.out, columns * kOutputs);
  const int64_t tiles_h = ceil_div(p.axis[1].out, rows * kRows);
  const int64_t tiles_c = ceil_div(groups, planes);
  t.blocks = tiles_w * tiles_h * p.axis[0].out * p.out_channels * tiles_c * p.n;
  t.tiles_w = Divisor(tiles_w);
  t.tiles_h = Divisor(tiles_h);
  t.depth = Divisor(p.axis[0].out);
  t.out_channels = Divisor(p.out_channels);
  t.channels = Divisor(tiles_c);
  t.by_columns = Divisor(columns);
  t.by_rows = Divisor(rows);
  t.by_line_vectors = Divisor(t.line_vectors);
  t.by_in_rows = Divisor(t.in_rows);
  t.by_parts = Divisor(t.parts);
  t.by_taps = Divisor(p.axis[1].taps);
  return t;
}

int64_t shared_floats(const NcxPlan& t) {
  return t.planes * (int64_t(t.in_rows) * t.pitch + t.weights);
}

// As much of a plane as there is, then as many planes; halved until the tile fits in shared memory.
// None if what one thread's outputs meet does not.
template <class T, class Taps>
std::optional<NcxPlan> plan_ncx(const DepthwiseGather& p) {
  int columns = equal_parts(ceil_div(p.axis[2].out, kOutputs), 16);
  int rows = std::min<int64_t>(kThreads / columns, ceil_div(p.axis[1].out, kRows));
  int planes = equal_parts(p.channels / p.out_channels, kThreads / (columns * rows));
  for (;;) {
    const NcxPlan t = plan_block<T, Taps>(p, columns, rows, planes);
    if (shared_floats(t) <= kSharedFloats)
      return t.blocks <= kMaxBlocks ? std::optional(t) : std::nullopt;
    int& largest = planes > 1 ? planes : rows > 1 ? rows : columns;
    if (largest == 1)
      return std::nullopt;
    largest = (largest + 1) / 2;
  }
}

// Calls f(type, taps) for the type and the taps of a problem. Rows whose taps are summed together
// are those of kernels that are not dilated.
template <class F>
void with_ncx_kernel(const DepthwiseGather& p, c10::ScalarType dtype, F&& f) {
  dispatch(DepthwiseTypes{}, dtype, [&](auto type) {
    if (p.axis[1].dilation != 1)
      return f(type, GeneralTaps{});
    with_row_taps<kLongPart>(p.axis[2], /*dilates=*/false, [&](auto taps) { f(type, taps); });
  });
}

} // namespace

bool supports_depthwise_ncx(const DepthwiseGather& p, c10::ScalarType dtype) {
  bool fits = false;
  with_ncx_kernel(p, dtype, [&]<class T, class Taps>(std::type_identity<T>, Taps) {
    fits = plan_ncx<T, Taps>(p).has_value();
  });
  return fits;
}

void depthwise_ncx(const DepthwiseGather& p, c10::ScalarType dtype) {
  with_ncx_kernel(p, dtype, [&]<class T, class Taps>(std::type_identity<T>, Taps) {
    const NcxPlan t = plan_ncx<T, Taps>(p).value();
    launch(
        depthwise_ncx_kernel<T, Taps>,
        dim3(static_cast<unsigned>(t.blocks)),
        dim3(kThreads),
        shared_floats(t) * sizeof(float),
        p,
        t,
        p.epilogue.can_move<T>(kOutputs, p.out_stride, p.residual_stride, /*axis=*/4));
  });
}

} // namespace torch_dnnl::cuda
