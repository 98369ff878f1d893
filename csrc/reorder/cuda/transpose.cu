// Reorders that transpose: the elements that are next to each other in the source are not those of
// the destination. A block moves a tile (tile.h) through shared memory: its runs of the source come
// in by accesses of up to 16 bytes, unchanged; then each thread gathers a pack of the destination's
// neighbours, computes with it and stores 16 bytes. Tiles cover whole lines of memory on both
// sides. An element takes one narrow access to shared memory, whose banks do not collide: a third
// of what shared memory can do in the time that the device's memory needs for two bytes per
// element.
#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "reorder/cuda/pack.h"
#include "reorder/cuda/tile.h"

namespace torch_dnnl::reorder_cuda {
namespace {

using boxes::Axis;
using boxes::Box;

constexpr int kThreads = 256;
constexpr int kLoads = 4; // of a thread that are under way together

template <class Pack>
struct TilePlan {
  typename Pack::Args args;
  TileBox box;
};

template <class Pack>
class TileOfBlock {
 public:
  __device__ __forceinline__ TileOfBlock(const typename Pack::Args& args, const TileBox& box)
      : args_(args), box_(box), begin_(box.offset), run_(box.run_elements) {
    uint32_t tile = blockIdx.x;
#pragma unroll
    for (int a = 0; a < kTiledAxes; a++) {
      left_[a] = 1;
      if (a < box.tiled) {
        const uint32_t first = next_tile(a, tile) * box.axis[a].tile;
        const uint32_t left = min(box.axis[a].tile, box.axis[a].extent - first);
        left_[a] = left;
        run_ = a == box.run_end ? box.run_stride * left : run_;
        advance(begin_, a, first);
      }
    }
    for (int a = box.tiled; a < box.axes; a++)
      advance(begin_, a, next_tile(a, tile));
  }

  __device__ __forceinline__ void load(char* shared) const {
    with_bytes(box_.vector_bytes, [&](auto bytes) {
      load_vectors<bytes.value>(run_ * args_.src_size, shared);
    });
  }

  __device__ __forceinline__ void store_pack(uint32_t index, const char* shared) const {
    PackPosition position{begin_, &box_.step};
    uint32_t pack_index = box_.line.split(index);
    bool inside = true;
    uint32_t from = 0;
#pragma unroll
    for (int a = 1; a < kTiledAxes; a++) {
      if (a < box_.tiled) {
        const uint32_t coordinate = box_.axis[a].inside.split(index);
        inside &= coordinate < left_[a];
        from += coordinate * box_.axis[a].shared;
        advance(position.at, a, coordinate);
      }
    }
    pack_index += index * box_.line_packs;
    const uint32_t first = pack_index * Pack::kElements;
    if (!inside || first >= left_[0])
      return;
    from += pack_index * box_.pack_shared;
    advance(position.at, 0, first);
    const int count =
        static_cast<int>(min(static_cast<uint32_t>(Pack::kElements), left_[0] - first));
    Pack pack;
    pack.gather(shared + from, box_.axis[0].shared, args_.src_dtype);
    pack.compute(args_, position, count);
    pack.store(args_.dst + position.at[kDst], args_.dst_dtype, count);
  }

 private:
  // The coordinate of axis `a` in the number of a tile, of which it is taken away.
  __device__ __forceinline__ uint32_t next_tile(int a, uint32_t& tile) const {
    return a + 1 < box_.axes ? box_.axis[a].tiles.split(tile) : tile;
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
  __device__ __forceinline__ Vector vector(uint32_t index, uint32_t run) const {
    const uint32_t i = box_.run_vectors.split(index);
    Vector v{args_.src + begin_[kSrc] + i * box_.vector_stride, i * width, 0};
    bool inside = i * width < run;
#pragma unroll
    for (int a = 0; a < kTiledAxes; a++) {
      if (a < box_.tiled && !box_.axis[a].in_run) {
        const uint32_t coordinate = box_.axis[a].inside.split(index);
        inside &= coordinate < left_[a];
        v.from += coordinate * box_.axis[a].stride[kSrc];
        v.to += a == 0 ? coordinate / Pack::kElements * box_.pack_shared +
                coordinate % Pack::kElements * box_.axis[a].shared
                       : coordinate * box_.axis[a].shared;
      }
    }
    v.bytes = inside ? min(static_cast<uint32_t>(width), run - i * width) : 0;
    return v;
  }

  template <int width>
  __device__ __forceinline__ void load_vectors(uint32_t run, char* shared) const {
    for (uint32_t first = threadIdx.x; first < box_.vectors; first += kThreads * kLoads) {
      Bytes<width> data[kLoads];
      Vector v[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; k++) {
        const uint32_t index = first + k * kThreads;
        v[k].bytes = 0;
        if (index < box_.vectors)
          v[k] = vector<width>(index, run);
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
  Offsets begin_;
  uint32_t left_[kTiledAxes]; // of the tile within the box; not indexed at run time
  uint32_t run_;              // elements of a run within the box
};

template <class Pack>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(const __grid_constant__ TilePlan<Pack> plan) {
  char* shared = cuda::dynamic_shared<char>();
  const TileOfBlock<Pack> tile(plan.args, plan.box);
  tile.load(shared);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < plan.box.packs; i += kThreads)
    tile.store_pack(i, shared);
}

template <class Pack>
void launch_tiles(const ReorderProblem& p, const Box& box) {
  const typename Pack::Args args(p);
  const TileBox tiles = plan_tiles({box, p.src, args.src_size, args.dst_size, Pack::kElements});
  const TilePlan<Pack> plan{args, tiles};
  cuda::launch(tile_kernel<Pack>, dim3(tiles.blocks), dim3(kThreads), tiles.shared_bytes, plan);
}

// Runs the widest of these packs that the destination's alignment allows.
template <template <class, int> class Pack, class T, int... widths>
void launch_widest(const ReorderProblem& p, const Box& box) {
  const int size = static_cast<int>(c10::elementSize(p.dst_dtype));
  const int most = Alignment(box, kDst, p.dst, size).bytes() / size;
  with_widest<widths...>(most, [&](auto width) { launch_tiles<Pack<T, width.value>>(p, box); });
}

} // namespace

// Where a sector of the source has several elements, and the destination's neighbours are not among
// them.
bool needs_transpose(const ReorderProblem& p, const Box& box) {
  constexpr int64_t kSector = 32;
  const int64_t size = c10::elementSize(p.src_dtype);
  const auto& axes = box.axes;
  const int64_t inner = axes.back().stride[kSrc];
  return !box.is_padding && inner > 1 && std::any_of(axes.begin(), axes.end(), [&](const Axis& a) {
    return a.stride[kSrc] > 0 && a.stride[kSrc] < inner && a.stride[kSrc] * size < kSector;
  });
}

void run_transpose(const ReorderProblem& p, const Box& box) {
  if (!p.is_move()) {
    if (p.compute_dtype == c10::kDouble)
      launch_widest<ConvertedPack, double, 4, 2, 1>(p, box);
    else if (p.compute_dtype == c10::kLong)
      launch_widest<ConvertedPack, int32_t, 16, 4, 1>(p, box);
    else
      launch_widest<ConvertedPack, float, 16, 8, 4, 1>(p, box);
    return;
  }
  switch (c10::elementSize(p.dst_dtype)) {
    case 8:
      return launch_widest<MovedPack, uint64_t, 2, 1>(p, box);
    case 4:
      return launch_widest<MovedPack, uint32_t, 4, 1>(p, box);
    case 2:
      return launch_widest<MovedPack, uint16_t, 8, 2, 1>(p, box);
    default:
      return launch_widest<MovedPack, uint8_t, 16, 4, 1>(p, box);
  }
}

} // namespace torch_dnnl::reorder_cuda
