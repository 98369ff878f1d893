// Depthwise and grouped convolution in any layout but channels innermost: a block computes a tile
// of outputs of a plane, or small planes of several groups. The inputs of the tile lie in shared
// memory as float, with zeros to the left and to the right of the image, so that every input is
// read from memory once; a thread computes kRows x kOutputs outputs. It goes through the rows of
// inputs that these meet, and adds a window of each, in registers, to all rows of its outputs.
#include <algorithm>
#include <limits>
#include <optional>

#include "conv/cuda/depthwise/ncx_tile.h"

namespace torch_dnnl::cuda {
namespace {

using namespace depthwise_ncx_detail;

constexpr int kMinBlocks = 8; // of a multiprocessor, whose registers they share
constexpr int kLongPart = 8;
constexpr int kSharedFloats = 12 * 1024;
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxOffset = int64_t(1) << 27; // elements: a fourth of what 32 bits hold

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

// A row of inputs, from the first one of a window on.
template <class Taps>
__device__ __forceinline__ void
load_window(const float* begin, float (&window)[Window<Taps>::size()]) {
  constexpr int kAlign = Window<Taps>::kAlign;
#pragma unroll
  for (int e = 0; e < Window<Taps>::size(); e += kAlign) {
    const auto vector = load_vector<kAlign>(begin + e);
#pragma unroll
    for (int j = 0; j < kAlign; j++)
      window[e + j] = vector.at[j];
  }
}

// The row of inputs that output row y meets with the first tap, where these are as along columns.
template <class Taps>
__device__ __forceinline__ int row_origin(const GatherAxis& rows, int y) {
  if constexpr (Taps::kTransposed)
    return (y + rows.pad + Taps::kFirst) / Taps::kStride;
  return Taps::origin(rows, y, /*part=*/0);
}

// Adds all taps of a plane whose rows meet as its columns do, so that which of them do is known
// when the kernel is compiled. `inputs`: of the tile, as if it began at row 0 and column 0 of the
// image.
template <class Taps>
__device__ __forceinline__ void add_square(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const float* inputs,
    const float* kernel,
    int oh,
    int ow,
    float (&sums)[kRows][kOutputs]) {
  const GatherAxis &rows = p.axis[1], &columns = p.axis[2];
  const int origin = row_origin<Taps>(rows, oh);
  const float* line = inputs + (origin + Taps::first_input()) * t.pitch +
      Taps::origin(columns, ow, /*part=*/0) - Window<Taps>::before();
#pragma unroll
  for (int i = Taps::first_input(); i <= Taps::last_input(kRows); i++, line += t.pitch) {
    if (static_cast<uint32_t>(origin + i) >= static_cast<uint32_t>(rows.in))
      continue;
    float window[Window<Taps>::size()];
    load_window<Taps>(line, window);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      const int h = Taps::tap(i, r);
      if (Taps::has(columns, /*part=*/0, h))
        add_part<Taps>(
            columns, window, kernel + (h - Taps::kFirst) * kPartPitch<Taps>, /*part=*/0, sums[r]);
    }
  }
}

// The same for any rows, those of the tile before `end_row`.
template <class Taps>
__device__ __forceinline__ void add_plane(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const float* inputs,
    int end_row,
    const float* kernel,
    int oh,
    int ow,
    float (&sums)[kRows][kOutputs]) {
  const GatherAxis &rows = p.axis[1], &columns = p.axis[2];
  const int first = rows.first_input(oh), count = rows.inputs(kRows);
  // The tap through which an output row meets one of the inputs, and what it is more in the next.
  const int step = rows.transposed ? 1 : -rows.stride;
#pragma unroll 1
  for (int i = 0; i < count; i++) {
    const int ih = first + i;
    if (ih < 0 || ih >= end_row)
      continue;
    const int tap = rows.transposed ? oh + rows.pad - ih * rows.stride : i;
#pragma unroll 1
    for (int part = 0; part < t.parts; part++) {
      float window[Window<Taps>::size()];
      load_window<Taps>(
          inputs + ih * t.pitch + Taps::origin(columns, ow, part) - Window<Taps>::before(), window);
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

// The same, a tap at a time: for any strides and dilations.
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

// Compilers would compute a value again where it is needed, all of its divisions, to have a
// register more until then.
template <class T>
__device__ __forceinline__ void keep(T& value) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 8)
    asm volatile("" : "+l"(value));
  else
    asm volatile("" : "+r"(value));
#endif
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
  const int tile_w = static_cast<int>(t.tiles_w.split(rest)) * t.tile_columns;
  const int tile_h = static_cast<int>(t.tiles_h.split(rest)) * t.tile_rows;
  const auto od = static_cast<int>(t.depth.split(rest));
  const auto out_channel = static_cast<int>(t.out_channels.split(rest));
  const int group = static_cast<int>(t.channels.split(rest)) * t.planes;
  const auto n = static_cast<int>(rest);
  const int planes = min(t.planes, t.groups - group);
  // Those of the image that the tile has: with several planes, as many of each.
  int first_row = p.axis[1].first_input(tile_h);
  if (t.planes > 1)
    first_row = min(first_row, p.axis[1].in - t.in_rows);
  first_row = max(0, first_row);
  const int end_row = min(first_row + t.in_rows, p.axis[1].in);
  const int left = first_column<Taps>(p, t, tile_w);

  const int ow = tile_w + column * kOutputs, oh = tile_h + row * kRows;
  const ImageIndex output{n, (group + plane) * p.out_channels + out_channel, od, oh, ow};
  int64_t offset = output.offset(p.out_stride);
  // Of the thread; none if it has no outputs.
  int rows = plane < planes && ow < p.axis[2].out ? min(kRows, p.axis[1].out - oh) : 0;
  const float bias = rows > 0 ? p.bias_of<T>(output.channel) : 0.f;
  keep(offset);
  keep(rows);

  float sums[kRows][kOutputs] = {};
  int channel = 0;
  do {
    int d = 0;
    do {
      const int id = p.axis[0].input(od, d);
      if (id < 0)
        continue;
      const ImageIndex first{n, group * p.in_channels + channel, id, first_row, 0};
      __syncthreads(); // the tile before is no longer used
      stage_weights<Taps, T>(p, t, group, planes, out_channel, channel, d, weights);
      const T* const in = static_cast<const T*>(p.in) + first.offset(p.in_stride);
      stage_inputs(p, t, in, left, planes * (end_row - first_row), tile);
      __syncthreads();
      if (rows <= 0)
        continue;
      const float* const inputs = tile + (plane * t.in_rows - first_row) * t.pitch - left;
      const float* const kernel = weights + plane * t.weights;
      if constexpr (Taps::kGeneral)
        add_plane_by_taps(p, t, inputs, kernel, oh, ow, sums);
      else if (!Taps::kPartial && t.is_square)
        add_square<Taps>(p, t, inputs, kernel, oh, ow, sums);
      else
        add_plane<Taps>(p, t, inputs, end_row, kernel, oh, ow, sums);
    } while (++d < p.axis[0].taps);
  } while (++channel < p.in_channels);

  int64_t residual = p.epilogue.residual == nullptr ? 0 : output.offset(p.residual_stride);
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    if (r >= rows)
      break;
#pragma unroll
    for (int i = 0; i < kOutputs; i++)
      sums[r][i] += bias;
    p.epilogue.complete<T>(
        sums[r],
        min(kOutputs, p.axis[2].out - ow),
        offset,
        p.out_stride[4],
        residual,
        p.residual_stride[4],
        vectors);
    offset += p.out_stride[3];
    residual += p.residual_stride[3];
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

// Whether kernel rows meet rows of inputs as the taps of a row meet columns: see add_square.
template <class Taps>
bool is_square(const GatherAxis& rows) {
  if constexpr (Taps::kPartial)
    return false;
  else
    return rows.taps + Taps::kFirst == Taps::kTaps && rows.stride == Taps::kStride &&
        rows.transposed == Taps::kTransposed &&
        (!Taps::kTransposed || (rows.pad + Taps::kFirst) % Taps::kStride == 0);
}

template <class T, class Taps>
NcxPlan plan_block(const DepthwiseGather& p, int columns, int rows, int planes) {
  const GatherAxis& a = p.axis[2];
  const int groups = p.channels / p.out_channels;
  NcxPlan t{};
  t.columns = columns;
  t.rows = rows;
  t.planes = planes;
  t.tile_columns = columns * kOutputs;
  t.tile_rows = rows * kRows;
  t.groups = groups;
  t.parts = ceil_div(a.taps, Taps::kTaps);
  t.in_rows = std::min(p.axis[1].inputs(t.tile_rows), p.axis[1].in);
  t.in_plane = planes == 1 ? 0 : p.in_channels * p.in_stride[1];
  t.is_narrow = t.in_rows * p.in_stride[3] <= kMaxOffset && planes * t.in_plane <= kMaxOffset;
  t.vector = t.is_narrow ? choose_vector<T, Taps>(p, t) : 1;
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
  t.pitch = odd_vectors(t.line_vectors * t.vector);
  t.weights = p.axis[1].taps * t.parts * kPartPitch<Taps>;
  t.is_square = is_square<Taps>(p.axis[1]);
  const int64_t tiles_w = ceil_div(a.out, t.tile_columns);
  const int64_t tiles_h = ceil_div(p.axis[1].out, t.tile_rows);
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
