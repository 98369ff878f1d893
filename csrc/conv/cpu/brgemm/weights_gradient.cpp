// Backward weights of half types, and of float32, as products through torch's brgemm.
//
// For each tap, the gradients of weights are src^T dst, summed over pixels. The lines of a tile of
// dst follow one another at a pitch that leaves room for the shift of all taps along a line, with
// zeros in it, and those of src lie likewise: so the pixels of all lines are the depth of one
// product, and a tap is where it begins in src. Where strides are not 1, the pixels that belong to
// a tap are those of one rest by the stride; they are kept apart.
#include <algorithm>

#include "conv/cpu/shared/gradient_tiles.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/pixels.h"
#include "conv/cpu/shared/products/channel_lines.h"
#include "conv/cpu/shared/products/products.h"
#include "conv/cpu/shared/reduce.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kTaskSums = 128 * 1024;        // stay in the second-level cache
constexpr int64_t kTaskChannels = 128;           // of src
constexpr int64_t kTilePixels = 256;             // of dst, and of the zeros between lines
constexpr int64_t kTasks = 32;                   // enough for the threads to share
constexpr int64_t kChunkPixels = 1024;           // that make up for adding sums of chunks
constexpr int64_t kMostLines = int64_t(1) << 22; // elements of src that a task holds

// How a task holds the pixels of src that a tile meets along one axis, apart by their rest.
struct RestAxis {
  int64_t rests; // that some tap has
  int64_t reach; // pixels of a rest behind those of the first tap
};

RestAxis rest_axis(const ConvProblem& p, int axis) {
  const int64_t shift = (p.kernel[axis] - 1) * p.dilation[axis];
  return {std::min(p.stride[axis], shift + 1), shift / p.stride[axis]};
}

// What a task, or one task for each chunk, computes.
struct Output {
  int64_t group;
  Range panels, channels, taps;
};

// A task computes an output, which is some taps of some panels of output channels and a block of
// input channels, for a chunk of the tiles. The plan, and with it the order of sums, depends on the
// problem alone.
struct BrgemmWeightsPlan : GradientTiles {
  int64_t taps, task_taps, block, panels, task_panels, outputs, chunks;
  RestAxis rows, pixels;
  int64_t pitch;        // of lines
  int64_t plane, lines; // elements of a channel: of one depth of the kernel, and of all
  int64_t depth;        // of a tile

  int64_t sums() const {
    return task_panels * task_taps * block * kProductColumns;
  }
  // Where those of a panel and a tap are, [input channel][output channel].
  int64_t sums_at(const Output& o, int64_t panel, int64_t tap) const {
    return ((panel - o.panels.begin) * task_taps + tap - o.taps.begin) * block * kProductColumns;
  }
};

BrgemmWeightsPlan plan_weights(const ConvProblem& p) {
  BrgemmWeightsPlan plan{};
  plan.taps = product(p.kernel);
  plan.block = ceil_div(p.ic, ceil_div(p.ic, kTaskChannels));
  plan.panels = ceil_div(p.oc, kProductColumns);
  const int64_t of_tap = plan.block * kProductColumns;
  plan.task_taps = std::clamp<int64_t>(kTaskSums / of_tap, 1, plan.taps);
  plan.task_panels = std::clamp<int64_t>(kTaskSums / (of_tap * plan.task_taps), 1, plan.panels);

  plan.rows = rest_axis(p, 1);
  plan.pixels = rest_axis(p, 2);
  const int64_t width = p.dst_size[2],
                most_width = std::max(kTilePixels - plan.pixels.reach, kTilePixels / 2);
  plan.width_tiles = ceil_div(width, most_width);
  plan.tile_width = ceil_div(width, plan.width_tiles);
  plan.pitch = round_up(plan.tile_width + plan.pixels.reach, 2);
  const int64_t most_rows = std::clamp<int64_t>(kTilePixels / plan.pitch, 1, p.dst_size[1]);
  plan.row_tiles = ceil_div(p.dst_size[1], most_rows);
  plan.tile_rows = ceil_div(p.dst_size[1], plan.row_tiles);
  plan.tiles = p.n * p.dst_size[0] * plan.row_tiles * plan.width_tiles;
  plan.plane =
      plan.rows.rests * plan.pixels.rests * (plan.tile_rows + plan.rows.reach) * plan.pitch;
  // The last line is read beyond its end.
  plan.lines = round_up(p.kernel[0] * plan.plane + plan.pixels.reach, 2);
  plan.depth = plan.tile_rows * plan.pitch;

  plan.outputs = p.groups * ceil_div(plan.panels, plan.task_panels) * ceil_div(p.ic, plan.block) *
      ceil_div(plan.taps, plan.task_taps);
  const int64_t pixel_chunks = p.n * product(p.dst_size) / kChunkPixels;
  plan.chunks = std::clamp<int64_t>(
      std::min(kTasks / plan.outputs, pixel_chunks), 1, std::max<int64_t>(plan.tiles, 1));
  return plan;
}

Output output_of(const ConvProblem& p, const BrgemmWeightsPlan& plan, int64_t i) {
  Digits digits{i};
  Output o;
  o.taps = nth_range(digits.next(ceil_div(plan.taps, plan.task_taps)), plan.task_taps, plan.taps);
  o.channels = nth_range(digits.next(ceil_div(p.ic, plan.block)), plan.block, p.ic);
  o.panels = nth_range(
      digits.next(ceil_div(plan.panels, plan.task_panels)), plan.task_panels, plan.panels);
  o.group = digits.rest;
  return o;
}

int64_t product_columns(const ConvProblem& p, int64_t panel) {
  return std::min(kProductColumns, round_up(p.oc - panel * kProductColumns, kProductLanes));
}

// What the products of a tile take, in memory of a thread.
template <class T>
class TileOperands {
  using Products = ProductsOf<T>;

 public:
  // What lies between lines has to be finite.
  TileOperands(const ConvProblem& p, const BrgemmWeightsPlan& plan) : p_(p), plan_(plan) {
    std::fill_n(src_.data(), plan.block * plan.lines, T(0));
  }

  // Gradients of a tile, as rows of products.
  void load_panels(const Output& o, const GradientTile& tile) const {
    const int64_t* ys = p_.dst_stride;
    const int64_t depth = tile.rows.count() * plan_.pitch;
    for (int64_t panel = o.panels.begin; panel < o.panels.end; panel++) {
      const int64_t first = panel * kProductColumns, columns = product_columns(p_, panel);
      const int64_t channels = std::min(columns, p_.oc - first);
      const T* image = static_cast<const T*>(p_.dst) + tile.n * ys[0] +
          (o.group * p_.oc + first) * ys[1] + tile.d * ys[2];
      for (int64_t row = 0; row < tile.rows.count(); row++) {
        copy_channel_lines<T>(
            {image + (tile.rows.begin + row) * ys[3],
             channels,
             ys[1],
             tile.pixels.begin,
             plan_.pitch,
             /*step=*/1,
             /*size=*/tile.pixels.end,
             ys[4]},
            depth,
            dst_.data() + row * plan_.pitch);
      }
      std::fill_n(dst_.data() + channels * depth, (columns - channels) * depth, T(0));
      interleave_lines<T, Products::kPack>(
          dst_.data(), depth, columns, depth, panels_.data() + panel_at(o, panel));
    }
  }

  // Plane d of src, [channel][rest of rows][rest of pixels][row][pixel].
  void load_plane(const Output& o, const GradientTile& tile, int64_t kd, int64_t d) const {
    const int64_t* xs = p_.src_stride;
    const T* image = static_cast<const T*>(p_.src) + tile.n * xs[0] +
        (o.group * p_.ic + o.channels.begin) * xs[1] + d * xs[2];
    const int64_t rows = tile.rows.count() + plan_.rows.reach;
    for (int64_t h = 0; h < plan_.rows.rests; h++) {
      for (int64_t w = 0; w < plan_.pixels.rests; w++) {
        T* line = src_.data() + kd * plan_.plane + rest_at(h, w);
        for (int64_t row = 0; row < rows; row++, line += plan_.pitch) {
          const int64_t y = (tile.rows.begin + row) * p_.stride[1] + h - p_.pad[1];
          const bool is_inside = y >= 0 && y < p_.src_size[1];
          copy_channel_lines<T>(
              {image + (is_inside ? y * xs[3] : 0),
               o.channels.count(),
               xs[1],
               tile.pixels.begin * p_.stride[2] + w - p_.pad[2],
               plan_.pitch,
               p_.stride[2],
               is_inside ? p_.src_size[2] : 0,
               xs[4]},
              plan_.lines,
              line);
        }
      }
    }
  }

  // Adds the products of a tap, for each panel.
  void multiply(const Output& o, const GradientTile& tile, int64_t tap, float* sums) const {
    Digits digits{tap};
    const int64_t w = digits.next(p_.kernel[2]) * p_.dilation[2];
    const int64_t h = digits.next(p_.kernel[1]) * p_.dilation[1], kd = digits.rest;
    const T* src = src_.data() + kd * plan_.plane + rest_at(h % p_.stride[1], w % p_.stride[2]) +
        h / p_.stride[1] * plan_.pitch + w / p_.stride[2];
    for (int64_t panel = o.panels.begin; panel < o.panels.end; panel++) {
      Products::multiply(
          {o.channels.count(),
           product_columns(p_, panel),
           tile.rows.count() * plan_.pitch,
           plan_.lines,
           kProductColumns,
           src,
           panels_.data() + panel_at(o, panel),
           sums + plan_.sums_at(o, panel, tap),
           /*adds=*/true});
    }
  }

 private:
  int64_t rest_at(int64_t row, int64_t pixel) const {
    return (row * plan_.pixels.rests + pixel) * (plan_.tile_rows + plan_.rows.reach) * plan_.pitch;
  }
  int64_t panel_at(const Output& o, int64_t panel) const {
    return (panel - o.panels.begin) * kProductColumns * plan_.depth;
  }

  const ConvProblem& p_;
  const BrgemmWeightsPlan& plan_;
  const Scratch<T> src_{plan_.block * plan_.lines}, dst_{kProductColumns * plan_.depth};
  const Scratch<T> panels_{plan_.task_panels * kProductColumns * plan_.depth};
};

template <class T>
class BrgemmWeights {
 public:
  BrgemmWeights(const ConvProblem& p, const BrgemmWeightsPlan& plan) : p_(p), plan_(plan) {}

  void run() const {
    const auto output = [&](int64_t i) { return output_of(p_, plan_, i); };
    sum_in_chunks<float>(
        {plan_.outputs, plan_.chunks, plan_.sums(), plan_.tiles * plan_.depth * plan_.sums() / 4},
        [&] { return TileOperands<T>(p_, plan_); },
        [&](const TileOperands<T>& own, int64_t i, int64_t chunk, float* sums) {
          accumulate(output(i), chunk, own, sums);
          ProductsOf<T>::release();
        },
        [&](int64_t i, const float* sums) { store(output(i), sums); });
  }

 private:
  void accumulate(const Output& o, int64_t chunk, const TileOperands<T>& own, float* sums) const {
    std::fill_n(sums, plan_.sums(), 0.0f);
    const int64_t of_plane = p_.kernel[1] * p_.kernel[2]; // taps
    const int64_t end = plan_.tiles * (chunk + 1) / plan_.chunks;
    for (int64_t i = plan_.tiles * chunk / plan_.chunks; i < end; i++) {
      const GradientTile tile = tile_of(p_, plan_, i);
      bool has_panels = false;
      for (int64_t kd = o.taps.begin / of_plane; kd * of_plane < o.taps.end; kd++) {
        const int64_t d = tile.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
        if (d < 0 || d >= p_.src_size[0])
          continue;
        if (!has_panels)
          own.load_panels(o, tile);
        has_panels = true;
        own.load_plane(o, tile, kd, d);
        const int64_t last = std::min(o.taps.end, (kd + 1) * of_plane);
        for (int64_t tap = std::max(o.taps.begin, kd * of_plane); tap < last; tap++)
          own.multiply(o, tile, tap, sums);
      }
    }
  }

  void store(const Output& o, const float* sums) const {
    const int64_t* ws = p_.weights_stride;
    for (int64_t panel = o.panels.begin; panel < o.panels.end; panel++) {
      const int64_t first = panel * kProductColumns;
      for (int64_t tap = o.taps.begin; tap < o.taps.end; tap++) {
        Digits digits{tap};
        const int64_t kw = digits.next(p_.kernel[2]), kh = digits.next(p_.kernel[1]);
        T* const to = static_cast<T*>(p_.out) + o.group * p_.weights_group + first * ws[0] +
            o.channels.begin * ws[1] + digits.rest * ws[2] + kh * ws[3] + kw * ws[4];
        const int64_t channels = std::min(kProductColumns, p_.oc - first);
        store_pixels(
            LaneRun<const float>{
                sums + plan_.sums_at(o, panel, tap), kLanes<float>, kProductColumns},
            ImageRun<T>{to, channels, o.channels.count(), ws[0], ws[1]});
      }
    }
  }

  const ConvProblem& p_;
  const BrgemmWeightsPlan& plan_;
};

} // namespace

bool supports_brgemm_weights(const ConvProblem& p) {
  const BrgemmWeightsPlan plan = plan_weights(p);
  return plan.block * plan.lines <= kMostLines;
}

void brgemm_weights_gradient(const ConvProblem& p) {
  const BrgemmWeightsPlan plan = plan_weights(p);
  dispatch(BrgemmTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    BrgemmWeights<T>(p, plan).run();
  });
}

} // namespace torch_dnnl
