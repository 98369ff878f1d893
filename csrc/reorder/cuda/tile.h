// The tiles of a box whose elements are next to each other in one direction in the source and in
// another one in the destination: which part of each axis they have, and where its elements are in
// shared memory.
//
// A tile has a *run*, innermost axes of the source that are one stretch of its memory, and rows of
// it along the other axes. Runs are long enough for whole cache lines, and so are the stretches of
// the destination's memory that a tile has. In shared memory it lies as in the source.
#pragma once

#include <algorithm>

#include "core/cuda/divide.h"
#include "reorder/cuda/alignment.h"
#include "reorder/cuda/kernels.h"

namespace torch_dnnl::reorder_cuda {

constexpr int kTiledAxes = 4; // along which a tile has more than one element, at most

struct TileAxis {
  uint32_t extent, tile;
  bool in_run;
  cuda::Divisor tiles;            // along the axis
  cuda::Divisor inside;           // coordinates within a tile
  uint32_t shared;                // bytes in shared memory
  int64_t stride[boxes::kArrays]; // of src and dst in bytes
};

// The first axis is the innermost one of the destination, whose elements go in packs.
struct TileBox {
  int axes, tiled;
  TileAxis axis[kMaxAxes]; // those that are tiled first
  int64_t offset[boxes::kArrays];
  int64_t step[boxes::kArrays]; // of the elements of a pack
  // Source to shared memory, by vectors.
  int run_end;         // the last axis of the run
  uint32_t run_stride; // elements of the run per step of that axis
  uint32_t run_elements;
  int vector_bytes;
  int64_t vector_stride; // in the source, bytes
  uint32_t vectors;      // of all rows
  cuda::Divisor run_vectors;
  // Shared memory to destination, by packs; those of a line of memory go first.
  uint32_t pack_shared; // bytes from one to the next
  uint32_t packs, line_packs;
  cuda::Divisor line;
};

class TilePlanner {
 public:
  // `pack`: elements of the destination.
  TilePlanner(
      const boxes::Box& box,
      const void* src,
      int64_t src_size,
      int64_t dst_size,
      int64_t pack)
      : box_(box),
        src_(src),
        src_size_(src_size),
        dst_size_(dst_size),
        pack_(pack),
        last_(static_cast<int>(box_.axes.size()) - 1),
        tile_(box_.axes.size(), 1),
        in_run_(box_.axes.size(), false) {
    choose_run();
    choose_lines();
    fill();
  }

  TileBox plan() {
    TileBox result{};
    order_axes(result);
    place(result);
    choose_vectors(result);
    count_packs(result);
    return result;
  }

  uint32_t blocks() const {
    uint32_t product = 1;
    for (int a = 0; a <= last_; a++) {
      product *= static_cast<uint32_t>(tiles(a));
    }
    return product;
  }

  // Bytes of shared memory.
  uint32_t shared_bytes() const {
    return shared_bytes_;
  }

 private:
  static constexpr int64_t kLine = 128;        // bytes that the memory likes to be asked for
  static constexpr int64_t kBytes = 16 * 1024; // of a tile
  static constexpr int64_t kFewestBytes = 2 * 1024;
  static constexpr int64_t kBlocks = 1024; // keep every multiprocessor busy
  static constexpr int64_t kBanks = 128;   // bytes of shared memory that are accessed at once

  static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
  }

  int64_t extent(int a) const {
    return box_.axes[a].extent;
  }
  int64_t stride(int a, boxes::Array array) const {
    return box_.axes[a].stride[array];
  }
  int64_t tiles(int a) const {
    return (extent(a) + tile_[a] - 1) / tile_[a];
  }
  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t tile : tile_) {
      product *= tile;
    }
    return product;
  }
  int tiled() const {
    return static_cast<int>(
        std::count_if(tile_.begin(), tile_.end(), [](int64_t tile) { return tile > 1; }));
  }
  bool may_tile(int a) const {
    return a == last_ || tile_[a] > 1 || tiled() + (tile_[last_] == 1) < kTiledAxes;
  }

  // Whole packs along the innermost axis.
  int64_t possible_tile(int a, int64_t wish) const {
    if (a == last_) {
      wish = round_up(wish, pack_);
    }
    return std::min(extent(a), wish);
  }

  // The axes that follow each other in the source, until a line is full.
  void choose_run() {
    c10::SmallVector<int, kMaxAxes> order;
    for (int a = last_; a >= 0; a--) {
      if (stride(a, boxes::kSrc) > 0) {
        order.push_back(a);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return stride(a, boxes::kSrc) < stride(b, boxes::kSrc);
    });
    for (const int a : order) {
      const int64_t bytes = run_ * src_size_;
      const bool is_next = run_axes_.empty() || stride(a, boxes::kSrc) == run_step_ * run_;
      // As rows, if they are aligned, the packs' axis has its columns in different banks.
      const bool makes_rows = a == last_ && !run_axes_.empty() && bytes % cuda::kWidestAccess == 0;
      if (!is_next || bytes >= kLine || makes_rows || !may_tile(a)) {
        break;
      }
      if (run_axes_.empty()) {
        run_step_ = stride(a, boxes::kSrc);
      }
      tile_[a] = possible_tile(a, (kLine / src_size_ + run_ - 1) / run_);
      in_run_[a] = true;
      run_axes_.push_back(a);
      run_stride_ = run_;
      run_ *= tile_[a];
      if (tile_[a] < extent(a)) {
        break;
      }
    }
  }

  bool may_grow(int a) const {
    return tile_[a] < extent(a) && (!in_run_[a] || a == run_axes_.back()) && may_tile(a);
  }

  void grow(int a, int64_t wish) {
    tile_[a] = std::max(tile_[a], possible_tile(a, wish));
    if (in_run_[a]) {
      run_ = run_stride_ * tile_[a];
    }
  }

  // The axes that follow each other in the destination, until a line is full.
  void choose_lines() {
    int64_t together = 1;
    for (int a = last_; a >= 0 && together * dst_size_ < kLine; a--) {
      if (stride(a, boxes::kDst) != together) {
        break;
      }
      if (may_grow(a)) {
        grow(a, (kLine / dst_size_ + together - 1) / together);
      }
      together *= tile_[a];
      if (tile_[a] < extent(a)) {
        break;
      }
    }
  }

  // Makes the tile as large as a block can use: longer runs first, then more rows.
  void fill() {
    const int64_t wanted = std::clamp(box_.elements() * src_size_ / kBlocks, kFewestBytes, kBytes);
    const auto grow_to_fill = [&](int a, int64_t multiple) {
      const int64_t others = elements() / tile_[a] * src_size_;
      const int64_t wish = wanted / others / multiple * multiple;
      if (may_grow(a) && wish > tile_[a]) {
        grow(a, wish);
      }
    };
    if (!run_axes_.empty()) {
      grow_to_fill(run_axes_.back(), std::max<int64_t>(16, pack_));
    }
    for (int a = last_; a >= 0; a--) {
      grow_to_fill(a, a == last_ ? line_packs() * pack_ : 1);
    }
  }

  // Packs of the innermost axis that a warp stores next to each other.
  int64_t line_packs() const {
    const int64_t of_tile = (tile_[last_] + pack_ - 1) / pack_;
    return std::min(of_tile, std::min<int64_t>(kLine / (pack_ * dst_size_), 16));
  }

  // The innermost axis, the other tiled ones, the rest; each from the inside out.
  void order_axes(TileBox& result) {
    order_.push_back(last_);
    for (const bool tiled : {true, false}) {
      for (int a = last_ - 1; a >= 0; a--) {
        if ((tile_[a] > 1) == tiled) {
          order_.push_back(a);
        }
      }
      result.tiled = tiled ? static_cast<int>(order_.size()) : result.tiled;
    }
    result.axes = last_ + 1;
    for (int i = 0; i <= last_; i++) {
      const int a = order_[i];
      TileAxis& axis = result.axis[i];
      axis.extent = static_cast<uint32_t>(extent(a));
      axis.tile = static_cast<uint32_t>(tile_[a]);
      axis.in_run = in_run_[a];
      axis.tiles = cuda::Divisor(tiles(a));
      axis.inside = cuda::Divisor(tile_[a]);
      for (int array = 0; array < boxes::kArrays; array++) {
        axis.stride[array] = in_bytes(array, box_.axes[a].stride[array]);
      }
    }
    for (int array = 0; array < boxes::kArrays; array++) {
      result.offset[array] = in_bytes(array, box_.offset[array]);
      result.step[array] = box_.axes[last_].stride[array];
    }
  }

  int64_t in_bytes(int array, int64_t elements) const {
    return array == boxes::kSrc ? elements * src_size_
        : array == boxes::kDst  ? elements * dst_size_
                                : elements;
  }

  // In shared memory rows begin at multiples of 16 bytes. Those of the innermost axis of the
  // destination have a gap after each pack, so that what the threads of a warp gather together,
  // a line's packs from a few neighbouring columns, is in different banks.
  void place(TileBox& result) {
    for (int i = 0; i < result.tiled; i++) {
      int64_t inner = 1;
      for (const int a : run_axes_) {
        if (a == order_[i]) {
          result.axis[i].shared = static_cast<uint32_t>(inner * src_size_);
        }
        inner *= tile_[a];
      }
    }
    int64_t next = round_up(run_ * src_size_, cuda::kWidestAccess);
    TileAxis& packed = result.axis[0];
    if (packed.in_run) {
      result.pack_shared = static_cast<uint32_t>(pack_ * packed.shared);
      next += result.pack_shared; // the last pack may reach beyond the run
    } else {
      packed.shared = static_cast<uint32_t>(next);
      int64_t bytes = pack_ * next;
      const int64_t bank = round_up(kBanks / line_packs(), cuda::kWidestAccess) % kBanks;
      while (bytes % kBanks != bank) {
        bytes += cuda::kWidestAccess;
      }
      result.pack_shared = static_cast<uint32_t>(bytes);
      next = (tile_[last_] + pack_ - 1) / pack_ * bytes;
    }
    next = round_up(next, cuda::kWidestAccess);
    for (int i = 1; i < result.tiled; i++) {
      if (!result.axis[i].in_run) {
        result.axis[i].shared = static_cast<uint32_t>(next);
        next *= result.axis[i].tile;
      }
    }
    shared_bytes_ = static_cast<uint32_t>(next);
  }

  void choose_vectors(TileBox& result) {
    Alignment alignment(run_axes_.empty() || run_step_ != 1 ? src_size_ : cuda::kWidestAccess);
    alignment.add(src_);
    alignment.add(box_.offset[boxes::kSrc] * src_size_);
    int64_t rows = 1;
    for (int a = 0; a <= last_; a++) {
      const int64_t bytes = stride(a, boxes::kSrc) * src_size_;
      if (tile_[a] < extent(a)) {
        alignment.add(bytes * tile_[a]);
      }
      if (tile_[a] > 1 && !in_run_[a]) {
        alignment.add(bytes);
        rows *= tile_[a];
      }
    }
    result.vector_bytes = std::max<int>(alignment.bytes(), static_cast<int>(src_size_));
    const int64_t width = result.vector_bytes / src_size_, vectors = (run_ + width - 1) / width;
    result.vector_stride = width * run_step_ * src_size_;
    result.run_vectors = cuda::Divisor(vectors);
    result.vectors = static_cast<uint32_t>(rows * vectors);
    result.run_stride = static_cast<uint32_t>(run_stride_);
    result.run_elements = static_cast<uint32_t>(run_);
    result.run_end = -1;
    for (int i = 0; i < result.tiled; i++) {
      if (!run_axes_.empty() && order_[i] == run_axes_.back()) {
        result.run_end = i;
      }
    }
  }

  void count_packs(TileBox& result) {
    const int64_t line = line_packs(), of_tile = (tile_[last_] + pack_ - 1) / pack_;
    result.line_packs = static_cast<uint32_t>(line);
    result.line = cuda::Divisor(line);
    result.packs = static_cast<uint32_t>(round_up(of_tile, line) * (elements() / tile_[last_]));
  }

  const boxes::Box& box_;
  const void* src_;
  const int64_t src_size_, dst_size_, pack_;
  const int last_; // the innermost axis of the destination
  c10::SmallVector<int64_t, kMaxAxes> tile_;
  c10::SmallVector<bool, kMaxAxes> in_run_;
  c10::SmallVector<int, kMaxAxes> run_axes_, order_;
  int64_t run_ = 1, run_step_ = 1, run_stride_ = 1;
  uint32_t shared_bytes_ = 0;
};

} // namespace torch_dnnl::reorder_cuda
