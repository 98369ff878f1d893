// Backward weights of the direct kernel.
#include <algorithm>
#include <optional>

#include "conv/cpu/direct/operands.h"
#include "conv/cpu/direct/row_copies.h"
#include "conv/cpu/direct/tile_inputs.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/gradient_tiles.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/problems/canonical.h"
#include "conv/cpu/shared/reduce.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kFewChannels = 8;      // as many and more fill the rows of a product
constexpr int64_t kTaskSums = 64 * 1024; // stay in cache
constexpr int64_t kTasks = 32;           // enough for the threads to share
constexpr int64_t kTilePixels = 128;     // of a product
constexpr int64_t kChunkPixels = 512;    // that make up for adding sums of chunks

// Backward weights: for each tap, src^T dst summed over all pixels. A task computes an output,
// which is some taps of a block of input channels and a panel of output channels, for a chunk of
// the tiles of pixels. The plan, and with it the order of sums, depends on the problem alone: the
// result is the same for any number of threads.
struct WeightsGradientPlan : GradientTiles {
  int64_t taps, block;                   // block: of input channels
  int64_t chunks;                        // of all tiles
  int64_t task_taps, outputs, task_size; // task_size: sums of a task
  // Of few channels, rows of the image are copied: products of one tap would be of few rows.
  std::optional<RowCopiesPlan> copies;
  std::vector<int64_t> pixels; // where the pixels of a tile are in copies
  TileInputsPlan inputs;       // of other images
};

std::optional<RowCopiesPlan>
plan_copies(const ConvProblem& p, const Panels& panels, int64_t tile_width) {
  const bool is_long = p.kernel[2] * p.ic * panels.width > kTaskSums;
  if (p.ic >= kFewChannels || product(p.kernel) == 1 || is_long)
    return {};
  const bool is_joined = p.dst_stride[3] == p.dst_size[2] * p.dst_stride[4];
  const int64_t rows = is_joined ? std::max<int64_t>(kPixels / p.dst_size[2], 1) : 1;
  const int64_t depth = kTaskSums / panels.width;
  return plan_row_copies(p, tile_width, rows, depth, /*lanes_are_pixels=*/false);
}

WeightsGradientPlan plan_weights_gradient(const ConvProblem& p, const Panels& panels) {
  const int64_t* out = p.dst_size;
  WeightsGradientPlan o{};
  o.taps = product(p.kernel);
  o.block = std::min(p.ic, kChannels);
  o.width_tiles = ceil_div(out[2], kPixels);
  o.tile_width = ceil_div(out[2], o.width_tiles);
  o.copies = plan_copies(p, panels, o.tile_width);

  // Taps share gradients that are packed; but of few pixels, threads get taps as tasks.
  const int64_t blocks = p.groups * panels.count * ceil_div(p.ic, o.block);
  const int64_t pixel_chunks = std::max<int64_t>(p.n * product(out) / kChunkPixels, 1);
  if (o.copies) {
    o.task_taps = o.copies->product_taps;
  } else {
    const int64_t most = std::clamp<int64_t>(kTaskSums / (o.block * panels.width), 1, o.taps);
    const int64_t tasks = blocks * ceil_div(o.taps, most) * pixel_chunks;
    const int64_t taps = std::max<int64_t>(tasks < kTasks ? most * tasks / kTasks : most, 1);
    o.task_taps = ceil_div(o.taps, ceil_div(o.taps, taps));
  }
  o.outputs = blocks * ceil_div(o.taps, o.task_taps);
  o.task_size = o.task_taps * o.block * panels.width;
  const int64_t most_chunks = std::max<int64_t>(std::min(kTasks / o.outputs, pixel_chunks), 1);

  // Rows share the sums that a product loads and stores, but there are tiles for all chunks.
  if (o.copies) {
    o.tile_rows = o.copies->band_rows;
  } else {
    const int64_t tiles = p.n * out[0] * out[1] * o.width_tiles;
    const int64_t most = std::min({kTilePixels / o.tile_width, tiles / most_chunks, out[1]});
    o.tile_rows = most <= 1 ? 1 : ceil_div(out[1], ceil_div(out[1], most));
  }
  o.row_tiles = ceil_div(out[1], o.tile_rows);
  o.tiles = p.n * out[0] * o.row_tiles * o.width_tiles;
  o.chunks = std::min(most_chunks, std::max<int64_t>(o.tiles, 1));
  for (int64_t row = 0; row < o.tile_rows && o.copies; row++)
    for (int64_t x = 0; x < o.tile_width; x++)
      o.pixels.push_back(row * o.copies->result_row_step + x * o.copies->result_pixel_step);
  if (!o.copies)
    o.inputs = plan_tile_inputs(p, o, o.block);
  return o;
}

// What a task, or one task for each chunk, computes.
struct Output {
  int64_t group, panel;
  Range channels, taps;
};

Output output_of(const ConvProblem& p, const WeightsGradientPlan& plan, int64_t panels, int64_t i) {
  Digits digits{i};
  Output output;
  const int64_t tap_tasks = ceil_div(plan.taps, plan.task_taps);
  output.taps = nth_range(digits.next(tap_tasks), plan.task_taps, plan.taps);
  output.channels = nth_range(digits.next(ceil_div(p.ic, plan.block)), plan.block, p.ic);
  output.panel = digits.next(panels);
  output.group = digits.rest;
  return output;
}

template <class T>
class WeightsGradient {
  using C = compute_t<T>;

 public:
  WeightsGradient(const ConvProblem& p, const Panels& panels, const WeightsGradientPlan& plan)
      : p_(p), panels_(panels), plan_(plan) {}

  void run() const {
    const int64_t pixels = plan_.tile_rows * plan_.tile_width; // of a tile
    const int64_t copies = plan_.copies ? plan_.copies->size() : 0;
    const auto output = [&](int64_t i) { return output_of(p_, plan_, panels_.count, i); };
    sum_in_chunks<C>(
        {plan_.outputs, plan_.chunks, plan_.task_size, plan_.tiles * pixels * plan_.task_size},
        [&] {
          return Workspace{
              Scratch<C>(pixels * panels_.width), Scratch<C>(copies), {p_, plan_.inputs}};
        },
        [&](Workspace& own, int64_t i, int64_t chunk, C* sums) {
          accumulate(output(i), chunk, sums, own);
        },
        [&](int64_t i, const C* sums) { store(output(i), sums); });
  }

 private:
  struct Workspace {
    Scratch<C> grads, copies;
    TileInputs<T> inputs;
  };

  void accumulate(const Output& o, int64_t chunk, C* sums, Workspace& own) const {
    std::fill(sums, sums + plan_.task_size, C(0));
    const int64_t* xs = p_.src_stride;
    const int64_t end = plan_.tiles * (chunk + 1) / plan_.chunks;
    for (int64_t i = plan_.tiles * chunk / plan_.chunks; i < end; i++) {
      const GradientTile tile = tile_of(p_, plan_, i);
      const Grads grads = load_grads(o, tile, own.grads.data());
      const T* image = static_cast<const T*>(p_.src) + tile.n * xs[0] +
          (o.group * p_.ic + o.channels.begin) * xs[1];
      if (plan_.copies) {
        const RowCopies<T> copies{p_, *plan_.copies};
        const int64_t h = tile.rows.begin, x = tile.pixels.begin;
        copies.copy(image, tile.d, h, x, o.taps.begin, o.taps.count(), own.copies.data());
        // A row of the product for each tap and channel.
        gemm<C, Listed, Listed, Strided>(
            o.taps.count() * o.channels.count(),
            panels_.vectors(o.panel),
            tile.rows.count() * tile.pixels.count(),
            {{own.copies.data(), copies.plan.terms.data(), plan_.pixels.data()},
             {grads.data, {grads.pixel}},
             {sums, panels_.width, kLanes<C>},
             {sums, panels_.width}});
      } else {
        own.inputs.select_tile(tile, image, o.channels.count());
        multiply_taps(o, tile, own.inputs, grads, sums);
      }
    }
  }

  // Gradients of a tile's pixels: vectors of channels, and their distances.
  struct Grads {
    const C* data;
    int64_t row, pixel;
  };

  // Vectors are whole: as they lie, or copied with zeros behind the last channel.
  Grads load_grads(const Output& o, const GradientTile& tile, C* to) const {
    const int64_t *stride = p_.dst_stride, channels = panels_.size(o.panel), width = panels_.width;
    const T* from = static_cast<const T*>(p_.dst) + tile.n * stride[0] +
        (o.group * p_.oc + o.panel * width) * stride[1] + tile.d * stride[2] +
        tile.rows.begin * stride[3] + tile.pixels.begin * stride[4];
    if constexpr (std::is_same_v<T, C>) {
      if (stride[1] == 1 && channels % kLanes<C> == 0)
        return {from, stride[3], stride[4]};
    }
    const int64_t rows = tile.rows.count(), columns = tile.pixels.count(), row = columns * width;
    const bool is_joined = stride[3] == columns * stride[4];
    const int64_t lines = is_joined ? 1 : rows, pixels = rows * columns / lines;
    for (int64_t line = 0; line < lines; line++) {
      load_pixels<C, T>(
          {from + line * stride[3], channels, pixels, stride[1], stride[4]},
          {to + line * row, kLanes<C>, width});
    }
    return {to, row, width};
  }

  // A product for each tap, of the pixels that it meets.
  void multiply_taps(
      const Output& o,
      const GradientTile& tile,
      TileInputs<T>& inputs,
      const Grads& grads,
      C* sums) const {
    const GatherImages images{p_};
    int64_t image_at[kTilePixels], grads_at[kTilePixels];
    const int64_t channels = o.channels.count();
    for (int64_t t = 0; t < o.taps.count(); t++) {
      Digits digits{o.taps.begin + t};
      const int64_t kw = digits.next(p_.kernel[2]), kh = digits.next(p_.kernel[1]);
      const Segment d = images.segment(0, digits.rest, tile.d, tile.d + 1);
      const Segment h = images.segment(1, kh, tile.rows.begin, tile.rows.end);
      const Segment w = images.segment(2, kw, tile.pixels.begin, tile.pixels.end);
      if (d.count <= 0 || h.count <= 0 || w.count <= 0)
        continue;
      inputs.select_tap(digits.rest, d, h, w);
      const Block<C> a = inputs.row(0);
      for (int64_t row = 0, i = 0; row < h.count; row++) {
        const Block<C> line = inputs.row(row);
        const int64_t grads_row = (h.out - tile.rows.begin + row) * grads.row;
        for (int64_t x = 0; x < w.count; x++, i++) {
          image_at[i] = line.data - a.data + x * line.pixel_stride;
          grads_at[i] = grads_row + (w.out - tile.pixels.begin + x) * grads.pixel;
        }
      }
      C* const of_tap = sums + t * plan_.block * panels_.width;
      gemm<C, Strided, Listed, Listed>(
          channels,
          panels_.vectors(o.panel),
          h.count * w.count,
          {{a.data, {a.channel_stride}, image_at},
           {grads.data, grads_at},
           {of_tap, panels_.width, kLanes<C>},
           {of_tap, panels_.width}});
    }
  }

  void store(const Output& o, const C* sums) const {
    const int64_t* ws = p_.weights_stride;
    T* const first = static_cast<T*>(p_.out) + o.group * p_.weights_group +
        o.panel * panels_.width * ws[0] + o.channels.begin * ws[1];
    for (int64_t t = 0; t < o.taps.count(); t++) {
      Digits digits{o.taps.begin + t};
      const int64_t kw = digits.next(p_.kernel[2]), kh = digits.next(p_.kernel[1]);
      T* to = first + digits.rest * ws[2] + kh * ws[3] + kw * ws[4];
      store_pixels(
          LaneRun<const C>{sums + t * plan_.block * panels_.width, kLanes<C>, panels_.width},
          ImageRun<T>{to, panels_.size(o.panel), o.channels.count(), ws[0], ws[1]});
    }
  }

  const ConvProblem& p_;
  const Panels& panels_;
  const WeightsGradientPlan& plan_;
};

} // namespace

void blocked_weights_gradient(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    // Vectors of whichever channels fill them better.
    const auto lanes = [](int64_t channels, int64_t rows) {
      return round_up(channels, kLanes<compute_t<T>>) * rows;
    };
    const bool is_better = can_exchange(p) && 4 * lanes(p.oc, p.ic) > 5 * lanes(p.ic, p.oc);
    const ConvProblem q = is_better ? exchanged(p) : p;
    const Panels panels{q.oc, kLanes<compute_t<T>>};
    WeightsGradient<T>(q, panels, plan_weights_gradient(q, panels)).run();
  });
}

} // namespace torch_dnnl
