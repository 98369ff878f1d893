// The kernels of the dense convolution: one for the forward pass and the data gradient, one for the
// weights gradient. Both keep the tiles of the next stages on their way into shared memory while
// they multiply those of the present one.
#pragma once

#include "conv/activation.h"
#include "conv/cuda/dense_problem.h"
#include "conv/cuda/dense_tile.h"

namespace torch_dnnl::cuda {

// Fills a tile: each thread one column of chunks, and every so many rows of it. Neighbouring lanes
// have neighbouring chunks of a row or, `along_rows`, neighbouring rows: whichever is contiguous in
// memory. `async` chunks are 16 bytes at multiples of 16; others are loaded by elements and stored
// when the products of the present stage have hidden the time that takes.
template <class T, class Tile, bool async, bool along_rows>
class Fetch {
 public:
  static constexpr int kRowsAtOnce = kDenseThreads / Tile::chunks;

  __device__ static int column() {
    return along_rows ? threadIdx.x / kRowsAtOnce : threadIdx.x % Tile::chunks;
  }

  // `address(row)` is null where there are zeros; `channels` of the chunk exist.
  template <class F>
  __device__ void fetch(
      AsyncCopies& copies,
      const Tile& tile,
      const void* anywhere,
      int64_t channel_stride,
      int channels,
      F address) {
#pragma unroll
    for (int i = 0; i < kItems; i++) {
      const T* from = address(row(i));
      if constexpr (async) {
        copies.copy16(tile.chunk(row(i), column()), from ? from : anywhere, from != nullptr);
      } else {
#pragma unroll
        for (int e = 0; e < kChunk<T>; e++) {
          chunks_[i].at[e] = from && e < channels ? from[e * channel_stride] : T(0);
        }
      }
    }
  }

  __device__ void settle(const Tile& tile) const {
    if constexpr (!async) {
#pragma unroll
      for (int i = 0; i < kItems; i++) {
        *tile.chunk(row(i), column()) = chunks_[i];
      }
    }
  }

 private:
  static constexpr int kItems = Tile::rows / kRowsAtOnce;

  __device__ static int row(int i) {
    return i * kRowsAtOnce + (along_rows ? threadIdx.x % kRowsAtOnce : threadIdx.x / Tile::chunks);
  }

  Chunk<T> chunks_[async ? 1 : kItems];
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
    if (has_next) {
      fetch(block + kStages - 1, next);
    }
    copies.commit();
    multiply(slot);
    if (has_next) {
      settle(next);
    }
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

// The gathered element of a row at a column's offset and shifts; null in the padding.
template <class T>
__device__ __forceinline__ const T* gathered_address(
    const DenseProblem& p,
    const PixelRow& row,
    int64_t offset,
    const int (&shift)[3]) {
  bool inside = true;
#pragma unroll
  for (int a = 0; a < 3; a++) {
    inside &=
        static_cast<unsigned>(row.x[a] + shift[a]) < static_cast<unsigned>(p.gathered.size[a]);
  }
  return inside ? static_cast<const T*>(p.gathered.data) + (row.gathered + offset) : nullptr;
}

// The sums of a block's pixels and channels, as they leave it: bias and residual added, activated,
// rounded and stored.
template <class T, class Sum>
class Ending {
 public:
  __device__ Ending(const DenseProblem& p, const Geometry& g) : p_(p), g_(g) {}

  // `channels` of a chunk, `channel` the first, of the group. `whole`: by 16 bytes.
  template <bool whole>
  __device__ void
  store(const Sum* sums, int64_t offset, int64_t residual_offset, int channel, int channels) const {
    const ConvProblem& c = p_.conv;
    Sum u[kChunk<T>];
#pragma unroll
    for (int e = 0; e < kChunk<T>; e++) {
      u[e] = sums[e];
    }
    if (c.bias != nullptr) {
      const int64_t first = static_cast<int64_t>(g_.group) * p_.straight.channels + channel;
      const T* bias = static_cast<const T*>(c.bias) + first * c.bias_stride;
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
        u[e] += e < channels ? static_cast<Sum>(bias[e * c.bias_stride]) : Sum(0);
      }
    }
    if (c.residual != nullptr) {
      const int64_t step = c.residual_stride[1];
      const auto residual =
          load<whole>(c.residual, residual_offset + channel * step, step, channels);
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
        u[e] += static_cast<Sum>(residual.at[e]);
      }
    }
    Chunk<T> result;
    if (c.preactivation != nullptr) {
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
        result.at[e] = convert<T>(u[e]);
      }
      put<whole>(c.preactivation, offset, channel, channels, result);
    }
    with_activation(c.activation, [&](auto tag) {
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
        result.at[e] = convert<T>(activate<decltype(tag)::value>(u[e]));
      }
    });
    put<whole>(c.out, offset, channel, channels, result);
  }

 private:
  template <bool whole>
  __device__ static Chunk<T> load(const void* data, int64_t offset, int64_t step, int channels) {
    const T* from = static_cast<const T*>(data) + offset;
    if constexpr (whole) {
      return load_vector<kChunk<T>>(from);
    } else {
      Chunk<T> chunk;
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
        chunk.at[e] = e < channels ? from[e * step] : T(0);
      }
      return chunk;
    }
  }

  template <bool whole>
  __device__ void
  put(void* data, int64_t offset, int channel, int channels, const Chunk<T>& chunk) const {
    const int64_t step = p_.straight.stride[1];
    T* to = static_cast<T*>(data) + (offset + channel * step);
    if constexpr (whole) {
      store_vector(to, chunk);
    } else {
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
        if (e < channels) {
          to[e * step] = chunk.at[e];
        }
      }
    }
  }

  const DenseProblem& p_;
  const Geometry& g_;
};

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
    gather_kernel(const __grid_constant__ DenseProblem p) {
  auto* memory = dynamic_shared<unsigned char>();
  auto* rows = reinterpret_cast<PixelRow*>(memory);
  memory += S::m * sizeof(PixelRow);
  const Geometry g(p, blockIdx.z);
  const int64_t m0 = blockIdx.x / p.column_tiles * S::m;
  const int n0 = static_cast<int>(blockIdx.x % p.column_tiles) * S::n;
  if (m0 >= g.pixels(p)) {
    return; // remainders differ in their pixels
  }
  for (int r = threadIdx.x; r < S::m; r += kDenseThreads) {
    rows[r] = pixel_row(p, g, m0 + r);
  }
  __syncthreads();

  const Stages<T, S, false> stages(memory);
  using TileA = OperandTile<T, S::m, false>;
  using TileB = OperandTile<T, S::n, false>;
  Fetch<T, TileA, vectors, !vectors> of_image;
  Fetch<T, TileB, true, !vectors> of_weights; // whole chunks always, see dense.cu
  AsyncCopies copies;
  Column column(p, g, of_image.column() * kChunk<T>);
  const T* weights = static_cast<const T*>(p.weights) + g.group * p.weights_group_stride;
  const auto fetch = [&](int64_t, int slot) {
    const int shift[3] = {column.shift(g, 0), column.shift(g, 1), column.shift(g, 2)};
    const int64_t offset = column.gathered_offset(p, g);
    const int channels = p.gathered.channels - column.channel;
    of_image.fetch(
        copies, stages.a(slot), p.gathered.data, p.gathered.stride[1], channels, [&](int row) {
          return column.inside ? gathered_address<T>(p, rows[row], offset, shift) : nullptr;
        });
    const T* of_column = weights + column.weights_offset(p, g);
    of_weights.fetch(copies, stages.b(slot), weights, 1, kChunk<T>, [&](int row) {
      return column.inside && n0 + row < p.straight.channels
          ? of_column + (n0 + row) * p.weights_channel_stride
          : nullptr;
    });
    column.advance(p, g, kDepth<T>);
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
      if (rows[r].inside) { // its first tap is no longer needed
        rows[r].gathered = straight_offset(p, g, pixel_index(p, g, m0 + r), p.conv.residual_stride);
      }
    }
  }
  __syncthreads();
  constexpr int kColumns = S::n / kChunk<T>;
  const Ending<T, Sum> ending(p, g);
  for (int i = threadIdx.x; i < S::m * kColumns; i += kDenseThreads) {
    const int row = p.stores_whole ? i / kColumns : i % S::m;
    const int column = (p.stores_whole ? i % kColumns : i / S::m) * kChunk<T>;
    const int channels = p.straight.channels - n0 - column;
    if (!rows[row].inside || channels <= 0) {
      continue;
    }
    const Sum* of_chunk = of_block + row * kSumsPitch<S> + column;
    if (p.stores_whole) {
      ending.template store<true>(
          of_chunk, rows[row].straight, rows[row].gathered, n0 + column, channels);
    } else {
      ending.template store<false>(
          of_chunk, rows[row].straight, rows[row].gathered, n0 + column, channels);
    }
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
    weights_kernel(const __grid_constant__ DenseProblem p) {
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

  Fetch<T, OperandTile<T, S::m, true>, vectors, !vectors> of_gathered;
  Fetch<T, OperandTile<T, S::n, true>, vectors, !vectors> of_straight;
  AsyncCopies copies;
  const Column column(p, g, m0 + of_gathered.column() * kChunk<T>);
  const int shift[3] = {column.shift(g, 0), column.shift(g, 1), column.shift(g, 2)};
  const int64_t offset = column.gathered_offset(p, g);
  const int channel = n0 + of_straight.column() * kChunk<T>;
  const T* straight = static_cast<const T*>(p.straight.data) + channel * p.straight.stride[1];
  // A thread works out the place of one pixel each time that as many pixels as threads are fetched.
  const auto make_rows = [&](int64_t turn) {
    const int64_t first = first_block * kDepth<T> + turn * kDenseThreads;
    rows[turn % 2 * kDenseThreads + threadIdx.x] = pixel_row(p, g, first + threadIdx.x);
  };
  const auto fetch = [&](int64_t block, int slot) {
    const int64_t pixel = block * kDepth<T>;
    if (pixel % kDenseThreads == 0) {
      make_rows(pixel / kDenseThreads + 1);
    }
    const PixelRow* of_block = rows + pixel % (2 * kDenseThreads);
    of_gathered.fetch(
        copies,
        stages.a(slot),
        p.gathered.data,
        p.gathered.stride[1],
        p.gathered.channels - column.channel,
        [&](int row) {
          return column.inside ? gathered_address<T>(p, of_block[row], offset, shift) : nullptr;
        });
    of_straight.fetch(
        copies,
        stages.b(slot),
        p.straight.data,
        p.straight.stride[1],
        p.straight.channels - channel,
        [&](int row) {
          return of_block[row].inside && channel < p.straight.channels
              ? straight + of_block[row].straight
              : nullptr;
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
    if (m < columns && n < p.straight.channels) {
      partial[n * columns + m] = first;
    }
    if (m < columns && n + 1 < p.straight.channels) {
      partial[(n + 1) * columns + m] = second;
    }
  });
}

} // namespace torch_dnnl::cuda
