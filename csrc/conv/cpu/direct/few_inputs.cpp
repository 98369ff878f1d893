#include "conv/cpu/direct/few_inputs.h"

#include <algorithm>

#include "conv/cpu/direct/row_copies.h"
#include "conv/cpu/direct/weights.h"
#include "conv/cpu/shared/canonical.h"
#include "conv/cpu/shared/epilogue.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kDepth = 512;     // of a product, about
constexpr int64_t kMostPanels = 8;  // that share copies
constexpr int64_t kMostRows = 4;    // of the result that do
constexpr int64_t kTransposing = 8; // takes as long as so many products of each sum

template <class T>
class Shallow : Roles {
  using C = compute_t<T>;

 public:
  explicit Shallow(const ConvProblem& p)
      : Roles(p),
        epilogue_(p),
        panels_(out_channels_),
        weights_(p),
        taps_(product(p.kernel)),
        is_turned_(choose_turned()),
        tile_width_(choose_tile_width()),
        width_tiles_(ceil_div(out_size_[2], tile_width_)),
        copies_(p, tile_width_, choose_band_rows(), kDepth, /*lanes_are_pixels=*/is_turned_),
        starts_(p.groups * panels_.count * panels_.width * (is_turned_ ? kLanes<C> : 1)) {
    fill_starts();
  }

  void run() {
    weights_.pack_all();
    const int64_t band_rows = copies_.band_rows(), bands = ceil_div(out_size_[1], band_rows);
    const int64_t tiles = p_.n * p_.groups * out_size_[0] * bands * width_tiles_;
    const bool is_enough = tiles >= 4 * at::get_num_threads();
    const int64_t panels_per_task = is_enough ? std::min(panels_.count, kMostPanels) : 1;
    const int64_t panel_tasks = ceil_div(panels_.count, panels_per_task);
    const int64_t operations = tile_width_ * in_channels_ * taps_ * panels_.width * panels_per_task;
    parallel_tasks(tiles * panel_tasks, operations, [&](int64_t begin, int64_t end) {
      const Scratch<C> sums(panels_per_task * sums_size());
      const Scratch<C> copies(copies_.size());
      for (int64_t task = begin; task < end; task++) {
        Digits digits{task};
        Tile tile;
        tile.x = digits.next(width_tiles_) * tile_width_;
        tile.width = std::min(tile_width_, out_size_[2] - tile.x);
        tile.h = digits.next(bands) * band_rows;
        tile.rows = std::min(band_rows, out_size_[1] - tile.h);
        tile.d = digits.next(out_size_[0]);
        tile.panel = digits.next(panel_tasks) * panels_per_task;
        tile.panels = std::min(panels_per_task, panels_.count - tile.panel);
        tile.group = digits.next(p_.groups);
        tile.n = digits.rest;
        compute(tile, sums.data(), copies.data());
      }
    });
  }

 private:
  struct Tile {
    int64_t n, group, panel, panels, d, h, rows, x, width;
  };

  // Vectors of pixels, if they are about as full as those of channels.
  bool choose_turned() const {
    const int64_t pixels = out_size_[2], channels = out_channels_;
    const int64_t depth = taps_ * in_channels_;
    return out_stride_[4] == 1 &&
        7 * round_up(pixels, kLanes<C>) * channels * depth <=
        8 * pixels * panels_.count * panels_.width * (depth + kTransposing);
  }

  int64_t choose_tile_width() const {
    const int64_t width = ceil_div(out_size_[2], ceil_div(out_size_[2], kPixels));
    return is_turned_ ? round_up(width, kLanes<C>) : width;
  }

  // Rows share copies, but threads get tasks too.
  int64_t choose_band_rows() const {
    const int64_t rows = p_.n * p_.groups * out_size_[0] * out_size_[1] * width_tiles_;
    return std::clamp<int64_t>(rows / (8 * at::get_num_threads()), 1, kMostRows);
  }

  int64_t sums_size() const {
    return tile_width_ * panels_.width;
  }

  // Where the sums of a panel begin: at the bias, for each channel, or for vectors of its pixels.
  const C* start(int64_t group, int64_t panel) const {
    return starts_.data() +
        (group * panels_.count + panel) * panels_.width * (is_turned_ ? kLanes<C> : 1);
  }

  void fill_starts() const {
    const int64_t copies = is_turned_ ? kLanes<C> : 1;
    const T* bias = static_cast<const T*>(p_.bias);
    C* to = starts_.data();
    for (int64_t group = 0; group < p_.groups; group++) {
      for (int64_t c = 0; c < panels_.count * panels_.width; c++, to += copies) {
        const bool has_bias = bias != nullptr && c < out_channels_;
        const C value =
            has_bias ? static_cast<C>(bias[(group * out_channels_ + c) * p_.bias_stride]) : C(0);
        std::fill(to, to + copies, value);
      }
    }
  }

  void compute(const Tile& tile, C* sums, C* copies) const {
    const T* image = input<T>(tile.n, tile.group);
    const int64_t product_taps = copies_.product_taps();
    for (int64_t first = 0; first < taps_; first += product_taps) {
      const int64_t end = std::min(first + product_taps, taps_);
      copies_.copy(image, tile.d, tile.h, tile.x, first, end - first, copies);
      for (int64_t i = 0; i < tile.panels; i++) {
        for (int64_t row = 0; row < tile.rows; row++) {
          const int64_t panel = tile.panel + i;
          const C* inputs = copies + row * copies_.row_step();
          if (product_taps == taps_ && can_store_at_once(tile, panel)) {
            C* out = reinterpret_cast<C*>(output(tile, panel, row));
            multiply(tile, panel, 0, taps_, inputs, out, out_stride_[is_turned_ ? 1 : 4]);
            continue;
          }
          C* to = sums + i * sums_size();
          multiply(tile, panel, first, end, inputs, to, is_turned_ ? tile_width_ : panels_.width);
          if (end == taps_)
            store(tile, panel, row, to);
        }
      }
    }
  }

  // Sums are results, if these are whole vectors.
  bool can_store_at_once(const Tile& tile, int64_t panel) const {
    return std::is_same_v<T, C> && epilogue_.is_empty() &&
        (is_turned_ ? tile.width % kLanes<C> == 0
                    : out_stride_[1] == 1 && panels_.size(panel) % kLanes<C> == 0);
  }

  T* output(const Tile& tile, int64_t panel, int64_t row) const {
    const int64_t channel = tile.group * out_channels_ + panel * panels_.width;
    return static_cast<T*>(p_.out) + tile.n * out_stride_[0] + channel * out_stride_[1] +
        tile.d * out_stride_[2] + (tile.h + row) * out_stride_[3] + tile.x * out_stride_[4];
  }

  // The sums of taps [first, end), which begin at the bias, or where they are.
  void multiply(
      const Tile& tile,
      int64_t panel,
      int64_t first,
      int64_t end,
      const C* inputs,
      C* sums,
      int64_t sums_row) const {
    const int64_t depth = (end - first) * in_channels_;
    const C *weights = weights_.at(tile.group, panel, first), *bias = start(tile.group, panel);
    if (!is_turned_) {
      torch_dnnl::multiply<C, Strided, Listed, Strided>(
          tile.width,
          panels_.vectors(panel),
          depth,
          {inputs,
           {copies_.pixel_step()},
           copies_.terms(),
           weights,
           {panels_.width},
           first == 0 ? bias : sums,
           first == 0 ? 0 : sums_row,
           kLanes<C>,
           sums,
           sums_row});
      return;
    }
    for (int64_t x = 0; x < tile.width; x += kPanel<C>) {
      torch_dnnl::multiply<C, Strided, Strided, Listed>(
          panels_.size(panel),
          ceil_div(std::min(kPanel<C>, tile.width - x), kLanes<C>),
          depth,
          {weights,
           {1},
           {panels_.width},
           inputs + x,
           copies_.terms(),
           first == 0 ? bias : sums + x,
           first == 0 ? kLanes<C> : sums_row,
           first == 0 ? 0 : kLanes<C>,
           sums + x,
           sums_row});
    }
  }

  void store(const Tile& tile, int64_t panel, int64_t row, const C* sums) const {
    const int64_t first = tile.group * out_channels_ + panel * panels_.width;
    const int64_t channels = panels_.size(panel);
    OutputRun run{tile.n, first, tile.d, tile.h + row, tile.x, channels, tile.width};
    T* to = output(tile, panel, row);
    if (!is_turned_) {
      if (!epilogue_.is_empty()) {
        epilogue_.store_pixels(sums, kLanes<C>, panels_.width, run);
      } else {
        store_rows(sums, panels_.width, tile.width, channels, to, out_stride_[4], out_stride_[1]);
      }
      return;
    }
    run.channels = 1;
    for (int64_t c = 0; c < channels; c++, run.channel++, sums += tile_width_) {
      if (!epilogue_.is_empty()) {
        epilogue_.store_line(sums, run);
      } else {
        at::vec::convert(sums, to + c * out_stride_[1], tile.width);
      }
    }
  }

  const Epilogue<T> epilogue_;
  const Panels<C> panels_;
  DirectWeights<T> weights_;
  const int64_t taps_;
  const bool is_turned_; // vectors are of pixels
  const int64_t tile_width_, width_tiles_;
  const RowCopies<T> copies_;
  const Scratch<C> starts_;
};

} // namespace

bool supports_few_inputs(const ConvProblem& p) {
  return p.pass == ConvPass::forward || (p.pass == ConvPass::backward_data && can_exchange(p));
}

void run_few_inputs(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) {
    const ConvProblem q = p.pass == ConvPass::forward ? p : exchanged(p);
    Shallow<typename decltype(tag)::type>(q).run();
  });
}

} // namespace torch_dnnl
