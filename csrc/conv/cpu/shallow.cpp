#include "conv/cpu/shallow.h"

#include <algorithm>
#include <vector>

#include "conv/cpu/direct_weights.h"
#include "conv/cpu/epilogue.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kFewChannels = 16; // as many and more fill products of one tap
constexpr int64_t kDepth = 512;      // of a product, about
constexpr int64_t kMostPanels = 8;   // that share copies
constexpr int64_t kMostRows = 4;     // of the result that do

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
        starts_(p.groups * panels_.count * panels_.width * (is_turned_ ? kLanes<C> : 1)) {
    plan_copies();
    fill_starts();
  }

  void run() {
    weights_.pack();
    const int64_t bands = ceil_div(out_size_[1], band_rows_);
    const int64_t tiles = p_.n * p_.groups * out_size_[0] * bands * width_tiles_;
    const bool is_enough = tiles >= 4 * at::get_num_threads();
    const int64_t panels_per_task = is_enough ? std::min(panels_.count, kMostPanels) : 1;
    const int64_t panel_tasks = ceil_div(panels_.count, panels_per_task);
    const int64_t operations = tile_width_ * in_channels_ * taps_ * panels_.width * panels_per_task;
    parallel_tasks(tiles * panel_tasks, operations, [&](int64_t begin, int64_t end) {
      const Scratch<C> sums(panels_per_task * sums_size());
      const Scratch<C> copies(copies_in(product_taps_) * copy_size_);
      for (int64_t task = begin; task < end; task++) {
        Digits digits{task};
        Tile tile;
        tile.x = digits.next(width_tiles_) * tile_width_;
        tile.width = std::min(tile_width_, out_size_[2] - tile.x);
        tile.h = digits.next(bands) * band_rows_;
        tile.rows = std::min(band_rows_, out_size_[1] - tile.h);
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
    return out_stride_[4] == 1 &&
        7 * round_up(pixels, kLanes<C>) * channels <= 8 * pixels * panels_.count * panels_.width;
  }

  int64_t choose_tile_width() const {
    const int64_t width = ceil_div(out_size_[2], ceil_div(out_size_[2], kPixels));
    return is_turned_ ? round_up(width, kLanes<C>) : width;
  }

  int64_t sums_size() const {
    return tile_width_ * panels_.width;
  }

  // Taps that follow each other in a row read the same copy, the inputs of a tap a stride apart; or
  // there is a copy for each tap, of its inputs alone. Vectors of pixels need inputs next to each
  // other: then a copy has `phases_` runs, of pixels that are a stride apart.
  void plan_copies() {
    const int64_t stride = p_.stride[2];
    if (p_.dilation[2] == 1 && stride <= p_.kernel[2]) {
      copied_taps_ = p_.kernel[2];
      (is_turned_ ? phases_ : row_step_) = stride;
    } else {
      copied_step_ = stride;
    }
    run_ = (tile_width_ - 1) * row_step_ + (copied_taps_ - 1) / phases_ + 1;
    if (!is_turned_ && in_stride_[1] == 1) {
      pixel_step_ = in_channels_;
    } else {
      channel_step_ = run_ * phases_;
    }
    copy_size_ = run_ * phases_ * in_channels_;
    const int64_t copies = kDepth / (copied_taps_ * in_channels_);
    product_taps_ = std::clamp(copies * copied_taps_, copied_taps_, taps_);
    plan_bands();
    for (int64_t tap = 0; tap < product_taps_; tap++) {
      const int64_t row = tap / p_.kernel[2], x = tap % p_.kernel[2];
      const int64_t line = row / p_.kernel[1] * band_lines_ + row % p_.kernel[1];
      const int64_t copy = line * copies_of_line() + x / copied_taps_, at = x % copied_taps_;
      for (int64_t c = 0; c < in_channels_; c++) {
        terms_.push_back(
            copy * copy_size_ + c * channel_step_ + at % phases_ * run_ +
            at / phases_ * pixel_step_);
      }
    }
  }

  // Rows of the result read the copies of those before, if their taps meet the same rows.
  void plan_bands() {
    const int64_t stride = p_.stride[1], dilation = p_.dilation[1];
    if (product_taps_ == taps_ && stride % dilation == 0 && stride / dilation < p_.kernel[1]) {
      const int64_t rows = p_.n * p_.groups * out_size_[0] * out_size_[1] * width_tiles_;
      const int64_t shared = std::clamp<int64_t>(rows / (8 * at::get_num_threads()), 1, kMostRows);
      band_rows_ = ceil_div(out_size_[1], ceil_div(out_size_[1], shared));
      band_step_ = stride / dilation;
    }
    band_lines_ = (band_rows_ - 1) * band_step_ + p_.kernel[1];
  }

  int64_t copies_of_line() const {
    return p_.kernel[2] / copied_taps_;
  }

  // Copies that a product of so many taps reads, or those of a band of rows.
  int64_t copies_in(int64_t taps) const {
    return taps < taps_ ? taps / copied_taps_ : p_.kernel[0] * band_lines_ * copies_of_line();
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
    for (int64_t first = 0; first < taps_; first += product_taps_) {
      const int64_t end = std::min(first + product_taps_, taps_);
      copy_inputs(tile, image, first / copied_taps_, copies_in(end - first), copies);
      for (int64_t i = 0; i < tile.panels; i++) {
        for (int64_t row = 0; row < tile.rows; row++) {
          const int64_t panel = tile.panel + i;
          const C* inputs = copies + row * band_step_ * copies_of_line() * copy_size_;
          if (product_taps_ == taps_ && can_store_at_once(tile, panel)) {
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

  // Copies [first, first + count): for each tap along the first axis, for each row of the image
  // that the band meets, for each tap in a row that has its own.
  void copy_inputs(const Tile& tile, const T* image, int64_t first, int64_t count, C* to) const {
    for (int64_t i = first; i < first + count; i++, to += copy_size_) {
      const int64_t line = i / copies_of_line();
      const int64_t tap[3] = {
          line / band_lines_, line % band_lines_, i % copies_of_line() * copied_taps_};
      const int64_t at[3] = {tile.d, tile.h, tile.x};
      int64_t x[3];
      for (int a = 0; a < 3; a++)
        x[a] = at[a] * p_.stride[a] + tap[a] * p_.dilation[a] - p_.pad[a];
      if (x[0] < 0 || x[0] >= in_size_[0] || x[1] < 0 || x[1] >= in_size_[1]) {
        std::fill(to, to + copy_size_, C(0));
      } else {
        copy_row(image + x[0] * in_stride_[2] + x[1] * in_stride_[3], x[2], to);
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

  // Pixels of a row of the image from x on, and of its pads.
  void copy_row(const T* row, int64_t x, C* to) const {
    const int64_t step = copied_step_ * phases_, from_step = step * in_stride_[4];
    for (int64_t phase = 0; phase < phases_; phase++, x += copied_step_, to += run_) {
      const Range inside = within(x, step, in_size_[2], run_);
      const int64_t begin = std::min(inside.begin, run_), end = std::max(inside.end, begin);
      const T* from = row + (x + begin * step) * in_stride_[4];
      if (pixel_step_ == in_channels_ && from_step == in_channels_) { // and so channels are
        copy_run(from, 1, begin * in_channels_, end * in_channels_, run_ * in_channels_, to, 1);
        continue;
      }
      for (int64_t c = 0; c < in_channels_; c++) {
        const T* line = from + c * in_stride_[1];
        copy_run(line, from_step, begin, end, run_, to + c * channel_step_, pixel_step_);
      }
    }
  }

  // Zeros, but in [begin, end), `step` apart.
  static void copy_run(
      const T* from,
      int64_t from_step,
      int64_t begin,
      int64_t end,
      int64_t count,
      C* to,
      int64_t step) {
    for (int64_t i = 0; i < begin; i++)
      to[i * step] = 0;
    for (int64_t i = end; i < count; i++)
      to[i * step] = 0;
    int64_t i = begin;
    if (step == 1 && from_step == 1) {
      at::vec::convert(from, to + begin, end - begin);
      return;
    }
    if constexpr (std::is_same_v<T, C>) {
      if (step == 1 && from_step == 2) {
        for (; i + kLanes<C> < end; i += kLanes<C>, from += 2 * kLanes<C>)
          at::vec::deinterleave2(Lanes<C>::loadu(from), Lanes<C>::loadu(from + kLanes<C>))
              .first.store(to + i);
      }
    }
    for (; i < end; i++, from += from_step)
      to[i * step] = static_cast<C>(*from);
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
    const C *weights = weights_.at(tile.group, panel, 0, first), *bias = start(tile.group, panel);
    if (!is_turned_) {
      torch_dnnl::multiply<C, Listed, Strided>(
          tile.width,
          panels_.vectors(panel),
          depth,
          {inputs,
           row_step_ * pixel_step_,
           terms_.data(),
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
      torch_dnnl::multiply<C, Strided, Listed>(
          panels_.size(panel),
          ceil_div(std::min(kPanel<C>, tile.width - x), kLanes<C>),
          depth,
          {weights,
           1,
           {panels_.width},
           inputs + x,
           terms_.data(),
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
  const Scratch<C> starts_;
  int64_t product_taps_ = 1, copied_taps_ = 1; // taps of a product, and of a copy
  int64_t copied_step_ = 1; // from a pixel of the image that is copied to the next
  int64_t row_step_ = 1;    // from the input of a pixel to that of the next, in a copy
  int64_t phases_ = 1, run_ = 1, pixel_step_ = 1, channel_step_ = 1, copy_size_ = 0; // of a copy
  // Of rows of the result: how many share copies, lines that these are of, and those from one to
  // the next.
  int64_t band_rows_ = 1, band_lines_ = 1, band_step_ = 0;
  std::vector<int64_t> terms_; // where those of a product begin in copies
};

} // namespace

bool can_run_shallow(const ConvProblem& p) {
  return p.pass == ConvPass::forward && p.ic < kFewChannels && p.ic * p.oc >= 16 &&
      product(p.kernel) > 1;
}

void run_shallow(const ConvProblem& p) {
  dispatch(
      FloatingTypes{}, p.dtype, [&](auto tag) { Shallow<typename decltype(tag)::type>(p).run(); });
}

} // namespace torch_dnnl
