// Direct convolution on the CPU: small matrix products over the images as they lie. No image is
// copied; what is copied is weights (into panels) and, where the type or the strides demand it,
// tiles of a few KB.
#include <algorithm>

#include "conv/cpu/direct/blocked_tiles.h"
#include "conv/cpu/direct/weights.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/kernels.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// So many panels use inputs that it is worth to copy them.
constexpr int64_t kManyPanels = 4;

struct Tile {
  int64_t group;
  Range panels, rows, pixels; // pixels: of each row
};

Tile tile_of(const BlockedShape& s, const BlockedTiles& t, int64_t task) {
  Digits digits{task};
  Tile tile;
  tile.pixels = nth_range(digits.next(t.width_tiles), t.width, s.row_pixels);
  tile.rows = nth_range(digits.next(t.row_tiles), t.rows, s.rows);
  tile.panels = nth_range(digits.next(t.panel_tiles), t.panels, s.steps.panels.count);
  tile.group = digits.rest;
  return tile;
}

// The inputs of a row of a tile that meet a tap, and where their sums begin.
template <class C>
struct InputRow {
  Block<C> inputs;
  int64_t sums;
};

// Each output row gathers products of input rows with the weights of a tap.
template <class T>
class Blocked : GatherImages {
  using C = compute_t<T>;

 public:
  Blocked(const BlockedShape& shape, const BlockedTiles& tiles)
      : GatherImages(shape.images), shape_(shape), tiles_(tiles) {}

  void run() {
    const int64_t tasks = p.groups * tiles_.panel_tiles * tiles_.pixel_tiles();
    const int64_t steps = weights_.steps().count;
    if (shape_.are_packed) {
      weights_.pack_all();
      return compute_tasks({0, tasks}, {0, steps}, nullptr);
    }
    const int64_t pixel_tiles = tiles_.pixel_tiles(), at_once = tiles_.tasks_at_once;
    const Scratch<C> sums(at_once * sums_of_task());
    const auto panel_of = [&](int64_t panel_task) {
      return panel_task / tiles_.panel_tiles * panels_.count +
          panel_task % tiles_.panel_tiles * tiles_.panels;
    };
    for (Range some{}; some.end < tasks;) {
      const int64_t panel_task = some.end / pixel_tiles;
      const int64_t most = at_once < pixel_tiles ? (panel_task + 1) * pixel_tiles : tasks;
      some = {some.end, std::min(some.end + at_once, most)};
      const Range panels{panel_of(panel_task), panel_of(ceil_div(some.end, pixel_tiles))};
      for (Range part{}; part.end < steps;) {
        part = weights_.pack_some(panels, part.end, kMostWeights);
        compute_tasks(some, part, sums.data());
      }
    }
  }

 private:
  int64_t sums_of_task() const {
    return tiles_.panels * tiles_.pixels() * panels_.width;
  }

  // Some steps of tasks: pixels of panels, the groups' in one series. Between the first steps and
  // the last ones their sums are in `waiting`; if these are all steps, it is null.
  void compute_tasks(Range tasks, Range steps, C* waiting) const {
    const int64_t operations = sums_of_task() * weights_.steps().block(0) * steps.count();
    parallel_tasks(tasks.count(), operations, [&](int64_t begin, int64_t end) {
      const Scratch<C> own(waiting == nullptr ? sums_of_task() : 0);
      const Scratch<C> inputs(tiles_.pixels() * kDirectDepth);
      for (int64_t task = begin; task < end; task++) {
        const Tile tile = tile_of(shape_, tiles_, tasks.begin + task);
        C* sums = waiting == nullptr ? own.data() : waiting + task * sums_of_task();
        const int64_t panel_size = tile.rows.count() * tile.pixels.count() * panels_.width;
        if (steps.begin == 0)
          initialise(tile, sums, panel_size);
        for (int64_t step = steps.begin; step < steps.end; step++)
          add(tile, step, sums, panel_size, inputs.data());
        if (steps.end == weights_.steps().count)
          store(tile, sums);
      }
    });
  }

  void initialise(const Tile& tile, C* sums, int64_t panel_size) const {
    for (int64_t panel = tile.panels.begin; panel < tile.panels.end; panel++) {
      const C* bias = bias_.at(tile.group, panel * panels_.width);
      for (int64_t at = 0; at < panel_size; at += panels_.width)
        sums = std::copy_n(bias, panels_.width, sums);
    }
  }

  // The products of a block of input channels with a tap.
  void add(const Tile& tile, int64_t step, C* sums, int64_t panel_size, C* widened) const {
    Digits digits{step};
    const int64_t kw = digits.next(p.kernel[2]), kh = digits.next(p.kernel[1]);
    const int64_t kd = digits.next(p.kernel[0]), channel = digits.rest * kDirectDepth;
    const int64_t block = std::min(kDirectDepth, in_channels - channel);
    const Segment w = segment(2, kw, tile.pixels.begin, tile.pixels.end);
    if (w.count <= 0)
      return;
    InputRow<C> rows[kPixels];
    int64_t count = 0;
    for (int64_t row = 0; row < tile.rows.count(); row++) {
      const auto [n, d, h] = row_at(tile.rows.begin + row);
      const Segment sd = segment(0, kd, d, d + 1), sh = segment(1, kh, h, h + 1);
      if (sd.count <= 0 || sh.count <= 0)
        continue;
      const T* from = input<T>(n, tile.group) + channel * in_stride[1] + sd.in * in_stride[2] +
          sh.in * in_stride[3] + w.in * in_stride[4];
      const ImageRun<const T> run{from, block, w.count, in_stride[1], w.in_step * in_stride[4]};
      C* to = widened + count * w.count * block;
      rows[count++] = {
          tile.panels.count() < kManyPanels ? load_block(run, to) : copy_block(run, to),
          (row * tile.pixels.count() + w.out - tile.pixels.begin) * panels_.width};
    }
    const int64_t to_step = w.out_step * panels_.width;
    // Weights stay in the first-level cache for all rows.
    for (int64_t panel = tile.panels.begin; panel < tile.panels.end; panel++, sums += panel_size) {
      const C* weights = weights_.at(tile.group, panel, step);
      for (int64_t row = 0; row < count; row++) {
        const auto& [a, sums_at] = rows[row];
        gemm<C>(
            w.count,
            panels_.vectors(panel),
            block,
            {{a.data, {a.pixel_stride}, {a.channel_stride}},
             {weights, {panels_.width}},
             {sums + sums_at, to_step, kLanes<C>},
             {sums + sums_at, to_step}});
      }
    }
  }

  void store(const Tile& tile, const C* sums) const {
    const int64_t first = tile.pixels.begin, pixels = tile.pixels.count();
    for (int64_t panel = tile.panels.begin; panel < tile.panels.end; panel++) {
      const int64_t channel = tile.group * panels_.channels + panel * panels_.width;
      const int64_t channels = panels_.size(panel);
      for (int64_t row = tile.rows.begin; row < tile.rows.end; row++) {
        const auto [n, d, h] = row_at(row);
        epilogue_.store_pixels(
            sums, kLanes<C>, panels_.width, {n, channel, d, h, first, channels, pixels});
        sums += pixels * panels_.width;
      }
    }
  }

  // Rows of all images are one axis.
  struct RowAt {
    int64_t n, d, h;
  };
  RowAt row_at(int64_t row) const {
    Digits digits{row};
    const int64_t h = digits.next(out_size[1]), d = digits.next(out_size[0]);
    return {digits.rest, d, h};
  }

  const BlockedShape& shape_;
  const BlockedTiles& tiles_;
  const Epilogue<T> epilogue_{p};
  DirectWeights<T> weights_{*this};
  const Panels panels_ = weights_.steps().panels;
  const Bias<T> bias_{p, panels_.count * panels_.width};
};

} // namespace

void run_blocked(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights)
    return blocked_weights_gradient(p);
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    const GatherImages images{p};
    const DirectSteps steps{images, sizeof(compute_t<T>)};
    const BlockedShape shape{images, steps, at::get_num_threads()};
    Blocked<T>(shape, choose_tiles(shape)).run();
  });
}

} // namespace torch_dnnl
