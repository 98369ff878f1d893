#include "conv/cpu/direct/blocked.h"

#include <algorithm>
#include <limits>

#include "conv/cpu/direct/weights.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/roles.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// So many panels use inputs that it is worth to copy them.
constexpr int64_t kManyPanels = 4, kMostPanels = 8;
// Of a tile: more would share weights hardly better, and take more than the second-level cache.
constexpr int64_t kMostPixels = 512;
// Bytes of weights that are packed at once, and of the sums that wait for the next ones. Weights
// are packed again for other sums, so these take more; weights that take no more are packed all at
// once.
constexpr int64_t kMostWeights = int64_t(5) << 19, kMostSums = int64_t(5) << 20;
// In the time in which weights are read, products with so many pixels are computed: if the weights
// are in the second-level cache, or not. Inputs take so much of the time of a panel. Weights are
// packed in the time of so many pixels, and of so many more over the taps that are packed at once,
// if that is not all.
constexpr double kReadingCached = 2, kReading = 10, kCopying = 0.1, kPacking = 50, kPart = 3200;
constexpr int64_t kCached = int64_t(1) << 19; // bytes

// Forward and backward data are one computation: each output row gathers products
// of input rows with the weights of a tap. They differ in which of src and dst is
// the output, and so in the steps from one pixel of a segment to the next.
template <class T>
class Gather : Roles {
  using C = compute_t<T>;

 public:
  explicit Gather(const ConvProblem& p)
      : Roles(p),
        epilogue_(p),
        panels_(out_channels_),
        taps_(product(p.kernel)),
        in_step_(forward_ ? p.stride[2] : 1),
        out_step_(forward_ ? 1 : p.stride[2]),
        tile_width_(ceil_div(out_size_[2], ceil_div(out_size_[2], kPixels))),
        width_tiles_(ceil_div(out_size_[2], tile_width_)),
        rows_(p.n * out_size_[0] * out_size_[1]),
        weights_(p) {}

  void run() {
    const bool are_packed = weights_.pack_all(kMostSums);
    choose_tiles(are_packed);
    const int64_t tasks = p_.groups * panel_tasks() * pixel_tasks();
    if (are_packed)
      return compute_tasks({0, tasks}, {0, weights_.steps()}, nullptr);
    const Scratch<C> sums(tasks_at_once_ * sums_of_task());
    const auto panel_of = [&](int64_t panel_task) {
      return panel_task / panel_tasks() * panels_.count +
          panel_task % panel_tasks() * panels_per_task_;
    };
    for (Range some{}; some.end < tasks;) {
      const int64_t panel_task = some.end / pixel_tasks();
      const int64_t most =
          tasks_at_once_ < pixel_tasks() ? (panel_task + 1) * pixel_tasks() : tasks;
      some = {some.end, std::min(some.end + tasks_at_once_, most)};
      const Range panels{panel_of(panel_task), panel_of(ceil_div(some.end, pixel_tasks()))};
      for (Range steps{}; steps.end < weights_.steps();) {
        steps = weights_.pack_some(panels, steps.end, kMostWeights);
        compute_tasks(some, steps, sums.data());
      }
    }
  }

 private:
  int64_t row_tiles() const {
    return ceil_div(rows_, tile_rows_);
  }
  int64_t pixel_tasks() const {
    return row_tiles() * width_tiles_;
  }
  int64_t panel_tasks() const { // of a group
    return ceil_div(panels_.count, panels_per_task_);
  }
  int64_t sums_of_task() const {
    return panels_per_task_ * tile_rows_ * tile_width_ * panels_.width;
  }

  // Some steps of tasks: pixels of panels, the groups' in one series. Between the first steps and
  // the last ones their sums are in `waiting`; if these are all steps, it is null.
  void compute_tasks(Range tasks, Range steps, C* waiting) const {
    const int64_t block = std::min(kDirectDepth, in_channels_);
    const int64_t operations = sums_of_task() * block * (steps.end - steps.begin);
    parallel_tasks(tasks.end - tasks.begin, operations, [&](int64_t begin, int64_t end) {
      const Scratch<C> own(waiting == nullptr ? sums_of_task() : 0);
      const Scratch<C> inputs(tile_rows_ * tile_width_ * kDirectDepth);
      for (int64_t task = begin; task < end; task++) {
        Digits digits{tasks.begin + task};
        Tile tile;
        tile.x = digits.next(width_tiles_) * tile_width_;
        tile.width = std::min(tile_width_, out_size_[2] - tile.x);
        tile.row = digits.next(row_tiles()) * tile_rows_;
        tile.rows = std::min(tile_rows_, rows_ - tile.row);
        tile.panel = digits.next(panel_tasks()) * panels_per_task_;
        tile.panels = std::min(panels_per_task_, panels_.count - tile.panel);
        tile.group = digits.rest;
        C* sums = waiting == nullptr ? own.data() : waiting + task * sums_of_task();
        compute(tile, steps, sums, inputs.data());
      }
    });
  }

  // Rows of all images are one axis.
  struct Tile {
    int64_t group, panel, panels, row, rows, x, width;
  };
  struct RowAt {
    int64_t n, d, h;
  };

  RowAt row_at(int64_t row) const {
    Digits digits{row};
    const int64_t h = digits.next(out_size_[1]), d = digits.next(out_size_[0]);
    return {digits.rest, d, h};
  }

  // As many as have sums that fit, and weights of a block of input channels that do, but no fewer
  // than threads where so many share panels: all tasks of some panels, or equal parts of them.
  int64_t choose_tasks_at_once(int64_t panels, int64_t pixels, int64_t pixel_tasks) const {
    const int64_t threads = at::get_num_threads();
    const int64_t sums = panels * pixels * panels_.width * int64_t(sizeof(C));
    const int64_t tasks = std::max(kMostSums / sums, threads);
    if (tasks < pixel_tasks)
      return ceil_div(pixel_tasks, ceil_div(pixel_tasks, tasks));
    const int64_t weights = panels * taps_ * weights_.step_bytes();
    const int64_t panel_tasks = std::max(kMostWeights / weights, ceil_div(threads, pixel_tasks));
    return std::min(tasks / pixel_tasks, panel_tasks) * pixel_tasks;
  }

  // Rows share weights that are in the cache, panels share inputs, and pixels those that are packed
  // at once; but threads get equal tasks. What is chosen changes no sum.
  void choose_tiles(bool are_packed) {
    const int64_t threads = at::get_num_threads();
    const int64_t bytes = panels_.count * panels_.width * in_channels_ * taps_ * int64_t(sizeof(C));
    const int64_t pixels_of_input = forward_ ? 1 : product(p_.stride); // one of them meets a tap
    const double reading = bytes > kCached ? kReading : kReadingCached;
    double least = std::numeric_limits<double>::infinity();
    for (int64_t most = kPixels / tile_width_; most <= kPixels; most *= 2) {
      const int64_t row_tiles = ceil_div(rows_, most), rows = ceil_div(rows_, row_tiles);
      const int64_t pixels = rows * tile_width_, pixel_tasks = row_tiles * width_tiles_;
      if (pixels > kMostPixels && rows > 1)
        continue;
      for (int64_t parts = 1; parts <= panels_.count; parts++) {
        const int64_t panels = ceil_div(panels_.count, parts);
        if (panels > kMostPanels)
          continue;
        const int64_t tasks = p_.groups * parts * pixel_tasks;
        const int64_t at_once =
            are_packed ? tasks : std::min(choose_tasks_at_once(panels, pixels, pixel_tasks), tasks);
        // Tasks that are cut into those at once, and in how many rounds they are computed.
        const int64_t series = at_once < pixel_tasks ? pixel_tasks : tasks;
        const int64_t rounds = tasks / series *
            (series / at_once * ceil_div(at_once, threads) + ceil_div(series % at_once, threads));
        double time = rounds * panels * pixels * (1 + reading / pixels + kCopying / panels);
        if (!are_packed) {
          const int64_t packed = p_.groups * panels_.count * ceil_div(pixel_tasks, at_once);
          const int64_t step_bytes =
              ceil_div(at_once, pixel_tasks) * panels * weights_.step_bytes();
          const double taps = std::max(double(kMostWeights) / step_bytes, 1.0);
          const double packing = kPacking + (taps < taps_ ? kPart / taps : 0);
          time += packed * packing * pixels_of_input / threads;
        }
        if (time < least) {
          least = time;
          tile_rows_ = rows;
          panels_per_task_ = panels;
          tasks_at_once_ = at_once;
        }
      }
    }
  }

  Segment segment(int axis, int64_t tap, int64_t begin, int64_t end) const {
    return forward_ ? segment_of_dst(p_, axis, tap, begin, end)
                    : segment_of_src(p_, axis, tap, begin, end);
  }
  int64_t in(const Segment& s) const {
    return forward_ ? s.src : s.dst;
  }
  int64_t out(const Segment& s) const {
    return forward_ ? s.dst : s.src;
  }

  void compute(const Tile& tile, Range steps, C* sums, C* inputs) const {
    const int64_t panel_size = tile.rows * tile.width * panels_.width;
    if (steps.begin == 0)
      initialise(tile, sums, panel_size);
    for (int64_t step = steps.begin; step < steps.end; step++)
      add(tile, step, sums, panel_size, inputs);
    if (steps.end == weights_.steps())
      store(tile, sums, panel_size);
  }

  // The products of a block of input channels with a tap.
  void add(const Tile& tile, int64_t step, C* sums, int64_t panel_size, C* widened) const {
    Digits digits{step};
    const int64_t kw = digits.next(p_.kernel[2]), kh = digits.next(p_.kernel[1]);
    const int64_t kd = digits.next(p_.kernel[0]), channel = digits.rest * kDirectDepth;
    const int64_t block = std::min(kDirectDepth, in_channels_ - channel);
    const Segment w = segment(2, kw, tile.x, tile.x + tile.width);
    if (w.count <= 0)
      return;
    struct Row {
      Block<C> inputs;
      int64_t sums;
    };
    Row rows[kPixels];
    int64_t count = 0;
    for (int64_t row = 0; row < tile.rows; row++) {
      const auto [n, d, h] = row_at(tile.row + row);
      const Segment sd = segment(0, kd, d, d + 1), sh = segment(1, kh, h, h + 1);
      if (sd.count <= 0 || sh.count <= 0)
        continue;
      const T* from = input<T>(n, tile.group) + channel * in_stride_[1] + in(sd) * in_stride_[2] +
          in(sh) * in_stride_[3] + in(w) * in_stride_[4];
      C* buffer = widened + count * w.count * block;
      rows[count++] = {
          tile.panels < kManyPanels
              ? load_block(from, w.count, in_step_ * in_stride_[4], block, in_stride_[1], buffer)
              : pack_block(from, w.count, block, buffer),
          (row * tile.width + out(w) - tile.x) * panels_.width};
    }
    // Weights stay in the first-level cache for all rows.
    for (int64_t i = 0; i < tile.panels; i++) {
      const int64_t panel = tile.panel + i;
      const C* weights = weights_.at(tile.group, panel, step);
      for (int64_t row = 0; row < count; row++) {
        const auto& [a, sums_at] = rows[row];
        gemm<C>(
            w.count,
            panels_.vectors(panel),
            block,
            {a.data,
             a.pixel_stride,
             a.channel_stride,
             weights,
             panels_.width,
             sums + i * panel_size + sums_at,
             out_step_ * panels_.width});
      }
    }
  }

  // Next to each other for many uses, pixels of a row of any step: [pixel][channel].
  Block<C> pack_block(const T* from, int64_t pixels, int64_t channels, C* to) const {
    const int64_t pixel_step = in_step_ * in_stride_[4];
    if (in_stride_[1] == 1) {
      for (int64_t x = 0; x < pixels; x++)
        widen(from + x * pixel_step, channels, to + x * channels);
      return {to, channels, 1};
    }
    for (int64_t c = 0; c < channels; c++) {
      const T* line = from + c * in_stride_[1];
      C* row = to + c * pixels;
      if (pixel_step == 1) {
        widen(line, pixels, row);
      } else {
        for (int64_t x = 0; x < pixels; x++)
          row[x] = static_cast<C>(line[x * pixel_step]);
      }
    }
    return {to, 1, pixels};
  }

  void initialise(const Tile& tile, C* sums, int64_t panel_size) const {
    if (p_.bias == nullptr) {
      std::fill(sums, sums + tile.panels * panel_size, C(0));
      return;
    }
    for (int64_t i = 0; i < tile.panels; i++) {
      C* panel = sums + i * panel_size;
      const int64_t first = (tile.panel + i) * panels_.width;
      const T* bias =
          static_cast<const T*>(p_.bias) + (tile.group * p_.oc + first) * p_.bias_stride;
      const int64_t size = panels_.size(tile.panel + i);
      for (int64_t c = 0; c < panels_.width; c++) {
        panel[c] = c < size ? static_cast<C>(bias[c * p_.bias_stride]) : C(0);
      }
      for (int64_t at = panels_.width; at < panel_size; at += panels_.width) {
        std::copy(panel, panel + panels_.width, panel + at);
      }
    }
  }

  void store(const Tile& tile, const C* sums, int64_t panel_size) const {
    for (int64_t i = 0; i < tile.panels; i++) {
      const int64_t channel = tile.group * panels_.channels + (tile.panel + i) * panels_.width;
      for (int64_t row = 0; row < tile.rows; row++) {
        const auto [n, d, h] = row_at(tile.row + row);
        const C* rows = sums + i * panel_size + row * tile.width * panels_.width;
        const int64_t channels = panels_.size(tile.panel + i);
        if (!epilogue_.is_empty()) {
          epilogue_.store_pixels(
              rows, kLanes<C>, panels_.width, {n, channel, d, h, tile.x, channels, tile.width});
          continue;
        }
        T* to = static_cast<T*>(p_.out) + n * out_stride_[0] + channel * out_stride_[1] +
            d * out_stride_[2] + h * out_stride_[3] + tile.x * out_stride_[4];
        store_rows(rows, panels_.width, tile.width, channels, to, out_stride_[4], out_stride_[1]);
      }
    }
  }

  const Epilogue<T> epilogue_;
  const Panels<C> panels_;
  const int64_t taps_, in_step_, out_step_, tile_width_, width_tiles_, rows_;
  int64_t tile_rows_ = 1, panels_per_task_ = 1, tasks_at_once_ = 1;
  DirectWeights<T> weights_;
};

} // namespace

void run_blocked(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights) {
    return run_weights_gradient(p);
  }
  dispatch(
      FloatingTypes{}, p.dtype, [&](auto tag) { Gather<typename decltype(tag)::type>(p).run(); });
}

} // namespace torch_dnnl
