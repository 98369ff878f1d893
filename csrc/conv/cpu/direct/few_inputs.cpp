// Results of images with few channels on the CPU: the first layers of networks, and gradients of
// data of the last ones.
//
// A product with the input channels of one tap would be short. So the products of many taps are
// one, whose sums stay in registers. Rows of the image are copied with their pads, a few at a time;
// nothing is copied for each tap: the inputs of a tap are the same rows from another pixel on.
// Vectors are of output channels, or of pixels where these lie next to each other in the result.
// Tasks are pieces of rows of the result.
#include <algorithm>

#include "conv/cpu/direct/operands.h"
#include "conv/cpu/direct/row_copies.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/problems/canonical.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kDepth = 512;     // of a product, about
constexpr int64_t kMostPanels = 8;  // that share copies
constexpr int64_t kMostRows = 4;    // of the result that do
constexpr int64_t kTransposing = 8; // takes as long as so many products of each sum

// What a task computes: a tile, which is a band of rows of the result as wide as `tile_width`, of
// some panels of output channels.
struct FewInputsPlan {
  bool lanes_are_pixels; // or output channels
  int64_t tile_width, width_tiles;
  int64_t bands; // of an image
  int64_t tiles; // of all images, groups and depths
  int64_t panels_per_task, panel_tasks;
  RowCopiesPlan copies;
};

// Of pixels, if these vectors are about as full as those of channels.
bool prefers_lanes_of_pixels(const ConvProblem& p, const Panels& panels) {
  const int64_t pixels = p.dst_size[2], depth = product(p.kernel) * p.ic;
  return p.dst_stride[4] == 1 &&
      7 * round_up(pixels, panels.lanes) * p.oc * depth <=
      8 * pixels * panels.count * panels.width * (depth + kTransposing);
}

FewInputsPlan plan_few_inputs(const ConvProblem& p, const Panels& panels, int64_t threads) {
  const int64_t* out = p.dst_size;
  FewInputsPlan o;
  o.lanes_are_pixels = prefers_lanes_of_pixels(p, panels);
  const int64_t width = ceil_div(out[2], ceil_div(out[2], kPixels));
  o.tile_width = o.lanes_are_pixels ? round_up(width, panels.lanes) : width;
  o.width_tiles = ceil_div(out[2], o.tile_width);
  // Rows share copies, but threads get tasks too.
  const int64_t rows = p.n * p.groups * out[0] * out[1] * o.width_tiles;
  const int64_t band_rows = std::clamp<int64_t>(rows / (8 * threads), 1, kMostRows);
  o.copies = plan_row_copies(p, o.tile_width, band_rows, kDepth, o.lanes_are_pixels);
  o.bands = ceil_div(out[1], o.copies.band_rows);
  o.tiles = p.n * p.groups * out[0] * o.bands * o.width_tiles;
  o.panels_per_task = o.tiles >= 4 * threads ? std::min(panels.count, kMostPanels) : 1;
  o.panel_tasks = ceil_div(panels.count, o.panels_per_task);
  return o;
}

struct Tile {
  int64_t n, group, d;
  Range panels, rows, pixels; // pixels: of each row
};

Tile tile_of(const ConvProblem& p, const FewInputsPlan& plan, int64_t panels, int64_t task) {
  const int64_t* out = p.dst_size;
  Digits digits{task};
  Tile tile;
  tile.pixels = nth_range(digits.next(plan.width_tiles), plan.tile_width, out[2]);
  tile.rows = nth_range(digits.next(plan.bands), plan.copies.band_rows, out[1]);
  tile.d = digits.next(out[0]);
  tile.panels = nth_range(digits.next(plan.panel_tasks), plan.panels_per_task, panels);
  tile.group = digits.next(p.groups);
  tile.n = digits.rest;
  return tile;
}

template <class T>
class FewInputs : GatherImages {
  using C = compute_t<T>;

 public:
  FewInputs(const ConvProblem& p, const FewInputsPlan& plan) : GatherImages{p}, plan_(plan) {}

  void run() {
    weights_.pack_all();
    const int64_t depth = p.ic * plan_.copies.taps;
    const int64_t operations = plan_.tile_width * depth * panels_.width * plan_.panels_per_task;
    parallel_tasks(plan_.tiles * plan_.panel_tasks, operations, [&](SharedTasks::OfThread mine) {
      const Scratch<C> sums(plan_.panels_per_task * sums_size());
      const Scratch<C> copies(plan_.copies.size());
      for (const int64_t task : mine)
        compute(tile_of(p, plan_, panels_.count, task), sums.data(), copies.data());
    });
  }

 private:
  int64_t sums_size() const {
    return plan_.tile_width * panels_.width;
  }

  void compute(const Tile& tile, C* sums, C* copies) const {
    const T* image = input<T>(tile.n, tile.group);
    const int64_t taps = plan_.copies.taps, product_taps = plan_.copies.product_taps;
    for (int64_t first = 0; first < taps; first += product_taps) {
      const int64_t end = std::min(first + product_taps, taps);
      copies_.copy(image, tile.d, tile.rows.begin, tile.pixels.begin, first, end - first, copies);
      C* to = sums;
      for (int64_t panel = tile.panels.begin; panel < tile.panels.end; panel++) {
        const C* inputs = copies;
        for (int64_t row = tile.rows.begin; row < tile.rows.end; row++) {
          const OutputRun run = run_of(tile, panel, row);
          if (product_taps == taps && is_direct(tile, panel)) {
            C* out = reinterpret_cast<C*>(epilogue_.output(run));
            const int64_t out_row = p.dst_stride[plan_.lanes_are_pixels ? 1 : 4];
            multiply(tile, panel, {0, taps}, inputs, out, out_row);
          } else {
            const int64_t to_row = plan_.lanes_are_pixels ? plan_.tile_width : panels_.width;
            multiply(tile, panel, {first, end}, inputs, to, to_row);
            if (end == taps)
              store(to, run);
          }
          inputs += plan_.copies.result_row_step;
        }
        to += sums_size();
      }
    }
  }

  // Whether sums are written where results are: they are clamped at most, and are whole vectors.
  bool is_direct(const Tile& tile, int64_t panel) const {
    return std::is_same_v<T, C> && epilogue_.is_clamp() &&
        (plan_.lanes_are_pixels ? tile.pixels.count() % kLanes<C> == 0
                                : p.dst_stride[1] == 1 && panels_.size(panel) % kLanes<C> == 0);
  }

  OutputRun run_of(const Tile& tile, int64_t panel, int64_t row) const {
    const int64_t channel = tile.group * p.oc + panel * panels_.width;
    const Range& pixels = tile.pixels;
    return {tile.n, channel, tile.d, row, pixels.begin, panels_.size(panel), pixels.count()};
  }

  // The sums of some taps, which begin at the bias, or where they are. The last sums are clamped.
  void
  multiply(const Tile& tile, int64_t panel, Range taps, const C* inputs, C* sums, int64_t sums_row)
      const {
    const int64_t depth = taps.count() * p.ic, *terms = plan_.copies.terms.data();
    const C* weights = weights_.at(tile.group, panel, taps.begin);
    const C* bias = bias_.at(tile.group, panel * panels_.width);
    const bool is_first = taps.begin == 0, is_last = taps.end == plan_.copies.taps;
    const Bounds<C> bounds = is_last && epilogue_.is_clamp() ? epilogue_.bounds() : Bounds<C>{};
    if (!plan_.lanes_are_pixels) {
      const int64_t start_row = is_first ? 0 : sums_row;
      return gemm<C, Strided, Listed, Strided>(
          tile.pixels.count(),
          panels_.vectors(panel),
          depth,
          {{inputs, {plan_.copies.result_pixel_step}, terms},
           {weights, {panels_.width}},
           {is_first ? bias : sums, start_row, kLanes<C>},
           {sums, sums_row},
           bounds});
    }
    const int64_t start_row = is_first ? bias_.channel_step() : sums_row;
    for (int64_t x = 0; x < tile.pixels.count(); x += kPanel<C>) {
      gemm<C, Strided, Strided, Listed>(
          panels_.size(panel),
          ceil_div(std::min(kPanel<C>, tile.pixels.count() - x), kLanes<C>),
          depth,
          {{weights, {1}, {panels_.width}},
           {inputs + x, terms},
           {is_first ? bias : sums + x, start_row, is_first ? 0 : kLanes<C>},
           {sums + x, sums_row},
           bounds});
    }
  }

  void store(const C* sums, const OutputRun& run) const {
    if (!plan_.lanes_are_pixels)
      return epilogue_.store_pixels(sums, kLanes<C>, panels_.width, run);
    if (!epilogue_.is_empty())
      return epilogue_.store_channels(sums, plan_.tile_width, run);
    T* to = epilogue_.output(run);
    for (int64_t c = 0; c < run.channels; c++, to += p.dst_stride[1], sums += plan_.tile_width)
      at::vec::convert(sums, to, run.pixels);
  }

  const FewInputsPlan& plan_;
  const RowCopies<T> copies_{p, plan_.copies};
  const Epilogue<T> epilogue_{p};
  DirectWeights<T> weights_{*this};
  const Panels panels_ = weights_.steps().panels;
  const Bias<T> bias_{p, panels_.count * panels_.width, plan_.lanes_are_pixels ? kLanes<C> : 1};
};

} // namespace

// The weights of a tap are one block of input channels.
bool supports_few_inputs(const ConvProblem& p) {
  const bool is_gather =
      p.pass == ConvPass::forward || (p.pass == ConvPass::backward_data && can_exchange(p));
  return is_gather && GatherImages{p}.in_channels <= kDirectDepth;
}

void run_few_inputs(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    const ConvProblem q = p.pass == ConvPass::forward ? p : exchanged(p);
    const Panels panels{q.oc, kLanes<compute_t<T>>};
    FewInputs<T>(q, plan_few_inputs(q, panels, at::get_num_threads())).run();
  });
}

} // namespace torch_dnnl
