// Depthwise and grouped convolution with channels innermost: a thread computes kOutputs pixels of a
// row in vectors of channels; lanes hold neighbouring vectors. Weights lie in shared memory, a part
// of a kernel row after the other, as the block goes through them together.
//
// An input vector is multiplied by a vector of weights, element by element, or, where groups
// consist of whole vectors (kMatrix), by a square matrix of weights; a vector may be a single
// channel.
//
// In bytes of the first-level cache, which are dear here, an output of 3x3 taps costs
// 3 (kOutputs + 2) / kOutputs = 4 vectors of inputs and 9 / kOutputs = 1 of weights, not 9 and 9.
#include <limits>

#include "conv/cuda/depthwise/depthwise.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kOutputs = 8;
constexpr int kVector =
    4; // channels; more of a narrow type would leave registers for fewer outputs
constexpr int kWeightsBytes = 24 * 1024;
constexpr int kLoads = 8; // of weights that are under way

struct NxcPlan {
  int lanes; // vectors of channels of a block
  int channel_tiles;
  int parts;           // of a kernel row
  int steps, capacity; // parts of all kernel rows, and as many as shared memory holds
  int step_bytes;
  int spacing; // of a run's outputs
  uint32_t runs, runs_at_once;
  bool rows_first;                       // runs are counted along H, then along W
  Divisor inner, outer, depth;           // runs along each
  Divisor by_parts, by_height, by_depth; // by_height, by_depth: of the kernel
};

// The first output of a run. The runs of a block lie below each other, so that most of what one of
// them reads is in the first-level cache when the next one reads it; along transposed axes, where
// neighbouring rows meet different taps, beside each other, so that a warp skips the same ones.
__device__ ImageIndex
run_at(const DepthwiseGather& p, const NxcPlan& t, uint32_t rest, int channel) {
  const auto inner = static_cast<int>(t.inner.split(rest));
  const auto outer = static_cast<int>(t.outer.split(rest));
  const int h = t.rows_first ? inner : outer, run = t.rows_first ? outer : inner;
  const int w =
      t.spacing == 1 ? run * kOutputs : run / t.spacing * t.spacing * kOutputs + run % t.spacing;
  const auto d = static_cast<int>(t.depth.split(rest));
  return {static_cast<int>(rest), channel, d, h, w};
}

// A part of a kernel row; input: a step's input channels.
struct KernelPart {
  int input, d, h, part;
};

template <class Taps>
__device__ KernelPart part_at(const NxcPlan& t, uint32_t rest) {
  const auto part = Taps::kPartial ? static_cast<int>(t.by_parts.split(rest)) : 0;
  const auto h = static_cast<int>(t.by_height.split(rest));
  const auto d = static_cast<int>(t.by_depth.split(rest));
  return {static_cast<int>(rest), d, h, part};
}

// Fills `shared` with the weights of the steps from `first` on: [step][tap][input channel][channel
// of the block], with kInputs input channels in a step.
template <class T, int kInputs, class Taps>
__device__ void stage_weights(
    const DepthwiseGather& p,
    const NxcPlan& t,
    int first_channel,
    int first,
    int width,
    float* shared) {
  // `width` divides kThreads, so that a thread stays with a channel.
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, c = first_channel + thread % width;
  const int count = min(t.capacity, t.steps - first) * Taps::kTaps * kInputs;
  const auto weight = [&](int vector) {
    auto rest = static_cast<uint32_t>(vector / (kInputs * Taps::kTaps) + first);
    const auto part = static_cast<int>(t.by_parts.split(rest));
    const auto h = static_cast<int>(t.by_height.split(rest));
    const auto d = static_cast<int>(t.by_depth.split(rest));
    const int input = static_cast<int>(rest) * kInputs + vector % kInputs;
    const int w = part * Taps::kTaps + vector / kInputs % Taps::kTaps;
    const bool exists =
        vector < count && c < p.channels && w >= p.axis[2].first && w < p.axis[2].taps;
    return exists ? p.weight<T>(c, input, d, h, w) : 0.f;
  };
  const int step = kThreads / width;
  for (int begin = thread / width; begin < count; begin += kLoads * step) {
    float weights[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; i++)
      weights[i] = weight(begin + i * step);
#pragma unroll
    for (int i = 0; i < kLoads; i++)
      if (begin + i * step < count)
        shared[(begin + i * step) * width + thread % width] = weights[i];
  }
}

// Adds to the sums of a run what one input row gives through a part of one kernel row. `row` is the
// first pixel of the row, at the thread's channels, `weights` the part's, of the same channels.
template <class T, int n, bool kMatrix, class Taps>
__device__ __forceinline__ void add_row(
    const DepthwiseGather& p,
    const NxcPlan& t,
    const T* row,
    const float* weights,
    int width,
    int w,
    int part,
    float (&sums)[kOutputs][n]) {
  const GatherAxis& a = p.axis[2];
  const auto step = static_cast<int>(p.in_stride[4] * sizeof(T)); // a row has 2^28 elements at most
  constexpr int kInputs = kMatrix ? n : 1;
  Vector<float, n> taps[Taps::kTaps][kInputs];
#pragma unroll
  for (int k = 0; k < Taps::kTaps; k++) {
#pragma unroll
    for (int i = 0; i < kInputs; i++)
      taps[k][i] = load_vector<n>(weights + (k * kInputs + i) * width);
  }
  const auto add = [&](float (&sum)[n], const auto& x, const auto& tap) {
#pragma unroll
    for (int v = 0; v < n; v++)
#pragma unroll
      for (int i = 0; i < kInputs; i++)
        sum[v] += x[kMatrix ? i : v] * tap[i].at[v];
  };
  const auto load_if = [&](bool is_inside, int position) {
    PackedVector<T, n> vector;
    if (is_inside) {
      const char* const pixel =
          reinterpret_cast<const char*>(row) + static_cast<int64_t>(position) * step;
      vector.load(reinterpret_cast<const T*>(pixel)); // its address by one instruction
    }
    return vector;
  };
  // A batch of loads is under way before the first one is used.
  if constexpr (Taps::kGeneral) {
    PackedVector<T, n> inputs[kOutputs];
    bool meets[kOutputs];
#pragma unroll
    for (int r = 0; r < kOutputs; r++) {
      const int i = w + r < a.out && Taps::has(a, part, 0) ? a.input(w + r, part) : -1;
      meets[r] = i >= 0;
      inputs[r] = load_if(meets[r], i);
    }
#pragma unroll
    for (int r = 0; r < kOutputs; r++) {
      if (!meets[r])
        continue;
      float x[n];
      widen(inputs[r], x);
      add(sums[r], x, taps[0]);
    }
  } else {
    constexpr int kFirst = Taps::first_input(), kLast = Taps::last_input(kOutputs);
    constexpr int kBatch = equal_parts(kLast - kFirst + 1, kMatrix ? 4 : 6);
    const int origin = Taps::origin(a, w, part);
#pragma unroll
    for (int begin = kFirst; begin <= kLast; begin += kBatch) {
      if (begin > kFirst && origin + begin * t.spacing >= a.in)
        break; // nothing but pad. A branch also keeps compilers from loading all inputs at first.
      PackedVector<T, n> inputs[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; b++) {
        const int i = begin + b, position = origin + i * t.spacing;
        const bool is_inside = static_cast<uint32_t>(position) < static_cast<uint32_t>(a.in);
        inputs[b] = load_if(i <= kLast && is_inside, position);
      }
#pragma unroll
      for (int b = 0; b < kBatch; b++) {
        float x[n];
        widen(inputs[b], x);
#pragma unroll
        for (int r = 0; r < kOutputs; r++) {
          const int k = Taps::tap(begin + b, r);
          if (k >= 0 && k < Taps::kTaps && Taps::has(a, part, k))
            add(sums[r], x, taps[k]);
        }
      }
    }
  }
}

// Blocks of a multiprocessor, among which registers are divided.
template <int n, bool kMatrix, class Taps>
constexpr int kResidentBlocks = n == 1                   ? 8  // 64 registers of a thread
    : kMatrix || (Taps::kTaps > 4 && Taps::kStride == 1) ? 4  // 128: weights take many
                                                         : 5; // 96

template <class T, int n, bool kMatrix, class Taps>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<n, kMatrix, Taps>) depthwise_nxc_kernel(
    const __grid_constant__ DepthwiseGather p,
    const __grid_constant__ NxcPlan t) {
  constexpr int kInputs = kMatrix ? n : 1;
  float* const shared = dynamic_shared<float>();
  const int width = t.lanes * n;
  const int first_channel = blockIdx.x % t.channel_tiles * width;
  const int channel = first_channel + threadIdx.x * n;
  bool staged = false;
  for (uint32_t first = blockIdx.x / t.channel_tiles * blockDim.y; first < t.runs;
       first += t.runs_at_once) {
    const bool active = channel < p.channels && first + threadIdx.y < t.runs;
    const ImageIndex run = run_at(p, t, first + threadIdx.y, channel);
    const T* image =
        static_cast<const T*>(p.in) + run.n * p.in_stride[0] + p.first_in_channel(channel);
    float sums[kOutputs][n] = {};
    for (int begin = 0; begin < t.steps; begin += t.capacity) {
      if (!staged) {
        __syncthreads(); // the weights before are no longer used
        stage_weights<T, kInputs, Taps>(p, t, first_channel, begin, width, shared);
        __syncthreads();
        staged = t.steps <= t.capacity;
      }
      if (!active)
        continue;
      const float* weights = shared + threadIdx.x * n;
      const int end = min(begin + t.capacity, t.steps);
#pragma unroll 1
      for (int step = begin; step < end; step++, weights += Taps::kTaps * kInputs * width) {
        const KernelPart k = part_at<Taps>(t, step);
        const int id = p.axis[0].input(run.d, k.d), ih = p.axis[1].input(run.h, k.h);
        if (id < 0 || ih < 0)
          continue;
        const T* row = image + k.input * kInputs + id * p.in_stride[2] + ih * p.in_stride[3];
        add_row<T, n, kMatrix, Taps>(p, t, row, weights, width, run.w, k.part, sums);
      }
    }
    if (!active)
      continue;
    float bias[n];
#pragma unroll
    for (int v = 0; v < n; v++)
      bias[v] = p.bias_of<T>(channel + v);
    const int64_t offset = run.offset(p.out_stride), residual = run.offset(p.residual_stride);
#pragma unroll
    for (int r = 0; r < kOutputs; r++) {
      const int along_row = r * t.spacing;
      if (run.w + along_row >= p.axis[2].out)
        break;
#pragma unroll
      for (int v = 0; v < n; v++)
        sums[r][v] += bias[v];
      p.epilogue.complete<T>(
          sums[r],
          n,
          offset + along_row * static_cast<int>(p.out_stride[4]),
          p.out_stride[1],
          residual + along_row * static_cast<int>(p.residual_stride[4]),
          p.residual_stride[1],
          /*vectors=*/true);
    }
  }
}

// The vectors of a block's channels: the fewest lanes without channels, then the widest.
int choose_lanes(int64_t vectors) {
  int best = 32;
  for (const int lanes : {16, 8})
    if (round_up(vectors, lanes) < round_up(vectors, best))
      best = lanes;
  return best;
}

int64_t runs_per_row(const DepthwiseGather& p, int spacing) {
  return ceil_div(p.axis[2].out, int64_t(kOutputs) * spacing) * spacing;
}

int64_t runs(const DepthwiseGather& p, int spacing) {
  return p.n * p.axis[0].out * p.axis[1].out * runs_per_row(p, spacing);
}

// For vectors of n channels; a step is `taps` taps of `inputs` input channels.
NxcPlan plan_nxc(const DepthwiseGather& p, int n, int inputs, int taps, int spacing) {
  NxcPlan t{};
  t.lanes = choose_lanes(ceil_div(p.channels, n));
  t.channel_tiles = ceil_div(p.channels, t.lanes * n);
  t.parts = ceil_div(p.axis[2].taps, taps);
  t.steps = p.in_channels / inputs * p.axis[0].taps * p.axis[1].taps * t.parts;
  t.step_bytes = taps * inputs * t.lanes * n * static_cast<int>(sizeof(float));
  t.capacity = std::min(t.steps, kWeightsBytes / t.step_bytes);
  t.spacing = spacing;
  t.runs = static_cast<uint32_t>(runs(p, spacing));
  t.rows_first = !p.axis[1].transposed;
  t.inner = t.outer = Divisor(p.axis[1].out);
  (t.rows_first ? t.outer : t.inner) = Divisor(runs_per_row(p, spacing));
  t.depth = Divisor(p.axis[0].out);
  t.by_parts = Divisor(t.parts);
  t.by_height = Divisor(p.axis[1].taps);
  t.by_depth = Divisor(p.axis[0].taps);
  return t;
}

template <class T, int n, bool kMatrix, class Taps>
void run(const DepthwiseGather& p) {
  NxcPlan t = plan_nxc(p, n, kMatrix ? n : 1, Taps::kTaps, Taps::kGeneral ? 1 : p.axis[2].dilation);
  const dim3 block(t.lanes, kThreads / t.lanes);
  // A block takes several runs, to load weights for all of them; no more blocks than are under way
  // at once.
  const int64_t most = multiprocessors() * kResidentBlocks<n, kMatrix, Taps>;
  const int64_t blocks =
      std::min(ceil_div(t.runs, block.y), std::max(int64_t(1), most / t.channel_tiles));
  t.runs_at_once = blocks * block.y;
  launch(
      depthwise_nxc_kernel<T, n, kMatrix, Taps>,
      dim3(static_cast<unsigned>(blocks * t.channel_tiles)),
      block,
      static_cast<size_t>(t.capacity) * t.step_bytes,
      p,
      t);
}

// Whether vectors of channels can be loaded and stored.
template <class T>
bool has_vectors(const DepthwiseGather& p) {
  return p.channels % kVector == 0 && can_move_runs<T>(p.in, p.in_stride, kVector, /*axis=*/1) &&
      p.epilogue.can_move<T>(kVector, p.out_stride, p.residual_stride, /*axis=*/1);
}

} // namespace

bool supports_depthwise_nxc(const DepthwiseGather& p) {
  return p.channels > 1 && p.in_stride[1] == 1 && p.out_stride[1] == 1 &&
      runs(p, p.axis[2].dilation) <= std::numeric_limits<int32_t>::max();
}

void depthwise_nxc(const DepthwiseGather& p, c10::ScalarType dtype) {
  dispatch(DepthwiseTypes{}, dtype, [&]<class T>(std::type_identity<T>) {
    const GatherAxis& row = p.axis[2];
    const bool is_dense = !row.transposed && row.stride == 1;
    const bool halves = row.stride == 2 && row.dilation == 1;
    const bool are_matrices = p.in_channels % kVector == 0 && p.out_channels % kVector == 0;
    if (has_vectors<T>(p) && p.in_channels == 1 && p.out_channels == 1) {
      with_row_taps<4>(
          row, /*dilates=*/true, [&](auto taps) { run<T, kVector, false, decltype(taps)>(p); });
    } else if (has_vectors<T>(p) && are_matrices && is_dense) {
      row.taps == 3 ? run<T, kVector, true, RowTaps<3, 1, false, false>>(p)
                    : run<T, kVector, true, RowTaps<2, 1, false, true>>(p);
    } else if (has_vectors<T>(p) && are_matrices && halves) {
      row.transposed ? run<T, kVector, true, RowTaps<2, 2, true, true>>(p)
                     : run<T, kVector, true, RowTaps<2, 2, false, true>>(p);
    } else if (is_dense) {
      run<T, 1, false, RowTaps<4, 1, false, true>>(p);
    } else {
      run<T, 1, false, GeneralTaps>(p);
    }
  });
}

} // namespace torch_dnnl::cuda
