// Direct convolution on the CPU: small matrix products over the images as they lie. No image is
// copied; what is copied is weights (into panels) and, where the type or the strides demand it,
// tiles of a few KB.
#include <algorithm>
#include <array>
#include <limits>

#include "conv/cpu/direct/operands.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/kernels.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// ---- How work is cut into tiles. What is chosen changes no sum. ----

// Bytes of weights that are packed at once, and of the sums that wait for the next ones. Weights
// are packed again for other sums, so these take more; weights that take no more are packed all at
// once.
constexpr int64_t kMostWeights = int64_t(5) << 19, kMostSums = int64_t(5) << 20;

// Times for a panel in one step (operands.h). Their unit is the time of one pixel: of its products
// with the weights.
//
// To read the weights, from the second-level cache if all weights are there, or from further away.
constexpr double kReadCached = 2, kRead = 10;
constexpr int64_t kCachedBytes = int64_t(1) << 19;
// To read the inputs of a pixel, shared by the panels of a task.
constexpr double kReadPixel = 0.1;
// To pack the weights; and where not all taps are packed at once, shared by those that are.
constexpr double kPack = 50, kPackSomeTaps = 3200;

// Bounds of a task: larger ones would share weights hardly better, and take more than the cache.
constexpr int64_t kMostTaskPanels = 8, kMostTaskPixels = 512;

// A task computes a tile: some pixels of some rows of the result, of some panels of output
// channels. Rows of all images are one axis.
struct BlockedTiles {
  int64_t rows, width, panels;                 // of a tile
  int64_t row_tiles, width_tiles, panel_tiles; // panel_tiles: of a group
  int64_t tasks_at_once;                       // whose sums wait for the next weights

  int64_t pixel_tiles() const {
    return row_tiles * width_tiles;
  }
  int64_t pixels() const {
    return rows * width;
  }
};

// What tiles are chosen for.
struct BlockedShape {
  const GatherImages& images;
  const DirectSteps& steps;
  int64_t threads;
  int64_t rows = images.p.n * images.out_size[0] * images.out_size[1]; // of all images
  int64_t row_pixels = images.out_size[2];
  // Pixels of the result for each of the input: one of them meets a tap.
  int64_t pixels_of_input = images.backward_data ? product(images.p.stride) : 1;
  // All weights at once.
  bool are_packed = images.p.packed != nullptr || steps.groups * steps.group_bytes() <= kMostSums;
};

// As many tasks as have sums that fit, and weights of a block of input channels that do, but no
// fewer than threads where so many share panels: all tasks of some panels, or equal parts of them.
int64_t choose_tasks_at_once(const BlockedShape& s, const BlockedTiles& t) {
  const int64_t all = s.steps.groups * t.panel_tiles * t.pixel_tiles();
  if (s.are_packed)
    return all;
  const int64_t sums = t.panels * t.pixels() * s.steps.panels.width * s.steps.element_size;
  const int64_t tasks = std::max(kMostSums / sums, s.threads);
  if (tasks < t.pixel_tiles())
    return std::min(ceil_div(t.pixel_tiles(), ceil_div(t.pixel_tiles(), tasks)), all);
  const int64_t weights = t.panels * s.steps.taps * s.steps.bytes();
  const int64_t panel_tiles =
      std::max(kMostWeights / weights, ceil_div(s.threads, t.pixel_tiles()));
  return std::min(std::min(tasks / t.pixel_tiles(), panel_tiles) * t.pixel_tiles(), all);
}

// The time that a convolution takes with these tiles, in the unit of the constants above, for each
// step.
double time_of(const BlockedShape& s, const BlockedTiles& t) {
  const DirectSteps& steps = s.steps;
  const int64_t tasks = steps.groups * t.panel_tiles * t.pixel_tiles(), at_once = t.tasks_at_once;
  // Tasks that are cut into those at once, and in how many rounds they are computed.
  const int64_t series = at_once < t.pixel_tiles() ? t.pixel_tiles() : tasks;
  const int64_t rounds = tasks / series *
      (series / at_once * ceil_div(at_once, s.threads) + ceil_div(series % at_once, s.threads));
  const double reading = steps.group_bytes() > kCachedBytes ? kRead : kReadCached;
  const double time =
      rounds * t.panels * t.pixels() * (1 + reading / t.pixels() + kReadPixel / t.panels);
  if (s.are_packed)
    return time;
  const int64_t packed = steps.groups * steps.panels.count * ceil_div(t.pixel_tiles(), at_once);
  const int64_t step_bytes = ceil_div(at_once, t.pixel_tiles()) * t.panels * steps.bytes();
  const double taps = std::max(double(kMostWeights) / step_bytes, 1.0);
  const double packing = kPack + (taps < steps.taps ? kPackSomeTaps / taps : 0);
  return time + packed * packing * s.pixels_of_input / s.threads;
}

// Rows share weights that are in the cache, panels share inputs, and pixels share weights that are
// packed at once; but threads get equal tasks.
BlockedTiles choose_tiles(const BlockedShape& s) {
  BlockedTiles best{}, t{};
  t.width = ceil_div(s.row_pixels, ceil_div(s.row_pixels, kPixels));
  t.width_tiles = ceil_div(s.row_pixels, t.width);
  double least = std::numeric_limits<double>::infinity();
  for (int64_t most = kPixels / t.width; most <= kPixels; most *= 2) {
    t.row_tiles = ceil_div(s.rows, most);
    t.rows = ceil_div(s.rows, t.row_tiles);
    if (t.pixels() > kMostTaskPixels && t.rows > 1)
      continue;
    for (t.panel_tiles = 1; t.panel_tiles <= s.steps.panels.count; t.panel_tiles++) {
      t.panels = ceil_div(s.steps.panels.count, t.panel_tiles);
      if (t.panels > kMostTaskPanels)
        continue;
      t.tasks_at_once = choose_tasks_at_once(s, t);
      const double time = time_of(s, t);
      if (time < least) {
        least = time;
        best = t;
      }
    }
  }
  best.panel_tiles = ceil_div(s.steps.panels.count, best.panels);
  best.row_tiles = ceil_div(s.rows, best.rows);
  return best;
}

// ---- What is computed of them ----

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
    parallel_tasks(tasks.count(), operations, [&](SharedTasks::OfThread mine) {
      const Scratch<C> own(waiting == nullptr ? sums_of_task() : 0);
      const Scratch<C> inputs(tiles_.rows * copied_pixels(tiles_.width) * kDirectDepth);
      for (const int64_t task : mine) {
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

  // Of inputs of a row that meet a tap.
  int64_t copied_pixels(int64_t pixels) const {
    const int64_t step = backward_data ? 1 : p.stride[2];
    return torch_dnnl::copied_pixels(pixels, in_stride[1], step * in_stride[4]);
  }

  void initialise(const Tile& tile, C* sums, int64_t panel_size) const {
    for (int64_t panel = tile.panels.begin; panel < tile.panels.end; panel++) {
      const C* bias = bias_.at(tile.group, panel * panels_.width);
      for (C* const end = sums + panel_size; sums < end; sums += panels_.width)
        for (int64_t i = 0; i < panels_.width; i += kLanes<C>)
          store_vector(sums + i, load_vector(bias + i));
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
      C* to = widened + count * copied_pixels(w.count) * block;
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

  // [n, d, h]: rows of all images are one axis.
  std::array<int64_t, 3> row_at(int64_t row) const {
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

int64_t packed_size(const ConvProblem& p) {
  const GatherImages images{p};
  const DirectSteps steps{
      images, int64_t(p.dtype == c10::kDouble ? sizeof(double) : sizeof(float))};
  return steps.groups * steps.group_bytes();
}

bool pack(const ConvProblem& p, void* to) {
  const GatherImages images{p};
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    DirectWeights<T>(images).pack_all(static_cast<compute_t<T>*>(to));
  });
  return true;
}

} // namespace

const Packing<ConvProblem> direct_packing{packed_size, pack};

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
