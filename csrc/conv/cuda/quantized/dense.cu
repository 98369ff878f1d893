// Quantized convolution as products of matrices of bytes on tensor cores, with sums in int32: the
// forward pass of the dense convolution (conv/cuda/shared/problem.h) with steps of its own at the
// end.
//
// Inputs are multiplied as they are, with the zero point in them, and pads are the zero point. So
// every sum of an output channel has the same excess, the zero point times the sum of the channel's
// weights. A kernel that runs first adds these up, as only the device may know the zero point.
#include <algorithm>
#include <iterator>
#include <optional>

#include "conv/cuda/quantized/epilogue.h"
#include "conv/cuda/quantized/kernels.h"
#include "conv/cuda/shared/gather.h"
#include "conv/cuda/shared/plan.h"
#include "conv/cuda/shared/prepare.h"
#include "core/cuda/dot.h"
#include "core/dispatch.h"

namespace torch_dnnl::cuda {
namespace {

// What depends on the zero point. Both are null where it is known to be 0.
struct Compensation {
  unsigned char* pads; // a chunk of inputs that stand for 0
  int32_t* excess;     // of each output channel
};

constexpr int kExcessThreads = 128;

// A warp adds up the weights of an output channel. grid: (groups of output channels)
__global__ void __launch_bounds__(kExcessThreads) excess_kernel(
    const __grid_constant__ DenseProblem p,
    const QuantizedScalar zero_point,
    const Compensation to) {
  const ConvProblem& c = p.conv;
  const auto zero = static_cast<int32_t>(zero_point.get());
  if (blockIdx.x == 0 && threadIdx.x < kWidestAccess)
    to.pads[threadIdx.x] = static_cast<unsigned char>(zero);
  const int64_t channel =
      static_cast<int64_t>(blockIdx.x) * (kExcessThreads / 32) + threadIdx.x / 32;
  if (channel >= c.groups * c.oc)
    return;
  const int64_t group = channel / c.oc;
  const auto* weights = static_cast<const unsigned char*>(p.weights) +
      group * p.weights_group_stride + (channel - group * c.oc) * p.weights_channel_stride;
  const int64_t chunks = p.padded_channels / kChunk<uint8_t>, taps = product(c.kernel);
  int32_t sum = 0;
  for (int64_t i = lane_index(); i < taps * chunks; i += 32) {
    int64_t stride = chunks, offset = position(i, chunks, 1) * kChunk<uint8_t>;
    for (int a = 2; a >= 0; a--) {
      offset += position(i, c.kernel[a], stride) * p.weights_tap_stride[a];
      stride *= c.kernel[a];
    }
    const auto words = load_vector<4>(reinterpret_cast<const uint32_t*>(weights + offset));
#pragma unroll
    for (const uint32_t word : words.at)
      sum = dot<uint8_t>(0x01010101, word, sum);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2)
    sum += __shfl_xor_sync(kWholeWarp, sum, lanes);
  if (lane_index() == 0)
    to.excess[channel] =
        static_cast<int32_t>(static_cast<uint32_t>(zero) * static_cast<uint32_t>(sum));
}

template <class S>
struct SharedMemory {
  // Sums are a row for each pixel or, where pixels are contiguous, for each channel; the pitch lets
  // what a warp writes fall into different banks.
  static constexpr int kPitch = S::n + 8, kPixelPitch = S::m + 4;
  static constexpr size_t kSums = std::max(S::m * kPitch, S::n* kPixelPitch) * sizeof(int32_t);
  // Where they begin, and the stages, which come before them in time.
  static constexpr size_t kSteps = S::m * sizeof(PixelRow);
  static constexpr size_t kScalars = kSteps + S::n * sizeof(ChannelSteps);
  static constexpr size_t kProducts = kScalars + 2 * kWidestAccess;
  static constexpr size_t kBytes = kProducts + std::max(Stages<uint8_t, S, false>::kBytes, kSums);
  static_assert(sizeof(QuantizedSteps) <= kProducts - kScalars && kScalars % kWidestAccess == 0);
};

// A block computes S::m pixels x S::n channels of the result. grid: (tiles of pixels x of channels,
// 1, groups).
template <class T, class S>
__global__ void __launch_bounds__(kDenseThreads, 2) quantized_dense_kernel(
    const __grid_constant__ DenseProblem p,
    const __grid_constant__ QuantizedProblem q,
    const QuantizedRuns runs,
    const Compensation compensation) {
  using Shared = SharedMemory<S>;
  auto* memory = dynamic_shared<unsigned char>();
  auto* rows = reinterpret_cast<PixelRow*>(memory);
  auto* of_channels = reinterpret_cast<ChannelSteps*>(memory + Shared::kSteps);
  auto* shared_steps = reinterpret_cast<QuantizedSteps*>(memory + Shared::kScalars);
  memory += Shared::kProducts;
  const Geometry g(p, blockIdx.z);
  const int64_t m0 = blockIdx.x / p.column_tiles * S::m;
  const int n0 = static_cast<int>(blockIdx.x % p.column_tiles) * S::n;
  const int channels_left = p.straight.channels - n0;
  { // Registers are for the products: what comes after them waits in shared memory.
    const QuantizedSteps steps(q);
    if (threadIdx.x == 0)
      *shared_steps = steps;
    for (int c = threadIdx.x; c < min(S::n, channels_left); c += kDenseThreads) {
      const int64_t channel = static_cast<int64_t>(g.group) * p.straight.channels + n0 + c;
      const int32_t excess = compensation.excess == nullptr ? 0 : compensation.excess[channel];
      of_channels[c] = ChannelSteps(q, steps, channel, excess);
    }
  }
  make_pixel_rows<S>(p, g, m0, rows);
  TensorCoreSums<T, S, false> sums;
  multiply_gathered<T, S, decltype(sums), true>(
      p,
      g,
      rows,
      n0,
      all_stages<T>(p, g),
      memory,
      sums,
      reinterpret_cast<const T*>(compensation.pads));

  auto* of_block = reinterpret_cast<int32_t*>(memory);
  sums.for_each_pair([&](int row, int column, int32_t first, int32_t second) {
    if (runs.along_pixels) {
      of_block[column * Shared::kPixelPitch + row] = first;
      of_block[(column + 1) * Shared::kPixelPitch + row] = second;
    } else {
      store_vector<2>(of_block + row * Shared::kPitch + column, {first, second});
    }
  });
  if (q.conv.residual != nullptr)
    find_residual<S>(p, g, m0, rows);
  __syncthreads();
  const QuantizedSteps steps = *shared_steps;
  const int64_t rows_left = g.pixels(p) - m0;
  for (int i = threadIdx.x; i < S::m * S::n / kRun; i += kDenseThreads) {
    constexpr int kRowRuns = S::m / kRun, kColumnRuns = S::n / kRun;
    const int row = runs.along_pixels ? i % kRowRuns * kRun : i / kColumnRuns;
    const int column = runs.along_pixels ? i / kRowRuns : i % kColumnRuns * kRun;
    if (row >= rows_left || column >= channels_left)
      continue;
    const int left = runs.along_pixels ? static_cast<int>(min(rows_left - row, int64_t(kRun)))
                                       : min(channels_left - column, kRun);
    const auto products = load_vector<kRun>(
        of_block +
        (runs.along_pixels ? column * Shared::kPixelPitch + row : row * Shared::kPitch + column));
    int32_t of_run[kRun];
    float scale[kRun], bias[kRun];
    RunOffsets dst, residual;
#pragma unroll
    for (int e = 0; e < kRun; e++) {
      const int r = row + (runs.along_pixels ? e : 0), c = column + (runs.along_pixels ? 0 : e);
      const ChannelSteps& channel = of_channels[e < left ? c : column];
      of_run[e] = channel.sum(products.at[e]);
      scale[e] = channel.scale;
      bias[e] = channel.bias;
      dst.at[e] = rows[r].straight.offset + (n0 + c) * p.straight.stride[1];
      residual.at[e] = rows[r].gathered.offset + (n0 + c) * q.conv.residual_stride[1];
    }
    complete_run(q, steps, runs, of_run, scale, bias, left, dst, residual);
  }
}

template <class T, class S>
void run_shape(
    DenseProblem p,
    const DensePlan& plan,
    const QuantizedProblem& q,
    const Compensation& compensation) {
  p.column_tiles = plan.column_tiles;
  const dim3 grid(
      static_cast<unsigned>(plan.row_tiles * plan.column_tiles),
      1,
      static_cast<unsigned>(p.conv.groups));
  launch(
      quantized_dense_kernel<T, S>,
      grid,
      dim3(kDenseThreads),
      SharedMemory<S>::kBytes,
      p,
      q,
      QuantizedRuns(q, q.conv.oc),
      compensation);
}

// With the best of the shapes; the first of equals.
template <class T, class... S>
void run_best_shape(
    const DenseProblem& p,
    const QuantizedProblem& q,
    const Compensation& compensation) {
  const DensePlan plans[] = {plan_gather<T, S, true>(p, /*sum_bytes=*/0)...};
  const auto* best = std::min_element(
      std::begin(plans), std::end(plans), [](const DensePlan& a, const DensePlan& b) {
        return a.cycles < b.cycles;
      });
  const DensePlan* of_shape = plans;
  ((of_shape++ == best ? run_shape<T, S>(p, *best, q, compensation) : void()), ...);
}

} // namespace

bool supports_quantized_dense(const QuantizedProblem& q) {
  const ConvProblem& p = q.conv;
  const bool is_empty = p.ic * product(p.kernel) * product(p.src_size) == 0; // sums of nothing
  const bool is_prelu = p.activation == Activation::prelu;                   // the reference has it
  return p.n > 0 && !is_empty && !is_prelu && has_short_sums(q) && fits(p) &&
      can_pack<uint8_t>(make_problem<uint8_t>(p).gathered, p.groups);
}

void run_quantized_dense(const QuantizedProblem& q) {
  DenseProblem d = make_problem<uint8_t>(q.conv);
  const std::optional<Scratch> weights = place_weights<uint8_t>(d);
  std::optional<Scratch> pixels;
  if (!has_chunks<uint8_t>(d.gathered, q.conv.n))
    pixels = pack_pixels<uint8_t>(d.gathered, q.conv.n, q.conv.groups);
  Compensation compensation{};
  std::optional<Scratch> of_zero_point;
  const QuantizedScalar& zero_point = q.src_zero_point;
  if (zero_point.data != nullptr || zero_point.number != 0) {
    const int64_t channels = q.conv.groups * q.conv.oc;
    of_zero_point.emplace(kWidestAccess + channels * sizeof(int32_t));
    compensation.pads = static_cast<unsigned char*>(of_zero_point->data());
    compensation.excess = reinterpret_cast<int32_t*>(compensation.pads + kWidestAccess);
    launch(
        excess_kernel,
        dim3(static_cast<unsigned>(ceil_div(channels, kExcessThreads / 32))),
        dim3(kExcessThreads),
        0,
        d,
        zero_point,
        compensation);
  }
  dispatch(TypeList<uint8_t, int8_t>{}, q.conv.dtype, [&]<class T>(std::type_identity<T>) {
    run_best_shape<T, Shape<128, 128, 2>, Shape<256, 64, 4>, Shape<64, 64, 2>>(d, q, compensation);
  });
}

} // namespace torch_dnnl::cuda
