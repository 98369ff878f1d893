// Depthwise and grouped convolution in any layout but channels innermost: a block computes a tile
// of outputs of a plane, or small planes of several channels. The inputs of the tile lie in shared
// memory as float, with zeros outside the image, so that every input is read from memory once; a
// thread computes kRows x kOutputs outputs, from windows of neighbouring inputs.
#include <algorithm>
#include <optional>

#include "conv/cuda/depthwise/depthwise.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kOutputs = 4; // of a thread, along a row
constexpr int kRows = 4;
constexpr int kSharedFloats = 12 * 1024;
constexpr int kRowLanes = 8; // that load one row of inputs: the bytes of a sector or two
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

struct NcxPlan {
  int columns, rows, planes; // threads of a block along each
  int parts;                 // of a kernel row
  int in_rows, pitch;        // of the tile of one plane
  int weights;               // of one plane, with those that do not exist
  int tiles_w, tiles_h;
  int64_t blocks;
};

template <class Taps>
struct Window {
  // Inputs before an output's first, an even number, so that windows of floats begin aligned.
  static constexpr int before() {
    if constexpr (Taps::kGeneral)
      return 0;
    return (1 - Taps::first_input()) / 2 * 2;
  }
  static constexpr int kAlign = before() == 0 ? 4 : 2;
  static constexpr int size() {
    return (Taps::last_input(kOutputs) + before() + kAlign) / kAlign * kAlign;
  }
};

// The column of the image that is first in the tile of outputs from w on.
template <class Taps>
__device__ int first_column(const DepthwiseGather& p, const NcxPlan& t, int w) {
  if constexpr (Taps::kGeneral) {
    return p.axis[2].first_input(w);
  } else {
    // Later parts of transposed rows begin further to the left.
    const int parts = Taps::first_input() < 0 ? (t.parts - 1) * Taps::kInputs : 0;
    return Taps::origin(p.axis[2], w, 0) - Window<Taps>::before() - parts;
  }
}

// A plane of the output: 64-bit division is slow, so a block divides once.
struct Plane {
  int64_t n;
  int channel;

  __device__ Plane plus(int planes, int channels) const {
    const int c = channel + planes;
    return c < channels ? Plane{n, c} : Plane{n + c / channels, c % channels};
  }
};

// Loads the tile of inputs of a channel of the group at depth id: [plane][row][column].
template <class T>
__device__ void stage_inputs(
    const DepthwiseGather& p,
    const NcxPlan& t,
    Plane plane,
    int channel,
    int id,
    int first_row,
    int first_column,
    float* shared) {
  constexpr int kAtOnce = 8; // loads that are under way
  const int lane = threadIdx.x % kRowLanes;
  for (int line = threadIdx.x / kRowLanes; line < t.planes * t.in_rows;
       line += kThreads / kRowLanes) {
    const int in_block = line / t.in_rows, h = first_row + line - in_block * t.in_rows;
    const Plane own = plane.plus(in_block, p.channels);
    const bool is_inside = own.n < p.n && h >= 0 && h < p.axis[1].in;
    const int64_t c = p.first_in_channel(own.channel) + channel;
    const T* const row = static_cast<const T*>(p.in) + own.n * p.in_stride[0] + c * p.in_stride[1] +
        id * p.in_stride[2] + h * p.in_stride[3];
    for (int begin = lane; begin < t.pitch; begin += kAtOnce * kRowLanes) {
      float values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int column = begin + i * kRowLanes, w = first_column + column;
        values[i] = is_inside && column < t.pitch && w >= 0 && w < p.axis[2].in
            ? static_cast<float>(row[w * p.in_stride[4]])
            : 0.f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int column = begin + i * kRowLanes;
        if (column < t.pitch)
          shared[line * t.pitch + column] = values[i];
      }
    }
  }
}

// [plane][row of the kernel][tap], rows padded with zeros to whole parts.
template <class T, class Taps>
__device__ void stage_weights(
    const DepthwiseGather& p,
    const NcxPlan& t,
    Plane plane,
    int in_channel,
    int d,
    float* shared) {
  const int row = t.parts * Taps::kTaps;
  for (int e = threadIdx.x; e < t.planes * t.weights; e += kThreads) {
    const Plane own = plane.plus(e / t.weights, p.channels);
    const int tap = e % t.weights, h = tap / row, w = tap % row;
    const bool exists =
        h < p.axis[1].taps && w >= p.axis[2].first && w < p.axis[2].taps && own.n < p.n;
    shared[e] = exists ? p.weight<T>(own.channel, in_channel, d, h, w) : 0.f;
  }
}

// Adds to the sums of a row of outputs what a row of inputs gives through a part of a kernel row.
// `inputs`: the first column of the tile that the part's first output meets.
template <class Taps>
__device__ __forceinline__ void add_row(
    const GatherAxis& a,
    const float* inputs,
    const float (&taps)[Taps::kTaps],
    int part,
    float (&sums)[kOutputs]) {
  using W = Window<Taps>;
  float window[W::size()];
#pragma unroll
  for (int i = 0; i < W::size(); i += W::kAlign) {
    const auto vector = load_vector<W::kAlign>(inputs + i);
#pragma unroll
    for (int j = 0; j < W::kAlign; j++)
      window[i + j] = vector.at[j];
  }
#pragma unroll
  for (int i = Taps::first_input(); i <= Taps::last_input(kOutputs); i++) {
#pragma unroll
    for (int r = 0; r < kOutputs; r++) {
      const int k = Taps::tap(i, r);
      if (k < 0 || k >= Taps::kTaps)
        continue;
      const int w = part * Taps::kTaps + k;
      if (!Taps::kPartial || (w >= a.first && w < a.taps))
        sums[r] += window[i + W::before()] * taps[k];
    }
  }
}

// Adds all taps of a plane, of which an output meets few where rows are transposed. `inputs`: of
// the tile, as if it began at row 0 and column 0 of the image.
__device__ __forceinline__ void add_strided_taps(
    const DepthwiseGather& p,
    const NcxPlan& t,
    const float* inputs,
    const float* kernel,
    int oh,
    int ow,
    float (&sums)[kRows][kOutputs]) {
  const GatherAxis &rows = p.axis[1], &columns = p.axis[2];
  int first[kOutputs]; // taps
#pragma unroll
  for (int i = 0; i < kOutputs; i++)
    first[i] = columns.first_tap(ow + i);
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    for (int h = rows.first_tap(oh + r); h < rows.taps; h += rows.tap_step) {
      const int ih = oh + r < rows.out ? rows.input(oh + r, h) : -1;
      if (ih < 0)
        continue;
#pragma unroll
      for (int i = 0; i < kOutputs; i++) {
        for (int w = first[i]; w < columns.taps; w += columns.tap_step) {
          const int iw = ow + i < columns.out ? columns.input(ow + i, w) : -1;
          if (iw >= 0)
            sums[r][i] += inputs[ih * t.pitch + iw] * kernel[h * t.parts + w];
        }
      }
    }
  }
}

template <class T, class Taps>
__global__ void __launch_bounds__(kThreads) depthwise_ncx_kernel(
    const __grid_constant__ DepthwiseGather p,
    const __grid_constant__ NcxPlan t,
    const __grid_constant__ bool vectors) {
  float* const tile = dynamic_shared<float>();
  float* const weights = tile + t.planes * t.in_rows * t.pitch;
  const int column = threadIdx.x % t.columns, rest = threadIdx.x / t.columns;
  const int row = rest % t.rows, in_block = rest / t.rows;
  const GatherAxis& a = p.axis[2];
  for (int64_t block = blockIdx.x; block < t.blocks; block += gridDim.x) {
    Digits digits{block};
    const int tile_w = static_cast<int>(digits.next(t.tiles_w)) * t.columns * kOutputs;
    const int tile_h = static_cast<int>(digits.next(t.tiles_h)) * t.rows * kRows;
    const auto od = static_cast<int>(digits.next(p.axis[0].out));
    Digits planes{digits.rest * t.planes};
    const auto first_channel = static_cast<int>(planes.next(p.channels));
    const Plane first_plane{planes.rest, first_channel};
    const Plane plane = first_plane.plus(in_block, p.channels);
    const int ow = tile_w + column * kOutputs, oh = tile_h + row * kRows;
    const bool active = in_block < t.planes && plane.n < p.n && ow < a.out && oh < p.axis[1].out;
    const int first_row = p.axis[1].first_input(tile_h);
    const int left = first_column<Taps>(p, t, tile_w);

    float sums[kRows][kOutputs] = {};
    for (int channel = 0; channel < p.in_channels; channel++) {
      for (int d = 0; d < p.axis[0].taps; d++) {
        const int id = p.axis[0].input(od, d);
        if (id < 0)
          continue;
        __syncthreads(); // the tile before is no longer used
        stage_inputs<T>(p, t, first_plane, channel, id, first_row, left, tile);
        stage_weights<T, Taps>(p, t, first_plane, channel, d, weights);
        __syncthreads();
        if (!active)
          continue;
        const float* const own = tile + in_block * t.in_rows * t.pitch;
        const float* kernel = weights + in_block * t.weights;
        if (Taps::kGeneral && a.transposed) {
          add_strided_taps(p, t, own - first_row * t.pitch - left, kernel, oh, ow, sums);
          continue;
        }
        for (int h = 0; h < p.axis[1].taps; h++) {
          for (int part = 0; part < t.parts; part++, kernel += Taps::kTaps) {
            float taps[Taps::kTaps];
#pragma unroll
            for (int k = 0; k < Taps::kTaps; k++)
              taps[k] = kernel[k];
#pragma unroll
            for (int r = 0; r < kRows; r++) {
              const int ih = p.axis[1].input(oh + r, h);
              if (ih < 0 || oh + r >= p.axis[1].out)
                continue;
              const float* inputs = own + (ih - first_row) * t.pitch;
              if constexpr (Taps::kGeneral) {
#pragma unroll
                for (int i = 0; i < kOutputs; i++) {
                  const int iw = ow + i < a.out ? a.input(ow + i, part) : -1;
                  if (iw >= 0)
                    sums[r][i] += inputs[iw - left] * taps[0];
                }
              } else {
                const int begin = Taps::origin(a, ow, part) - Window<Taps>::before() - left;
                add_row<Taps>(a, inputs + begin, taps, part, sums[r]);
              }
            }
          }
        }
      }
    }
    if (!active)
      continue;
    const float bias = p.bias_of<T>(plane.channel);
    const OutputIndex first{plane.n, plane.channel, od, oh, ow};
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
          min(kOutputs, a.out - ow),
          offset + r * p.out_stride[3],
          p.out_stride[4],
          residual + r * p.residual_stride[3],
          p.residual_stride[4],
          vectors);
    }
  }
}

template <class Taps>
NcxPlan plan_block(const DepthwiseGather& p, int columns, int rows, int planes) {
  const GatherAxis& a = p.axis[2];
  NcxPlan t{};
  t.columns = columns;
  t.rows = rows;
  t.planes = planes;
  t.parts = ceil_div(a.taps, Taps::kTaps);
  t.in_rows = p.axis[1].inputs(rows * kRows);
  if constexpr (Taps::kGeneral) {
    t.pitch = a.inputs(columns * kOutputs);
  } else {
    // Through the end of the last thread's window in the last part.
    constexpr int kStep = Taps::first_input() < 0 ? kOutputs / 2 : kOutputs * Taps::kStride;
    t.pitch = (columns - 1) * kStep + (t.parts - 1) * Taps::kInputs + Window<Taps>::size();
    t.pitch = round_up(t.pitch, 4);
  }
  t.weights = p.axis[1].taps * t.parts * Taps::kTaps;
  t.tiles_w = ceil_div(a.out, columns * kOutputs);
  t.tiles_h = ceil_div(p.axis[1].out, rows * kRows);
  t.blocks = ceil_div(p.n * p.channels, planes) * p.axis[0].out * t.tiles_h * t.tiles_w;
  return t;
}

int64_t shared_floats(const NcxPlan& t) {
  return t.planes * (int64_t(t.in_rows) * t.pitch + t.weights);
}

// As much of a plane as there is, then as many planes; halved until the tile fits in shared memory.
// None if what one thread's outputs meet does not.
template <class Taps>
std::optional<NcxPlan> plan_ncx(const DepthwiseGather& p) {
  int columns = std::min<int64_t>(16, ceil_div(p.axis[2].out, kOutputs));
  int rows = std::min<int64_t>(kThreads / columns, ceil_div(p.axis[1].out, kRows));
  int planes = std::min<int64_t>(kThreads / (columns * rows), p.n * p.channels);
  for (;;) {
    const NcxPlan t = plan_block<Taps>(p, columns, rows, planes);
    if (shared_floats(t) <= kSharedFloats)
      return t;
    int& largest = planes > 1 ? planes : rows > 1 ? rows : columns;
    if (largest == 1)
      return std::nullopt;
    largest = (largest + 1) / 2;
  }
}

template <class T, class Taps>
void run(const DepthwiseGather& p) {
  const NcxPlan t = plan_ncx<Taps>(p).value();
  launch(
      depthwise_ncx_kernel<T, Taps>,
      dim3(static_cast<unsigned>(std::min(t.blocks, kMaxBlocks))),
      dim3(kThreads),
      shared_floats(t) * sizeof(float),
      p,
      t,
      p.epilogue.can_move<T>(kOutputs, p.out_stride, p.residual_stride, /*axis=*/4));
}

} // namespace

bool supports_depthwise_ncx(const DepthwiseGather& p) {
  bool fits = false;
  with_row_taps(p.axis[2], /*dilates=*/false, [&](auto taps) {
    fits = plan_ncx<decltype(taps)>(p).has_value();
  });
  return fits;
}

void depthwise_ncx(const DepthwiseGather& p, c10::ScalarType dtype) {
  dispatch(DepthwiseTypes{}, dtype, [&]<class T>(std::type_identity<T>) {
    with_row_taps(p.axis[2], /*dilates=*/false, [&](auto taps) { run<T, decltype(taps)>(p); });
  });
}

} // namespace torch_dnnl::cuda
