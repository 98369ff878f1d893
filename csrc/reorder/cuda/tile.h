// The tiles of boxes whose elements are next to each other in one direction in the source and in
// another one in the destination: which part of each axis they have, and where its elements are in
// shared memory. Boxes of a group (box_group.h) have the same tiles.
//
// A tile has a *run*, innermost axes of the source that are one stretch of its memory, and rows of
// it along the other axes. Runs are long enough for whole cache lines, and so are the stretches of
// the destination's memory that a tile has. In shared memory it lies as in the source.
#pragma once

#include <algorithm>

#include "core/cuda/divide.h"
#include "core/math.h"
#include "reorder/cuda/box_group.h"
#include "reorder/cuda/pack.h"

namespace torch_dnnl::reorder_cuda {

constexpr int kTiledAxes = 4; // along which a tile has more than one element, at most

struct TileAxis {
  uint32_t tile;
  bool in_run;
  cuda::Divisor inside; // coordinates within a tile
  uint32_t shared;      // bytes in shared memory
  uint32_t run_shared;  // the same in the run, else 0
  Offsets stride;       // of src and dst in bytes
};

// The first axis is the innermost one of the destination, whose elements go in packs.
struct TileBox {
  int axes, tiled;
  TileAxis axis[kMaxAxes]; // those that are tiled first
  Offsets step;            // of the elements of a pack
  // Source to shared memory, by vectors.
  int vector_bytes;
  int64_t vector_stride; // in the source, bytes
  uint32_t vectors;      // of all rows
  cuda::Divisor run_vectors;
  // Shared memory to destination, by packs; those of a line of memory go first.
  uint32_t pack_shared; // bytes from one to the next
  uint32_t packs, line_packs;
  cuda::Divisor line;
  uint32_t shared_bytes;

  // Calls f(a, coordinate) for the tiled axes but the innermost one; returns where pack `index` of
  // a tile is along that one.
  template <class F>
  __device__ __forceinline__ uint32_t split_pack(uint32_t index, const F& f) const {
    const uint32_t in_line = line.split(index);
#pragma unroll
    for (int a = 1; a < kTiledAxes; a++)
      if (a < tiled)
        f(a, axis[a].inside.split(index));
    return in_line + index * line_packs;
  }
};

// The tiles of one box of a group, a block for each.
struct TileGrid {
  struct Axis {
    uint32_t extent, filled; // elements in dst, and those before its padding
    cuda::Divisor tiles;
  };
  Axis axis[kMaxAxes];
  Offsets offset; // of src and dst in bytes
  bool is_padded;
  uint32_t begin, blocks; // of a launch

  // Calls tiled(a, first coordinate) for the tiled axes of a tile, and single(a, coordinate) for
  // the others.
  template <class F, class G>
  __device__ __forceinline__ void
  split_tile(const TileBox& box, uint32_t tile, const F& tiled, const G& single) const {
    const auto next = [&](int a) { return a + 1 < box.axes ? axis[a].tiles.split(tile) : tile; };
#pragma unroll
    for (int a = 0; a < kTiledAxes; a++)
      if (a < box.tiled)
        tiled(a, next(a) * box.axis[a].tile);
    for (int a = box.tiled; a < box.axes; a++)
      single(a, next(a));
  }
};

struct Tiles {
  TileBox box;
  c10::SmallVector<TileGrid, 1> grids; // those that have padding first
};

namespace tile_detail {

constexpr int64_t kLine = 128;        // bytes that the memory likes to be asked for
constexpr int64_t kBytes = 16 * 1024; // of a tile
constexpr int64_t kFewestBytes = 2 * 1024;
constexpr int64_t kBlocks = 1024; // keep every multiprocessor busy
constexpr int64_t kBanks = 128;   // bytes of shared memory that are accessed at once

// What is to be covered by tiles.
struct Source {
  const boxes::BoxGroup& boxes;
  const void* data;
  int64_t src_size, dst_size; // of an element, bytes
  int64_t pack;               // elements of the destination

  // The innermost axis of the destination.
  int last() const {
    return static_cast<int>(boxes.axes.size()) - 1;
  }
  int64_t extent(int a) const {
    return boxes.axes[a].extent;
  }
  int64_t stride(int a, Array array) const {
    return boxes.axes[a].stride[array];
  }
};

// What a tile has of each axis.
struct Shape {
  c10::SmallVector<int64_t, kMaxAxes> tile;
  c10::SmallVector<bool, kMaxAxes> in_run;
  c10::SmallVector<int, kMaxAxes> run_axes; // the innermost in the source first
  int64_t run = 1;                          // elements
  int64_t run_step = 1;                     // from one element of the run to the next
  int64_t run_stride = 1;                   // elements of the run per step of its last axis

  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t extent : tile)
      product *= extent;
    return product;
  }
  int tiled() const {
    return static_cast<int>(
        std::count_if(tile.begin(), tile.end(), [](int64_t extent) { return extent > 1; }));
  }
};

inline bool may_tile(const Source& s, const Shape& shape, int a) {
  return a == s.last() || shape.tile[a] > 1 ||
      shape.tiled() + (shape.tile[s.last()] == 1) < kTiledAxes;
}

inline bool may_grow(const Source& s, const Shape& shape, int a) {
  return shape.tile[a] < s.extent(a) && (!shape.in_run[a] || a == shape.run_axes.back()) &&
      may_tile(s, shape, a);
}

// Whole packs along the innermost axis.
inline int64_t possible_tile(const Source& s, int a, int64_t wish) {
  return std::min(s.extent(a), a == s.last() ? round_up(wish, s.pack) : wish);
}

inline void grow(const Source& s, Shape& shape, int a, int64_t wish) {
  shape.tile[a] = std::max(shape.tile[a], possible_tile(s, a, wish));
  if (shape.in_run[a])
    shape.run = shape.run_stride * shape.tile[a];
}

// Packs of the innermost axis that a warp stores next to each other.
inline int64_t line_packs(const Source& s, const Shape& shape) {
  const int64_t of_tile = ceil_div(shape.tile[s.last()], s.pack);
  return std::min(of_tile, std::min<int64_t>(kLine / (s.pack * s.dst_size), 16));
}

// The axes that follow each other in the source, until a line is full.
inline void choose_run(const Source& s, Shape& shape) {
  c10::SmallVector<int, kMaxAxes> order;
  for (int a = s.last(); a >= 0; a--)
    if (s.stride(a, kSrc) > 0)
      order.push_back(a);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return s.stride(a, kSrc) < s.stride(b, kSrc);
  });
  for (const int a : order) {
    const int64_t bytes = shape.run * s.src_size;
    const bool is_first = shape.run_axes.empty();
    const bool is_next = is_first || s.stride(a, kSrc) == shape.run_step * shape.run;
    // As rows, if they are aligned, the packs' axis has its columns in different banks.
    const bool makes_rows = a == s.last() && !is_first && bytes % cuda::kWidestAccess == 0;
    if (!is_next || bytes >= kLine || makes_rows || !may_tile(s, shape, a))
      break;
    if (is_first)
      shape.run_step = s.stride(a, kSrc);
    shape.tile[a] = possible_tile(s, a, ceil_div(kLine / s.src_size, shape.run));
    shape.in_run[a] = true;
    shape.run_axes.push_back(a);
    shape.run_stride = shape.run;
    shape.run *= shape.tile[a];
    if (shape.tile[a] < s.extent(a))
      break;
  }
}

// The axes that follow each other in the destination, until a line is full.
inline void choose_lines(const Source& s, Shape& shape) {
  int64_t together = 1;
  for (int a = s.last(); a >= 0 && together * s.dst_size < kLine; a--) {
    if (s.stride(a, kDst) != together)
      break;
    if (may_grow(s, shape, a))
      grow(s, shape, a, ceil_div(kLine / s.dst_size, together));
    together *= shape.tile[a];
    if (shape.tile[a] < s.extent(a))
      break;
  }
}

// Makes the tile as large as a block can use, as it lies in shared memory, where rows begin at
// multiples of 16 bytes: longer runs first, then more rows.
inline void fill(const Source& s, Shape& shape) {
  const int64_t wanted =
      std::clamp(s.boxes.most_elements() * s.src_size / kBlocks, kFewestBytes, kBytes);
  const auto grow_to_fill = [&](int a, int64_t multiple) {
    const int64_t run = shape.run * s.src_size;
    const int64_t row = shape.in_run[a] ? run : round_up(run, cuda::kWidestAccess);
    const int64_t others = shape.elements() / shape.run * row / shape.tile[a];
    const int64_t wish = wanted / others / multiple * multiple;
    if (may_grow(s, shape, a) && wish > shape.tile[a])
      grow(s, shape, a, wish);
  };
  if (!shape.run_axes.empty())
    grow_to_fill(shape.run_axes.back(), std::max<int64_t>(16, s.pack));
  for (int a = s.last(); a >= 0; a--)
    grow_to_fill(a, a == s.last() ? line_packs(s, shape) * s.pack : 1);
}

inline Shape choose_shape(const Source& s) {
  Shape shape;
  shape.tile.resize(s.boxes.axes.size(), 1);
  shape.in_run.resize(s.boxes.axes.size(), false);
  choose_run(s, shape);
  choose_lines(s, shape);
  fill(s, shape);
  return shape;
}

using Order = c10::SmallVector<int, kMaxAxes>; // axes of the box

// The innermost axis, the other tiled ones, the rest; each from the inside out.
inline Order order_axes(const Source& s, const Shape& shape) {
  Order order{s.last()};
  for (const bool tiled : {true, false}) {
    for (int a = s.last() - 1; a >= 0; a--)
      if ((shape.tile[a] > 1) == tiled)
        order.push_back(a);
  }
  return order;
}

inline void set_axes(const Source& s, const Shape& shape, const Order& order, TileBox& result) {
  result.axes = static_cast<int>(order.size());
  result.tiled = 1; // the innermost axis, whatever it has
  for (int i = 0; i < result.axes; i++) {
    const int a = order[i];
    result.tiled += i > 0 && shape.tile[a] > 1;
    TileAxis& axis = result.axis[i];
    axis.tile = static_cast<uint32_t>(shape.tile[a]);
    axis.in_run = shape.in_run[a];
    axis.inside = cuda::Divisor(shape.tile[a]);
    axis.stride = in_bytes(s.boxes.axes[a].stride, s.src_size, s.dst_size);
  }
  result.step = s.boxes.axes.back().stride;
}

// Places what a tile has in shared memory; returns its bytes. Rows begin at multiples of 16 bytes.
// Those of the innermost axis of the destination have a gap after each pack, so that what the
// threads of a warp gather together, a line's packs from a few neighbouring columns, is in
// different banks.
inline uint32_t place(const Source& s, const Shape& shape, const Order& order, TileBox& result) {
  for (int i = 0; i < result.tiled; i++) {
    int64_t inner = 1;
    for (const int a : shape.run_axes) {
      if (a == order[i])
        result.axis[i].shared = result.axis[i].run_shared =
            static_cast<uint32_t>(inner * s.src_size);
      inner *= shape.tile[a];
    }
  }
  int64_t next = round_up(shape.run * s.src_size, cuda::kWidestAccess);
  TileAxis& packed = result.axis[0];
  if (packed.in_run) {
    result.pack_shared = static_cast<uint32_t>(s.pack * packed.shared);
    next += result.pack_shared; // the last pack may reach beyond the run
  } else {
    packed.shared = static_cast<uint32_t>(next);
    int64_t bytes = s.pack * next;
    const int64_t bank = round_up(kBanks / line_packs(s, shape), cuda::kWidestAccess) % kBanks;
    while (bytes % kBanks != bank)
      bytes += cuda::kWidestAccess;
    result.pack_shared = static_cast<uint32_t>(bytes);
    next = ceil_div(shape.tile[s.last()], s.pack) * bytes;
  }
  next = round_up(next, cuda::kWidestAccess);
  for (int i = 1; i < result.tiled; i++) {
    if (!result.axis[i].in_run) {
      result.axis[i].shared = static_cast<uint32_t>(next);
      next *= result.axis[i].tile;
    }
  }
  return static_cast<uint32_t>(next);
}

inline void choose_vectors(const Source& s, const Shape& shape, TileBox& result) {
  const bool is_dense = !shape.run_axes.empty() && shape.run_step == 1;
  Alignment alignment(is_dense ? cuda::kWidestAccess : s.src_size);
  alignment.add(s.data);
  for (const boxes::BoxGroup::Member& box : s.boxes.members)
    alignment.add(box.offset[kSrc] * s.src_size);
  int64_t rows = 1;
  for (int a = 0; a <= s.last(); a++) {
    const int64_t bytes = s.stride(a, kSrc) * s.src_size;
    if (shape.tile[a] < s.extent(a))
      alignment.add(bytes * shape.tile[a]);
    if (shape.tile[a] > 1 && !shape.in_run[a]) {
      alignment.add(bytes);
      rows *= shape.tile[a];
    }
  }
  result.vector_bytes = std::max<int>(alignment.bytes(), static_cast<int>(s.src_size));
  const int64_t width = result.vector_bytes / s.src_size, vectors = ceil_div(shape.run, width);
  result.vector_stride = width * shape.run_step * s.src_size;
  result.run_vectors = cuda::Divisor(vectors);
  result.vectors = static_cast<uint32_t>(rows * vectors);
}

inline void count_packs(const Source& s, const Shape& shape, TileBox& result) {
  const int64_t line = line_packs(s, shape), of_tile = ceil_div(shape.tile[s.last()], s.pack);
  const int64_t rows = shape.elements() / shape.tile[s.last()];
  result.line_packs = static_cast<uint32_t>(line);
  result.line = cuda::Divisor(line);
  result.packs = static_cast<uint32_t>(round_up(of_tile, line) * rows);
}

inline TileGrid grid_of(
    const Source& s,
    const Shape& shape,
    const Order& order,
    const boxes::BoxGroup::Member& box) {
  TileGrid grid{};
  grid.offset = in_bytes(box.offset, s.src_size, s.dst_size);
  grid.blocks = 1;
  for (size_t i = 0; i < order.size(); i++) {
    const auto [extent, filled] = box.ranges[order[i]];
    const int64_t tiles = ceil_div(extent, shape.tile[order[i]]);
    grid.axis[i] = {
        static_cast<uint32_t>(extent), static_cast<uint32_t>(filled), cuda::Divisor(tiles)};
    grid.is_padded |= filled < extent;
    grid.blocks *= static_cast<uint32_t>(tiles);
  }
  return grid;
}

} // namespace tile_detail

inline Tiles plan_tiles(const tile_detail::Source& source) {
  using namespace tile_detail;
  const Shape shape = choose_shape(source);
  const Order order = order_axes(source, shape);
  Tiles result{};
  set_axes(source, shape, order, result.box);
  result.box.shared_bytes = place(source, shape, order, result.box);
  choose_vectors(source, shape, result.box);
  count_packs(source, shape, result.box);
  for (const boxes::BoxGroup::Member& box : source.boxes.members)
    result.grids.push_back(grid_of(source, shape, order, box));
  std::stable_partition(
      result.grids.begin(), result.grids.end(), [](auto& grid) { return grid.is_padded; });
  return result;
}

} // namespace torch_dnnl::reorder_cuda
