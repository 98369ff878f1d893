// The kernels of the dense convolution: one for the forward pass and the data gradient, one for the
// weights gradient. Both keep the tiles of the next stages on their way into shared memory while
// they multiply those of the present one.
#pragma once

#include "conv/cuda/epilogue.h"
#include "conv/cuda/shared/gather.h"

namespace torch_dnnl::cuda {

// Completes and stores a chunk of a block's sums. `channel`: the first, of the group, of `channels`
// that exist.
template <class T, class Sum>
__device__ __forceinline__ void store_chunk(
    const DenseProblem& p,
    const Geometry& g,
    const Sum* sums,
    int64_t offset,
    int64_t residual_offset,
    int channel,
    int channels) {
  const ConvProblem& c = p.conv;
  Sum u[kChunk<T>];
#pragma unroll
  for (int e = 0; e < kChunk<T>; e++)
    u[e] = sums[e];
  if (c.bias != nullptr) {
    const int64_t first = static_cast<int64_t>(g.group) * p.straight.channels + channel;
    const T* bias = static_cast<const T*>(c.bias) + first * c.bias_stride;
#pragma unroll
    for (int e = 0; e < kChunk<T>; e++)
      u[e] += e < channels ? static_cast<Sum>(bias[e * c.bias_stride]) : Sum(0);
  }
  const int64_t step = p.straight.stride[1], residual_step = c.residual_stride[1];
  Epilogue::of(c).complete<T>(
      u,
      channels,
      offset + channel * step,
      step,
      residual_offset + channel * residual_step,
      residual_step,
      p.stores_whole);
}

// Whether sums may be split: tall tiles have no registers for it.
template <class S>
constexpr bool kMaySplit = S::m <= 128;

// Stores the sums of one split of a block, whose tile has `pixels` left.
template <class Sums>
__device__ __forceinline__ void
store_partial(const DenseProblem& p, int64_t pixels, int64_t m0, int n0, Sums& sums) {
  using Sum = typename Sums::Sum;
  const int channels = p.straight.channels;
  Sum* partial =
      static_cast<Sum*>(p.partial) + (blockIdx.z * p.partial_pixels + m0) * channels + n0;
  sums.for_each_pair([&](int row, int column, Sum first, Sum second) {
    Sum* to = partial + static_cast<int64_t>(row) * channels + column;
    if (row < pixels && n0 + column < channels)
      to[0] = first;
    if (row < pixels && n0 + column + 1 < channels)
      to[1] = second;
  });
}

// Forward and data gradient: a block computes S::m pixels x S::n channels of the straight image.
// grid: (tiles of pixels x of channels, 1, groups x remainders x splits). `vectors`: the gathered
// image is read by chunks, else by elements.
template <class T, class S, class Sums, bool vectors>
__global__ void __launch_bounds__(kDenseThreads, 2)
    dense_gather_kernel(const __grid_constant__ DenseProblem p) {
  auto* memory = dynamic_shared<unsigned char>();
  auto* rows = reinterpret_cast<PixelRow*>(memory);
  memory += S::m * sizeof(PixelRow);
  const unsigned splits = kMaySplit<S> ? static_cast<unsigned>(p.splits) : 1;
  const Geometry g(p, static_cast<int>(blockIdx.z / splits));
  const int64_t m0 = blockIdx.x / p.column_tiles * S::m;
  const int n0 = static_cast<int>(blockIdx.x % p.column_tiles) * S::n;
  if (m0 >= g.pixels(p))
    return; // remainders differ in their pixels
  make_pixel_rows<S>(p, g, m0, rows);
  StageRange range = all_stages<T>(p, g);
  if constexpr (kMaySplit<S>) {
    const auto of_split = static_cast<int>(p.blocks_per_split);
    range.first = static_cast<int>(blockIdx.z % splits) * of_split;
    range.count = min(range.count - range.first, of_split);
  }
  Sums sums;
  multiply_gathered<T, S, Sums, vectors>(p, g, rows, n0, range, memory, sums);

  using Sum = typename Sums::Sum;
  if (splits > 1)
    return store_partial(p, g.pixels(p) - m0, m0, n0, sums);
  // Through shared memory, as what a lane has of the product is not contiguous.
  auto* of_block = reinterpret_cast<Sum*>(memory);
  sums.for_each_pair([&](int row, int column, Sum first, Sum second) {
    store_vector<2>(of_block + row * kSumsPitch<S> + column, {first, second});
  });
  if (p.conv.residual != nullptr)
    find_residual<S>(p, g, m0, rows);
  __syncthreads();
  const int channels_left = p.straight.channels - n0;
  constexpr int kColumns = S::n / kChunk<T>;
  for (int i = threadIdx.x; i < S::m * kColumns; i += kDenseThreads) {
    const int row = p.stores_whole ? i / kColumns : i % S::m;
    const int column = (p.stores_whole ? i % kColumns : i / S::m) * kChunk<T>;
    if (!rows[row].straight.inside || column >= channels_left)
      continue;
    const Sum* of_chunk = of_block + row * kSumsPitch<S> + column;
    store_chunk<T>(
        p,
        g,
        of_chunk,
        rows[row].straight.offset,
        rows[row].gathered.offset,
        n0 + column,
        min(kChunk<T>, channels_left - column));
  }
}

// Pixels of two turns: those being fetched and the next ones.
template <class T, class S>
constexpr size_t kWeightsBytes = 2 * kDenseThreads * sizeof(PixelRow) + Stages<T, S, true>::kBytes;

// Weights gradient: a block computes the partial sums of S::m pairs (tap, channel of src) x S::n
// channels of dst over the pixels of one split. grid: (tiles, 1, groups x splits). `vectors`: both
// images are read by chunks.
template <class T, class S, class Sums, bool vectors>
__global__ void __launch_bounds__(kDenseThreads, 2)
    dense_weights_kernel(const __grid_constant__ DenseProblem p) {
  auto* memory = dynamic_shared<unsigned char>();
  auto* rows = reinterpret_cast<PixelRow*>(memory);
  const Stages<T, S, true> stages(memory + 2 * kDenseThreads * sizeof(PixelRow));
  const int64_t split = blockIdx.z % p.splits;
  const Geometry g(p, static_cast<int>(blockIdx.z / p.splits));
  const int64_t m0 = blockIdx.x / p.column_tiles * S::m;
  const int n0 = static_cast<int>(blockIdx.x % p.column_tiles) * S::n;
  const int64_t first_block = split * p.blocks_per_split;
  const int64_t all_blocks = (g.pixels(p) + kDepth<T> - 1) / kDepth<T>;
  const int64_t blocks =
      all_blocks - first_block < p.blocks_per_split ? all_blocks - first_block : p.blocks_per_split;

  Fetch<T, OperandTile<T, S::m, true>, kGathered<vectors>, !vectors> of_gathered;
  Fetch<T, OperandTile<T, S::n, true>, kStraight<vectors>, !vectors> of_straight;
  AsyncCopies copies;
  const TapChannels at(p, g, m0 + of_gathered.column() * kChunk<T>);
  const Shift shift(p, g, at);
  const T* gathered = static_cast<const T*>(p.gathered.data) + shift.offset;
  const int channel = n0 + static_cast<int>(of_straight.column()) * kChunk<T>;
  const int channels_left = p.straight.channels - channel;
  const T* straight = static_cast<const T*>(p.straight.data) + channel * p.straight.stride[1];
  // A thread works out the place of one pixel each time that as many pixels as threads are fetched.
  const auto make_rows = [&](int64_t turn) {
    const int64_t first = first_block * kDepth<T> + turn * kDenseThreads;
    rows[turn % 2 * kDenseThreads + threadIdx.x] = pixel_row(p, g, first + threadIdx.x);
  };
  const auto fetch = [&](int64_t block, int slot) {
    const int64_t pixel = block * kDepth<T>;
    if (pixel % kDenseThreads == 0)
      make_rows(pixel / kDenseThreads + 1);
    const PixelRow* of_block = rows + pixel % (2 * kDenseThreads);
    of_gathered.fetch(
        copies,
        stages.a(slot),
        p.gathered.stride[1],
        p.gathered.channels - at.channel,
        [&](unsigned row) { return gathered_source(p, of_block[row], shift, gathered); });
    of_straight.fetch(
        copies, stages.b(slot), p.straight.stride[1], channels_left, [&](unsigned row) {
          const auto pixel = load_half(of_block[row].straight);
          return Source<T>{straight + pixel.offset, pixel.inside && channels_left > 0};
        });
  };
  Sums sums;
  make_rows(0);
  __syncthreads();
  pipeline(
      blocks,
      copies,
      fetch,
      [&](int slot) {
        of_gathered.settle(stages.a(slot));
        of_straight.settle(stages.b(slot));
      },
      [&](int slot) { sums.multiply(stages.a(slot), stages.b(slot)); });

  using Sum = typename Sums::Sum;
  const int64_t columns = static_cast<int64_t>(g.taps()) * p.padded_channels;
  Sum* partial = static_cast<Sum*>(p.partial) +
      (split * p.conv.groups + g.group) * p.straight.channels * columns;
  sums.for_each_pair([&](int row, int column, Sum first, Sum second) {
    const int64_t m = m0 + row, n = n0 + column;
    if (m < columns && n < p.straight.channels)
      partial[n * columns + m] = first;
    if (m < columns && n + 1 < p.straight.channels)
      partial[(n + 1) * columns + m] = second;
  });
}

} // namespace torch_dnnl::cuda
