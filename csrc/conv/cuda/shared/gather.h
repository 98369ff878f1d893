// What the products of gathered pixels with weights have in common: how tiles get into shared
// memory while those of the present stage are multiplied, and the product of a block.
#pragma once

#include "conv/cuda/shared/problem.h"
#include "conv/cuda/shared/tile.h"

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
template <class Count, class F, class G, class H>
__device__ __forceinline__ void
pipeline(Count blocks, AsyncCopies& copies, F fetch, G settle, H multiply) {
  for (int block = 0; block < kStages - 1; block++) {
    if (block < blocks) {
      fetch(block, block);
      settle(block);
    }
    copies.commit();
  }
  for (Count block = 0; block < blocks; block++) {
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

// The chunk that a row has in a column of the gathered image; `first`: the row's at offset 0. Where
// the image has no such pixel: the chunk `pads` or, if that is null, zeros.
template <class T>
__device__ __forceinline__ Source<T> gathered_source(
    const DenseProblem& p,
    const PixelRow& row,
    const Shift& shift,
    const T* first,
    const T* pads = nullptr) {
  const auto a = load_half(row.gathered);
  const auto b = load_half(row.straight);
  const auto is_within = [](int x, int size) {
    return static_cast<unsigned>(x) < static_cast<unsigned>(size);
  };
  const int* size = p.gathered.size;
  const bool inside = is_within(a.d + shift.d, size[0]) & is_within(a.h + shift.h, size[1]) &
      is_within(b.w + shift.w, size[2]);
  if (pads != nullptr)
    return {inside ? first + a.offset : pads, true};
  return {first + a.offset, inside};
}

// Rows of a block's sums in shared memory are this long: 8 of them begin in different banks.
template <class S>
constexpr int kSumsPitch = S::n + 8;

template <class T, class S, class Sums>
constexpr size_t kGatherBytes = S::m * sizeof(PixelRow) +
    std::max(Stages<T, S, false>::kBytes, S::m* kSumsPitch<S> * sizeof(typename Sums::Sum));

// The pixels of a block's tile, S::m from m0 on.
template <class S>
__device__ __forceinline__ void
make_pixel_rows(const DenseProblem& p, const Geometry& g, int64_t m0, PixelRow* rows) {
  for (int r = threadIdx.x; r < S::m; r += kDenseThreads)
    rows[r] = pixel_row(p, g, m0 + r);
  __syncthreads();
}

// Where the residual of the tile's pixels is, in the place of what is no longer needed: where their
// first taps are.
template <class S>
__device__ __forceinline__ void
find_residual(const DenseProblem& p, const Geometry& g, int64_t m0, PixelRow* rows) {
  for (int r = threadIdx.x; r < S::m; r += kDenseThreads) {
    if (rows[r].straight.inside) {
      rows[r].gathered.offset =
          straight_offset(p, g, pixel_index(g, m0 + r), p.conv.residual_stride);
    }
  }
}

// What a block sums up, of all that there is, in stages of kDepth.
struct StageRange {
  int first, count;
};

template <class T>
__device__ __forceinline__ StageRange all_stages(const DenseProblem& p, const Geometry& g) {
  const int64_t sums = static_cast<int64_t>(g.taps()) * p.padded_channels; // in 32 bits: see fits
  return {0, static_cast<int>((sums + kDepth<T> - 1) / kDepth<T>)};
}

// Forward and data gradient: sums += the product of a block, S::m pixels (`rows`) x S::n channels
// of the straight image from n0 on. `memory`: for the stages, of which none is used in the end.
// `range`: the stages that are summed. `vectors`: the gathered image is read by chunks, else by
// elements. `pads`: see gathered_source.
template <class T, class S, class Sums, bool vectors>
__device__ __forceinline__ void multiply_gathered(
    const DenseProblem& p,
    const Geometry& g,
    const PixelRow* rows,
    int n0,
    StageRange range,
    unsigned char* memory,
    Sums& sums,
    const T* pads = nullptr) {
  const Stages<T, S, false> stages(memory);
  using TileA = OperandTile<T, S::m, false>;
  using TileB = OperandTile<T, S::n, false>;
  Fetch<T, TileA, kGathered<vectors>, !vectors> of_image;
  Fetch<T, TileB, Access::streamed, !vectors> of_weights; // whole chunks always, see dense.cu
  AsyncCopies copies;
  TapChannels at(p, g, int64_t(range.first) * kDepth<T> + of_image.column() * kChunk<T>);
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
        [&](unsigned row) { return gathered_source(p, rows[row], shift, first, pads); });
    const T* of_tap = weights + at.weights_offset(p, g);
    of_weights.fetch(copies, stages.b(slot), 1, kChunk<T>, [&](unsigned row) {
      return Source<T>{
          of_tap + row * p.weights_channel_stride,
          at.inside && static_cast<int>(row) < channels_left};
    });
    at.advance(p, g, kDepth<T>);
  };
  pipeline(
      range.count,
      copies,
      fetch,
      [&](int slot) { of_image.settle(stages.a(slot)); },
      [&](int slot) { sums.multiply(stages.a(slot), stages.b(slot)); });
}

} // namespace torch_dnnl::cuda
