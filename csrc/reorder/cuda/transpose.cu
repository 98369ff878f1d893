// Reorders that transpose: the elements that are next to each other in the source are not those of
// the destination. A block moves a tile (tile.h) through shared memory: its runs of the source come
// in by accesses of up to 16 bytes, unchanged; then each thread gathers a pack of the destination's
// neighbours, computes with it and stores 16 bytes. Tiles cover whole lines of memory on both
// sides. An element takes one narrow access to shared memory, whose banks do not collide: a third
// of what shared memory can do in the time that the device's memory needs for two bytes per
// element.
//
// A launch covers a few boxes of a group (box_group.h). A block finds its box once; what it does
// for an element is the same in all of them. Padding has blocks of its own, before the others.
#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "reorder/cuda/pack.h"
#include "reorder/cuda/tile.h"

namespace torch_dnnl::reorder_cuda {
namespace {

using boxes::Axis;
using boxes::BoxGroup;

constexpr int kThreads = 256;
constexpr int kLoads = 4;     // of a thread that are under way together
constexpr int kMostGrids = 4; // of a launch: two dimensions with whole blocks and another one

template <class Pack>
struct TilePlan {
  typename Pack::Args args;
  TileBox box;
  TileGrid grid[kMostGrids];
  uint32_t padded_blocks; // of the tiles that have padding, the first ones

  // Without a branch: so a warp is seen to have one grid, and what belongs to it costs no registers
  // of the threads.
  __device__ __forceinline__ const TileGrid& grid_of(uint32_t block) const {
    int before = 0;
#pragma unroll
    for (int i = 1; i < kMostGrids; i++)
      before += block >= grid[i].begin;
    return grid[before];
  }
};

// Zeros elements [begin, end) of a pack.
__device__ __forceinline__ void
zero(char* pack, uint32_t begin, uint32_t end, uint32_t elements, int element_size) {
  const auto zero_bytes = [](char* to, int bytes) {
    with_bytes(bytes, [&](auto size) { *reinterpret_cast<Bytes<size.value>*>(to) = {}; });
  };
  if (begin == 0 && end == elements)
    return zero_bytes(pack, elements * element_size);
  for (uint32_t i = begin; i < end; i++)
    zero_bytes(pack + i * element_size, element_size);
}

template <class Pack>
class TileOfBlock {
 public:
  __device__ __forceinline__ TileOfBlock(const TilePlan<Pack>& plan, uint32_t block)
      : args_(plan.args),
        box_(plan.box),
        grid_(plan.grid_of(block)),
        tile_(block - grid_.begin),
        begin_(grid_.offset),
        run_(plan.args.src_size) {
    const auto tiled = [&](int a, uint32_t first) {
      left_[a] = min(box_.axis[a].tile, grid_.axis[a].filled - min(first, grid_.axis[a].filled));
      run_ += (left_[a] - 1) * box_.axis[a].run_shared;
      is_empty_ |= left_[a] == 0;
      advance(begin_, a, first);
    };
    grid_.split_tile(box_, tile_, tiled, [&](int a, uint32_t coordinate) {
      is_empty_ |= coordinate >= grid_.axis[a].filled;
      advance(begin_, a, coordinate);
    });
  }

  // Whether all is padding.
  __device__ __forceinline__ bool is_empty() const {
    return is_empty_;
  }

  __device__ __forceinline__ void zero_padding() const {
    uint32_t whole[kTiledAxes] = {1, 1, 1, 1};
    const auto tiled = [&](int a, uint32_t first) {
      whole[a] = min(box_.axis[a].tile, grid_.axis[a].extent - first);
    };
    grid_.split_tile(box_, tile_, tiled, [](int, uint32_t) {});
    for (uint32_t i = threadIdx.x; i < box_.packs; i += kThreads)
      zero_pack(i, whole);
  }

  __device__ __forceinline__ void load(char* shared) const {
    with_bytes(box_.vector_bytes, [&](auto bytes) { load_vectors<bytes.value>(shared); });
  }

  __device__ __forceinline__ void store_pack(uint32_t index, const char* shared) const {
    PackPosition position{begin_, &box_.step};
    bool inside = true;
    uint32_t from = 0;
    const uint32_t pack_index = box_.split_pack(index, [&](int a, uint32_t coordinate) {
      inside &= coordinate < left_[a];
      from += coordinate * box_.axis[a].shared;
      advance(position.at, a, coordinate);
    });
    const uint32_t first = pack_index * kPack;
    if (!inside || first >= left_[0])
      return;
    from += pack_index * box_.pack_shared;
    advance(position.at, 0, first);
    const int count = static_cast<int>(min(kPack, left_[0] - first));
    Pack pack;
    pack.gather(shared + from, box_.axis[0].shared, args_.src_dtype);
    pack.compute(args_, position, count);
    pack.store(args_.dst + position.at[kDst], args_.dst_dtype, count);
  }

 private:
  static constexpr uint32_t kPack = Pack::kElements;

  // What a pack has that is in the `whole` tile, but not left in it.
  __device__ __forceinline__ void
  zero_pack(uint32_t index, const uint32_t (&whole)[kTiledAxes]) const {
    char* to = args_.dst + begin_[kDst];
    bool inside = true, has_elements = !is_empty_;
    const uint32_t pack_index = box_.split_pack(index, [&](int a, uint32_t coordinate) {
      inside &= coordinate < whole[a];
      has_elements &= coordinate < left_[a];
      to += coordinate * box_.axis[a].stride[kDst];
    });
    const uint32_t first = pack_index * kPack;
    if (!inside || first >= whole[0])
      return;
    to += first * box_.axis[0].stride[kDst];
    const uint32_t end = min(kPack, whole[0] - first);
    const uint32_t begin = has_elements ? min(end, left_[0] - min(first, left_[0])) : 0;
    zero(to, begin, end, kPack, args_.dst_size);
  }

  __device__ __forceinline__ void advance(Offsets& at, int a, uint32_t count) const {
    add_steps(at, count, box_.axis[a].stride, args_.has_tensors);
  }

  // A vector of a run, and where it goes.
  struct Vector {
    const char* from;
    uint32_t to, bytes; // none: beyond the tile
  };

  template <int width>
  __device__ __forceinline__ Vector vector(uint32_t index) const {
    const uint32_t i = box_.run_vectors.split(index);
    Vector v{args_.src + begin_[kSrc] + i * box_.vector_stride, i * width, 0};
    bool inside = i * width < run_;
#pragma unroll
    for (int a = 0; a < kTiledAxes; a++) {
      if (a < box_.tiled && !box_.axis[a].in_run) {
        const uint32_t coordinate = box_.axis[a].inside.split(index);
        inside &= coordinate < left_[a];
        v.from += coordinate * box_.axis[a].stride[kSrc];
        v.to += a == 0
            ? coordinate / kPack * box_.pack_shared + coordinate % kPack * box_.axis[a].shared
            : coordinate * box_.axis[a].shared;
      }
    }
    v.bytes = inside ? min(static_cast<uint32_t>(width), run_ - i * width) : 0;
    return v;
  }

  template <int width>
  __device__ __forceinline__ void load_vectors(char* shared) const {
    for (uint32_t first = threadIdx.x; first < box_.vectors; first += kThreads * kLoads) {
      Bytes<width> data[kLoads];
      Vector v[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; k++) {
        const uint32_t index = first + k * kThreads;
        v[k].bytes = 0;
        if (index < box_.vectors)
          v[k] = vector<width>(index);
        if (v[k].bytes == width)
          copy_bytes<width>(&data[k], v[k].from);
      }
#pragma unroll
      for (int k = 0; k < kLoads; k++) {
        if (v[k].bytes == width)
          copy_bytes<width>(shared + v[k].to, &data[k]);
        else
          for (uint32_t i = 0; i < v[k].bytes; i++)
            shared[v[k].to + i] = v[k].from[i];
      }
    }
  }

  const typename Pack::Args& args_;
  const TileBox& box_;
  const TileGrid& grid_;
  uint32_t tile_; // of the grid
  bool is_empty_ = false;
  Offsets begin_;
  uint32_t left_[kTiledAxes] = {1, 1, 1, 1}; // of the tile within the box; not indexed at run time
  uint32_t run_;                             // bytes of a run within the box
};

template <class Pack>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(const __grid_constant__ TilePlan<Pack> plan) {
  char* shared = cuda::dynamic_shared<char>();
  const bool is_padding = blockIdx.x < plan.padded_blocks;
  const TileOfBlock<Pack> tile(plan, blockIdx.x - (is_padding ? 0 : plan.padded_blocks));
  if (is_padding)
    return tile.zero_padding();
  if (tile.is_empty())
    return;
  tile.load(shared);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < plan.box.packs; i += kThreads)
    tile.store_pack(i, shared);
}

template <class Pack>
void launch_tiles(const ReorderProblem& p, const BoxGroup& boxes) {
  const typename Pack::Args args(p);
  const Tiles tiles = plan_tiles({boxes, p.src, args.src_size, args.dst_size, Pack::kElements});
  for (c10::ArrayRef<TileGrid> rest = tiles.grids; !rest.empty();) {
    TilePlan<Pack> plan{args, tiles.box};
    uint32_t blocks = 0;
    for (TileGrid& grid : plan.grid) {
      grid.begin = UINT32_MAX;
      if (rest.empty())
        continue;
      grid = rest.front();
      grid.begin = blocks;
      blocks += grid.blocks;
      plan.padded_blocks += grid.is_padded ? grid.blocks : 0;
      rest = rest.slice(1);
    }
    const dim3 all(plan.padded_blocks + blocks);
    cuda::launch(tile_kernel<Pack>, all, dim3(kThreads), tiles.box.shared_bytes, plan);
  }
}

// Runs the widest of these packs that the destination's alignment allows.
template <template <class, int> class Pack, class T, int... widths>
void launch_widest(const ReorderProblem& p, const BoxGroup& boxes) {
  const int size = static_cast<int>(c10::elementSize(p.dst_dtype));
  Alignment alignment(boxes::Box{boxes.axes}, kDst, p.dst, size);
  for (const BoxGroup::Member& box : boxes.members)
    alignment.add(box.offset[kDst] * size);
  const int most = alignment.bytes() / size;
  with_widest<widths...>(most, [&](auto width) { launch_tiles<Pack<T, width.value>>(p, boxes); });
}

} // namespace

// Where a sector of the source has several elements, and the destination's neighbours are not among
// them.
bool needs_transpose(const ReorderProblem& p, const boxes::Axes& axes) {
  constexpr int64_t kSector = 32;
  const int64_t size = c10::elementSize(p.src_dtype);
  const int64_t inner = axes.back().stride[kSrc];
  return inner > 1 && std::any_of(axes.begin(), axes.end(), [&](const Axis& a) {
           return a.stride[kSrc] > 0 && a.stride[kSrc] < inner && a.stride[kSrc] * size < kSector;
         });
}

void run_tiles(const ReorderProblem& p, const BoxGroup& boxes) {
  if (!p.is_move()) {
    if (p.compute_dtype == c10::kDouble)
      launch_widest<ConvertedPack, double, 4, 2, 1>(p, boxes);
    else if (p.compute_dtype == c10::kLong)
      launch_widest<ConvertedPack, int32_t, 16, 4, 1>(p, boxes);
    else
      launch_widest<ConvertedPack, float, 16, 8, 4, 1>(p, boxes);
    return;
  }
  switch (c10::elementSize(p.dst_dtype)) {
    case 8:
      return launch_widest<MovedPack, uint64_t, 2, 1>(p, boxes);
    case 4:
      return launch_widest<MovedPack, uint32_t, 4, 1>(p, boxes);
    case 2:
      return launch_widest<MovedPack, uint16_t, 8, 2, 1>(p, boxes);
    default:
      return launch_widest<MovedPack, uint8_t, 16, 4, 1>(p, boxes);
  }
}

} // namespace torch_dnnl::reorder_cuda
