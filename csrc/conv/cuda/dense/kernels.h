// The kernels of the dense convolution: one for the forward pass and the data gradient, one for the
// weights gradient. Both keep the tiles of the next stages on their way into shared memory while
// they multiply those of the present one.
#pragma once

#include "conv/cuda/dense/problem.h"
#include "conv/cuda/dense/tile.h"
#include "conv/cuda/epilogue.h"

namespace torch_dnnl::cuda {

// How chunks are read. Those at multiples of 16 bytes are copied, through the L1 cache if they will
// be read again soon: the next tap of the gathered image meets mostly the same pixels. Others are
// loaded by elements, and stored when the products of the present stage have hidden the time that
// takes.
enum class Access { cached, streamed, by_elements };
template <bool vectors>
constexpr Access kGathered = vectors ? Access::cached : Access::by_elements;
template <bool vectors>
constexpr Access kStraight = vectors ? Access::streamed : Access::by_elements;

// A chunk in memory; if it is not inside of its tensor, zeros take its place and nothing is read.
template <class T>
struct Source {
  const T* address;
  bool inside;
};

// Fills a tile: each thread one column of chunks, and every so many rows of it. Neighbouring lanes
// have neighbouring chunks of a row or, `along_rows`, neighbouring rows: whichever is contiguous in
// memory.
template <class T, class Tile, Access access, bool along_rows>
class Fetch {
 public:
  __device__ static unsigned column() {
    return along_rows ? threadIdx.x / kRowsAtOnce : threadIdx.x % Tile::chunks;
  }

  // `source(row)` is where the row's chunk is; `channels` of it exist.
  template <class F>
  __device__ void
  fetch(AsyncCopies& copies, const Tile& tile, int64_t channel_stride, int channels, F source) {
#pragma unroll
    for (unsigned i = 0; i < kItems; i++) {
      const Source<T> from = source(row(i));
      if constexpr (access != Access::by_elements) {
        copies.copy16<access == Access::cached>(
            tile.chunk(row(i), column()), from.address, from.inside);
      } else {
#pragma unroll
        for (int e = 0; e < kChunk<T>; e++)
          chunks_[i].at[e] = from.inside && e < channels ? from.address[e * channel_stride] : T(0);
      }
    }
  }

  __device__ void settle(const Tile& tile) const {
    if constexpr (access == Access::by_elements) {
#pragma unroll
      for (unsigned i = 0; i < kItems; i++)
        *tile.chunk(row(i), column()) = chunks_[i];
    }
  }

 private:
  static constexpr unsigned kRowsAtOnce = kDenseThreads / Tile::chunks;
  static constexpr unsigned kItems = Tile::rows / kRowsAtOnce;

  __device__ static unsigned row(unsigned i) {
    return i * kRowsAtOnce + (along_rows ? threadIdx.x % kRowsAtOnce : threadIdx.x / Tile::chunks);
  }

  Chunk<T> chunks_[access == Access::by_elements ? kItems : 1];
};

// multiply(slot) for each of `blocks` stages. fetch(block, slot) starts to fill a slot kStages - 1
// blocks ahead and settle(slot) ends it.
template <class F, class G, class H>
__device__ __forceinline__ void
pipeline(int64_t blocks, AsyncCopies& copies, F fetch, G settle, H multiply) {
  for (int block = 0; block < kStages - 1; block++) {
    if (block < blocks) {
      fetch(block, block);
      settle(block);
    }
    copies.commit();
  }
  for (int64_t block = 0; block < blocks; block++) {
    const int slot = static_cast<int>(block % kStages);
    copies.wait<kStages - 2>();
    __syncthreads(); // this slot is full, and the previous one, to be filled now, is no longer read
    const int next = (slot + kStages - 1) % kStages;
    const bool has_next = block + kStages - 1 < blocks;
    if (has_next)
      fetch(block + kStages - 1, next);
    copies.commit();
    multiply(slot);
    if (has_next)
      settle(next);
  }
  copies.wait<0>();
  __syncthreads();
}

// Both operands' tiles of all stages.
template <class T, class S, bool depth_in_rows>
class Stages {
 public:
  static constexpr size_t kBytes = kStages * (S::m + S::n) * kDepth<T> * sizeof(T);

  __device__ explicit Stages(unsigned char* memory) : memory_(memory) {}

  __device__ OperandTile<T, S::m, depth_in_rows> a(int slot) const {
    return OperandTile<T, S::m, depth_in_rows>(memory_ + slot * kBytes / kStages);
  }
  __device__ OperandTile<T, S::n, depth_in_rows> b(int slot) const {
    return OperandTile<T, S::n, depth_in_rows>(
        memory_ + slot * kBytes / kStages + S::m * kDepth<T> * sizeof(T));
  }

 private:
  unsigned char* memory_;
};

// Half of a row by one load.
template <class Half>
__device__ __forceinline__ Half load_half(const Half& half) {
  static_assert(sizeof(Half) == kWidestAccess);
  const auto words = load_vector<4>(reinterpret_cast<const int*>(&half));
  Half result;
  std::memcpy(&result, &words, sizeof(Half));
  return result;
}

// The chunk that a row has in a column of the gathered image; `first`: the row's at offset 0.
template <class T>
__device__ __forceinline__ Source<T>
gathered_source(const DenseProblem& p, const PixelRow& row, const Shift& shift, const T* first) {
  const auto a = load_half(row.gathered);
  const auto b = load_half(row.straight);
  const auto is_within = [](int x, int size) {
    return static_cast<unsigned>(x) < static_cast<unsigned>(size);
  };
  const int* size = p.gathered.size;
  const bool inside = is_within(a.d + shift.d, size[0]) & is_within(a.h + shift.h, size[1]) &
      is_within(b.w + shift.w, size[2]);
  return {first + a.offset, inside};
}

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

// Rows of a block's sums in shared memory are this long: 8 of them begin in different banks.
template <class S>
constexpr int kSumsPitch = S::n + 8;

template <class T, class S, class Sums>
constexpr size_t kGatherBytes = S::m * sizeof(PixelRow) +
    std::max(Stages<T, S, false>::kBytes, S::m* kSumsPitch<S> * sizeof(typename Sums::Sum));

// Forward and data gradient: a block computes S::m pixels x S::n channels of the straight image.
// grid: (tiles of pixels x of channels, 1, groups x remainders). `vectors`: the gathered image is
// read by chunks, else by elements.
template <class T, class S, class Sums, bool vectors>
__global__ void __launch_bounds__(kDenseThreads, 2)
    dense_gather_kernel(const __grid_constant__ DenseProblem p) {
  auto* memory = dynamic_shared<unsigned char>();
  auto* rows = reinterpret_cast<PixelRow*>(memory);
  memory += S::m * sizeof(PixelRow);
  const Geometry g(p, blockIdx.z);
  const int64_t m0 = blockIdx.x / p.column_tiles * S::m;
  const int n0 = static_cast<int>(blockIdx.x % p.column_tiles) * S::n;
  if (m0 >= g.pixels(p))
    return; // remainders differ in their pixels
  for (int r = threadIdx.x; r < S::m; r += kDenseThreads)
    rows[r] = pixel_row(p, g, m0 + r);
  __syncthreads();

  const Stages<T, S, false> stages(memory);
  using TileA = OperandTile<T, S::m, false>;
  using TileB = OperandTile<T, S::n, false>;
  Fetch<T, TileA, kGathered<vectors>, !vectors> of_image;
  Fetch<T, TileB, Access::streamed, !vectors> of_weights; // whole chunks always, see dense.cu
  AsyncCopies copies;
  TapChannels at(p, g, of_image.column() * kChunk<T>);
  const int channels_left = p.straight.channels - n0;
  const T* weights = static_cast<const T*>(p.weights) + g.group * p.weights_group_stride +
      n0 * p.weights_channel_stride;
  const auto fetch = [&](int64_t, int slot) {
    const Shift shift(p, g, at);
    const T* first = static_cast<const T*>(p.gathered.data) + shift.offset;
    of_image.fetch(
        copies,
        stages.a(slot),
        p.gathered.stride[1],
        p.gathered.channels - at.channel,
        [&](unsigned row) { return gathered_source(p, rows[row], shift, first); });
    const T* of_tap = weights + at.weights_offset(p, g);
    of_weights.fetch(copies, stages.b(slot), 1, kChunk<T>, [&](unsigned row) {
      return Source<T>{
          of_tap + row * p.weights_channel_stride,
          at.inside && static_cast<int>(row) < channels_left};
    });
    at.advance(p, g, kDepth<T>);
  };
  Sums sums;
  pipeline(
      (static_cast<int64_t>(g.taps()) * p.padded_channels + kDepth<T> - 1) / kDepth<T>,
      copies,
      fetch,
      [&](int slot) { of_image.settle(stages.a(slot)); },
      [&](int slot) { sums.multiply(stages.a(slot), stages.b(slot)); });

  // Through shared memory, as what a lane has of the product is not contiguous.
  using Sum = typename Sums::Sum;
  auto* of_block = reinterpret_cast<Sum*>(memory);
  sums.for_each_pair([&](int row, int column, Sum first, Sum second) {
    store_vector<2>(of_block + row * kSumsPitch<S> + column, {first, second});
  });
  if (p.conv.residual != nullptr) {
    for (int r = threadIdx.x; r < S::m; r += kDenseThreads) {
      if (rows[r].straight.inside) { // its first tap is no longer needed
        rows[r].gathered.offset =
            straight_offset(p, g, pixel_index(g, m0 + r), p.conv.residual_stride);
      }
    }
  }
  __syncthreads();
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
