// The gradient of the weights of a convolution with few channels in a group: for each pair of an
// output and an input channel and each tap the sum over all outputs, of outputs times the inputs
// that they meet. The outputs are cut into tiles and these into slices; a block sums a slice, for
// some rows of the kernel, into scratch memory, and then the sums of the slices are added in their
// order. What is summed where depends on sizes and layouts alone.
//
// A block brings each tile of outputs and the inputs that it meets into shared memory, as float and
// with zeros where the image ends, of one pair or, with channels innermost, of kLanes neighbouring
// output channels. There a thread has a unit: a part of a kernel row, or of some rows, of one pair.
// It multiplies it by strips of kOutputs outputs; threads that share a unit take strips in turn,
// and are added up in the end.
#include <algorithm>

#include "conv/cuda/depthwise/weights_plan.h"
#include "core/cuda/convert.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {
namespace {

using namespace depthwise_weights_detail;

constexpr int kMinBlocks = 3; // of a multiprocessor, whose registers they share
constexpr int kLoads = 8;     // of a thread that are under way
constexpr int kAdders = 16;   // threads that add the slices of one weight

// A part of a plane of an image.
struct Area {
  int top, left, rows, columns;
};

// The strides of a plane, and what it has; around it are zeros.
struct Plane {
  int64_t row;
  int pixel; // a row is not longer than 2^28
  int height, width;

  __device__ Plane(const int64_t* stride, const int64_t* size)
      : row(stride[3]),
        pixel(static_cast<int>(stride[4])),
        height(static_cast<int>(size[1])),
        width(static_cast<int>(size[2])) {}
};

// A tile of outputs, and the next one without divisions.
struct TileIndex {
  int w, h, d;
  int64_t image;

  __device__ TileIndex(const WeightsPlan& t, int64_t depth, int64_t index) {
    Digits digits{index};
    w = static_cast<int>(digits.next(t.tiles_w));
    h = static_cast<int>(digits.next(t.tiles_h));
    d = static_cast<int>(digits.next(depth));
    image = digits.rest;
  }

  __device__ __forceinline__ void advance(const WeightsPlan& t, int64_t depth) {
    const bool is_last_of_row = ++w == t.tiles_w;
    w = is_last_of_row ? 0 : w;
    h += is_last_of_row;
    const bool is_last_of_plane = h == t.tiles_h;
    h = is_last_of_plane ? 0 : h;
    d += is_last_of_plane;
    const bool is_last_of_image = d == depth;
    d = is_last_of_image ? 0 : d;
    image += is_last_of_image;
  }
};

// An area of an image, and where it goes.
template <class T>
struct Staged {
  const T* from; // the first pixel of the plane, at the thread's channels
  const Plane& plane;
  Area area;
  const Divisor& by_columns;
  int pitch;
  float* shared;
};

// Copies an area to shared memory, n channels at a time. A thread's pixels are equal distances
// apart.
template <int kLanes, int n, class T>
__device__ __forceinline__ void stage_pixels(const Staged<T>& image) {
  const auto& [begin, plane, area, by_columns, pitch, shared] = image;
  const T* from = begin;
  constexpr int kAcross = kLanes / n;
  const int slots = blockDim.x / kAcross;
  auto row = static_cast<uint32_t>(threadIdx.x / kAcross);
  auto column = static_cast<int>(by_columns.split(row));
  auto step_rows = static_cast<uint32_t>(slots);
  const auto step_columns = static_cast<int>(by_columns.split(step_rows));
  int h = area.top + static_cast<int>(row), w = area.left + column;
  from += h * plane.row + static_cast<int64_t>(w) * plane.pixel;
  const int64_t step = step_rows * plane.row + static_cast<int64_t>(step_columns) * plane.pixel;
  const int64_t next_row = plane.row - static_cast<int64_t>(area.columns) * plane.pixel;
  int to = static_cast<int>(row) * pitch + column * kLanes + threadIdx.x % kAcross * n;
  const int step_to = static_cast<int>(step_rows) * pitch + step_columns * kLanes;
  const int next_row_to = pitch - area.columns * kLanes;
  const int bottom = area.top + area.rows, right = area.left + area.columns;
  while (h < bottom) {
    PackedVector<T, n> values[kLoads];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      count += h < bottom;
      if (h >= 0 && h < min(bottom, plane.height) && w >= 0 && w < plane.width)
        values[i].load(from);
      h += static_cast<int>(step_rows);
      w += step_columns;
      from += step;
      if (w >= right) {
        h++;
        w -= area.columns;
        from += next_row;
      }
    }
    asm volatile("" ::: "memory"); // else the compiler waits for each load before the next one
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      if (i < count) {
        Vector<float, n> floats;
        widen(values[i], floats.at);
        store_vector(shared + to, floats);
      }
      to += step_to;
      column += step_columns;
      if (column >= area.columns) {
        column -= area.columns;
        to += next_row_to;
      }
    }
  }
}

// The same for one channel, n neighbours of a row at a time. The vectors of a warp cover n rows of
// kWarp columns: as a pitch is one more than a multiple of 8, what they store at once lies in
// different banks. The area begins at a multiple of n.
template <int n, class T>
__device__ __forceinline__ void stage_rows(const Staged<T>& image) {
  const auto& [from, plane, area, by_groups, pitch, shared] = image;
  constexpr int kAtOnce = 2, kAcross = kWarp / n;
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int own_row = threadIdx.x % kWarp / kAcross, own_column = threadIdx.x % kAcross * n;
  const int items = ceil_div(area.rows, n) * ceil_div(area.columns, kWarp);
  for (int first = warp; first < items; first += kAtOnce * warps) {
    PackedVector<T, n> vectors[kAtOnce];
    int to[kAtOnce]; // none: negative
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      auto group = static_cast<uint32_t>(first + i * warps);
      const int column = static_cast<int>(by_groups.split(group)) * kWarp + own_column;
      const int row = static_cast<int>(group) * n + own_row;
      const int h = area.top + row, w = area.left + column;
      to[i] = row < area.rows && column < area.columns ? row * pitch + column : -1;
      if (to[i] >= 0 && h >= 0 && h < plane.height && w >= 0 && w < plane.width)
        vectors[i].load(from + h * plane.row + w);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (to[i] < 0)
        continue;
      float floats[n];
      widen(vectors[i], floats);
#pragma unroll
      for (int e = 0; e < n; e++)
        shared[to[i] + e] = floats[e];
    }
  }
}

// The same with the vectors of the plan: of channels, or of a row.
template <int kLanes, class T>
__device__ __forceinline__ void stage(int vector, const Staged<T>& image) {
  constexpr int kWidest = kWidestAccess / sizeof(T);
  if (vector == 1)
    stage_pixels<kLanes, 1>(image);
  else if constexpr (kLanes > 1)
    stage_pixels<kLanes, kVector>(image);
  else if (vector == kWidest)
    stage_rows<kWidest>(image);
  else if (kWidest > 4 && vector == 4)
    stage_rows<4>(image);
  else
    stage_rows<2>(image);
}

// Neighbouring pixels of a tile.
template <int kLanes, int n>
__device__ __forceinline__ void load_pixels(const float* from, float (&to)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++)
    to[i] = from[i * kLanes];
}

// Adds what a strip gives. `count`: of its outputs that exist, which are all if kWhole.
template <bool kWhole, class U>
__device__ __forceinline__ void add_strip(
    const float* inputs,
    const float* outputs,
    int row_pitch,
    int stride,
    int count,
    float (&sums)[U::kSums]) {
  float y[kOutputs];
  load_pixels<U::kLanes>(outputs, y);
  if constexpr (U::kStride == 0) {
#pragma unroll
    for (int r = 0; r < kOutputs; r++)
      if (kWhole || r < count)
        sums[0] += inputs[r * stride * U::kLanes] * y[r];
  } else {
#pragma unroll
    for (int row = 0; row < U::kRows; row++) {
      float x[(kOutputs - 1) * U::kStride + U::kTaps];
      load_pixels<U::kLanes>(inputs + row * row_pitch, x);
#pragma unroll
      for (int r = 0; r < kOutputs; r++) {
        if (!kWhole && r >= count)
          break;
#pragma unroll
        for (int k = 0; k < U::kTaps; k++)
          sums[row * U::kTaps + k] += x[r * U::kStride + k] * y[r];
      }
    }
  }
}

// Adds the sums of `strips` threads that are kLanes apart to those of the first one, which is left
// with them.
template <int kLanes, int n>
__device__ void add_threads(int strip, int strips, float* shared, float (&sums)[n]) {
  const auto at = [&](int k, int distance) -> float& {
    return shared[k * blockDim.x + threadIdx.x + distance * kLanes];
  };
  for (int rest = strips; rest > 1;) {
    const int half = (rest + 1) / 2;
    __syncthreads(); // what lay there before is no longer used
    if (strip >= half && strip < rest) {
#pragma unroll
      for (int k = 0; k < n; k++)
        at(k, 0) = sums[k];
    }
    __syncthreads();
    if (strip + half < rest) {
#pragma unroll
      for (int k = 0; k < n; k++)
        sums[k] += at(k, half);
    }
    rest = half;
  }
}

template <class T, class U>
__global__ void __launch_bounds__(kThreads, kMinBlocks) depthwise_weights_kernel(
    const __grid_constant__ ConvProblem p,
    const __grid_constant__ WeightsPlan t,
    PartialSums sums) {
  constexpr int kLanes = U::kLanes, kTaps = U::kTaps;
  float* const inputs = dynamic_shared<float>();
  float* const outputs = inputs + t.in_rows * t.in_pitch;
  const int slot = threadIdx.x / kLanes;
  const int unit = slot / t.strips, strips = t.rows * (t.columns / kOutputs);
  const int first_strip = unit < t.units ? slot % t.strips : strips;

  // What the block sums, and the thread of it.
  const auto tile = static_cast<int>(blockIdx.x % t.channel_tiles);
  const int64_t slice = blockIdx.x / t.channel_tiles;
  int rest = blockIdx.y;
  const int first_part = rest % t.part_chunks * t.parts;
  rest /= t.part_chunks;
  const int first_row = rest % t.row_chunks * t.kernel_rows;
  rest /= t.row_chunks;
  const auto kernel_depth = static_cast<int>(p.kernel[0]), ic = static_cast<int>(p.ic);
  const int kd = rest % kernel_depth, first_input = rest / kernel_depth * t.inputs;
  const int own_input = unit % t.inputs, input = first_input + own_input;
  const int part = unit / t.inputs % t.parts, row = unit / t.inputs / t.parts * U::kRows;
  const auto channels = static_cast<int>(p.groups * p.oc);
  const int channel = tile * kLanes + static_cast<int>(threadIdx.x % kLanes);
  // The output channels that the thread stages; one without channels stages the last ones.
  const auto staged = [&](int vector) {
    const int n = kLanes == 1 ? 1 : vector;
    const int lane = static_cast<int>(threadIdx.x) % (kLanes / n) * n;
    return static_cast<int64_t>(min(tile * kLanes + lane, channels - n));
  };
  const int64_t in_channel =
      t.is_square ? staged(t.src_vector) : staged(t.src_vector) / p.oc * p.ic + first_input;
  const T* const src = static_cast<const T*>(p.src) + in_channel * p.src_stride[1];
  const T* const dst = static_cast<const T*>(p.dst) + staged(t.dst_vector) * p.dst_stride[1];
  const Plane src_plane(p.src_stride, p.src_size), dst_plane(p.dst_stride, p.dst_size);

  const auto stride_h = static_cast<int>(p.stride[1]), stride_w = static_cast<int>(p.stride[2]);
  const auto dilation_h = static_cast<int>(p.dilation[1]);
  const auto dilation_w = static_cast<int>(p.dilation[2]);
  const int in_left = first_part * kTaps * dilation_w - static_cast<int>(p.pad[2]);
  // The columns of the first vector before the tile.
  const int before = kLanes == 1 ? in_left & (t.src_vector - 1) : 0;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const int in_lane = t.is_square ? lane / ic * ic + own_input : lane;
  const int row_pitch = dilation_h * t.in_pitch;
  const float* const own_inputs =
      inputs + in_lane + row * row_pitch + (before + part * kTaps * dilation_w) * kLanes;
  const float* const own_outputs = outputs + lane;

  float total[U::kSums] = {};
  const int64_t end = min((slice + 1) * t.length, t.tiles);
  const int64_t depth = p.dst_size[0];
  TileIndex at(t, depth, slice * t.length);
  for (int64_t index = slice * t.length; index < end; index++, at.advance(t, depth)) {
    const int left = at.w * t.columns, top = at.h * t.rows;
    const int64_t id = at.d * p.stride[0] + kd * p.dilation[0] - p.pad[0];
    if (id < 0 || id >= p.src_size[0])
      continue;
    const Area in_area{
        top * stride_h + first_row * dilation_h - static_cast<int>(p.pad[1]),
        left * stride_w + in_left - before,
        t.in_rows,
        t.staged_columns};
    const Area area{top, left, t.rows, t.columns};
    const T* const src_image = src + at.image * p.src_stride[0] + id * p.src_stride[2];
    const T* const dst_image = dst + at.image * p.dst_stride[0] + at.d * p.dst_stride[2];
    __syncthreads(); // the tiles before are no longer used
    stage<kLanes, T>(
        t.src_vector, {src_image, src_plane, in_area, t.by_in_columns, t.in_pitch, inputs});
    stage<kLanes, T>(t.dst_vector, {dst_image, dst_plane, area, t.by_columns, t.pitch, outputs});
    __syncthreads();
    float found[U::kSums] = {}; // in the tile: sums stay short
    for (int strip = first_strip; strip < strips; strip += t.strips) {
      auto quotient = static_cast<uint32_t>(strip); // rows run fastest: see pitch_of
      const auto h = static_cast<int>(t.by_rows.split(quotient));
      const int w = static_cast<int>(quotient) * kOutputs;
      const int count = dst_plane.width - left - w;
      if (top + h >= dst_plane.height || count <= 0)
        continue;
      const float* const x = own_inputs + h * stride_h * t.in_pitch + w * stride_w * kLanes;
      const float* const y = own_outputs + h * t.pitch + w * kLanes;
      count >= kOutputs ? add_strip<true, U>(x, y, row_pitch, stride_w, count, found)
                        : add_strip<false, U>(x, y, row_pitch, stride_w, count, found);
    }
#pragma unroll
    for (int k = 0; k < U::kSums; k++)
      total[k] += found[k];
  }
  add_threads<kLanes>(first_strip, t.strips, inputs, total);

  if (first_strip != 0 || channel >= channels)
    return;
#pragma unroll
  for (int k = 0; k < U::kSums; k++) {
    const int kh = first_row + row + k / kTaps, kw = (first_part + part) * kTaps + k % kTaps;
    if (kh < p.kernel[1] && kw < p.kernel[2])
      sums.at(slice, (kd * p.kernel[1] + kh) * p.kernel[2] + kw)[channel * ic + input] = total[k];
  }
}

// weights[o, i, k] = the sum over the slices of what they have at k and (o, i): kAdders threads add
// each kAdders-th slice, and the first one what they have found, both in order.
template <class T>
__global__ void __launch_bounds__(kWarp* kAdders)
    add_slices_kernel(const __grid_constant__ ConvProblem p, int slices, PartialSums sums) {
  __shared__ float shared[kAdders][kWarp];
  const int64_t elements = sums.elements();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarp;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kWarp; first < elements; first += step) {
    const int64_t index = first + threadIdx.x;
    float sum = 0;
    if (index < elements) {
#pragma unroll 8
      for (int s = threadIdx.y; s < slices; s += kAdders)
        sum += sums.at(s, 0)[index];
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && index < elements) {
      for (int i = 1; i < kAdders; i++)
        sum += shared[i][threadIdx.x];
      const auto tap = static_cast<int>(index / sums.pairs);
      const auto pair = static_cast<int>(index - tap * sums.pairs), ic = static_cast<int>(p.ic);
      const int64_t o = pair / ic, i = pair % ic;
      const auto height = static_cast<int>(p.kernel[1]), width = static_cast<int>(p.kernel[2]);
      const int row = tap / width;
      const int64_t* stride = p.weights_stride;
      static_cast<T*>(p.out)
          [o * stride[0] + i * stride[1] + row / height * stride[2] + row % height * stride[3] +
           tap % width * stride[4]] = convert<T>(sum);
    }
    __syncthreads(); // what is shared may be overwritten
  }
}

// Calls f(type, unit) for the type and the units of a problem.
template <class F>
void with_weights_kernel(const ConvProblem& p, F&& f) {
  constexpr int kMany = 32, kFew = 8;
  const auto taps = static_cast<int>(p.kernel[2]);
  const int64_t channels = p.groups * p.oc, stride = p.dilation[2] == 1 ? p.stride[2] : 0;
  const auto with_lanes = [&]<int kLanes>(auto type, std::integral_constant<int, kLanes>) {
    if (takes_3x3(p) && stride == 1)
      return f(type, Unit<3, 1, kLanes, 3>{});
    if (takes_3x3(p) && stride == 2)
      return f(type, Unit<3, 2, kLanes, 3>{});
    if (stride == 1)
      return with_constant<4, 3, 5, 7, 8>(
          std::min(taps, 8), [&](auto kTaps) { f(type, Unit<kTaps, 1, kLanes>{}); });
    if (stride == 2)
      return with_constant<4, 3, 5>(taps, [&](auto kTaps) { f(type, Unit<kTaps, 2, kLanes>{}); });
    f(type, Unit<1, 0, kLanes>{});
  };
  dispatch(DepthwiseTypes{}, p.dtype, [&](auto type) {
    const bool has_src_lanes = p.groups * p.ic == 1 || p.src_stride[1] == 1;
    if (channels == 1 || !has_src_lanes || p.dst_stride[1] != 1)
      return with_lanes(type, std::integral_constant<int, 1>{});
    if (channels <= kFew)
      return f(type, Unit<1, 0, kFew>{});
    with_lanes(type, std::integral_constant<int, kMany>{});
  });
}

} // namespace

bool supports_depthwise_weights(const ConvProblem& p) {
  if (product(p.dst_size) == 0)
    return false;
  bool fits = false;
  with_weights_kernel(p, [&]<class T, class U>(std::type_identity<T>, U) {
    fits = plan_weights<T, U>(p).has_value();
  });
  return fits;
}

void depthwise_weights(const ConvProblem& p) {
  with_weights_kernel(p, [&]<class T, class U>(std::type_identity<T>, U) {
    const WeightsPlan t = plan_weights<T, U>(p).value();
    const auto slices = static_cast<int>(t.slices());
    PartialSums sums{product(p.kernel), p.groups * p.oc * p.ic, nullptr};
    const Scratch scratch(sums.offset(slices, 0) * sizeof(float));
    sums.data = static_cast<float*>(scratch.data());
    const int threads = t.threads(U::kLanes);
    const int64_t floats = std::max(shared_floats(t), int64_t(threads) * U::kSums);
    launch(
        depthwise_weights_kernel<T, U>,
        grid_of(p, t, slices),
        dim3(threads),
        floats * sizeof(float),
        p,
        t,
        sums);
    constexpr int64_t kMaxGrid = 1 << 16;
    const dim3 adders(static_cast<unsigned>(std::min(kMaxGrid, ceil_div(sums.elements(), kWarp))));
    launch(add_slices_kernel<T>, adders, dim3(kWarp, kAdders), 0, p, slices, sums);
  });
}

} // namespace torch_dnnl::cuda
