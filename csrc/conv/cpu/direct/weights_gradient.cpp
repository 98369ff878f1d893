#include <algorithm>
#include <optional>

#include "conv/cpu/direct/blocked.h"
#include "conv/cpu/direct/row_copies.h"
#include "conv/cpu/shared/canonical.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Backward weights: for each tap, src^T dst summed over all pixels. What a task
// computes, and the order of its sums, depend on the problem alone: the result is
// the same for any number of threads.
template <class T>
class WeightsGradient {
  using C = compute_t<T>;

 public:
  explicit WeightsGradient(const ConvProblem& p)
      : p_(p),
        panels_(p.oc),
        taps_(product(p.kernel)),
        block_(std::min(p.ic, kChannels)),
        width_tiles_(ceil_div(p.dst_size[2], kPixels)),
        tile_width_(ceil_div(p.dst_size[2], width_tiles_)),
        copies_(plan_copies()),
        most_chunks_(std::max<int64_t>(p.n * product(p.dst_size) / kChunkPixels, 1)),
        blocks_(p.groups * panels_.count * ceil_div(p.ic, block_)),
        taps_per_task_(copies_ ? copies_->product_taps() : choose_taps()),
        outputs_(blocks_ * ceil_div(taps_, taps_per_task_)),
        tile_rows_(copies_ ? copies_->band_rows() : choose_rows()),
        row_tiles_(ceil_div(p.dst_size[1], tile_rows_)),
        tiles_(p.n * p.dst_size[0] * row_tiles_ * width_tiles_),
        chunks_(std::clamp<int64_t>(most_chunks(), 1, std::max<int64_t>(tiles_, 1))),
        task_size_(taps_per_task_ * block_ * panels_.width) {
    for (int64_t row = 0; row < tile_rows_ && copies_; row++) {
      for (int64_t x = 0; x < tile_width_; x++)
        pixels_.push_back(row * copies_->row_step() + x * copies_->pixel_step());
    }
  }

  void run() {
    const Scratch<C> partial(chunks_ == 1 ? 0 : chunks_ * outputs_ * task_size_);
    const int64_t pixels = tile_rows_ * tile_width_; // of a tile
    const int64_t operations = tiles_ / chunks_ * pixels * task_size_;
    parallel_tasks(outputs_ * chunks_, operations, [&](int64_t begin, int64_t end) {
      const Scratch<C> local(chunks_ == 1 ? task_size_ : 0);
      const Scratch<C> grads(pixels * panels_.width);
      const int64_t widened = std::is_same_v<T, C> ? 0 : pixels * block_;
      const Scratch<C> inputs(copies_ ? copies_->size() : widened);
      for (int64_t task = begin; task < end; task++) {
        // Outputs of one chunk follow each other: they may be of unequal size.
        const int64_t index = task % outputs_, chunk = task / outputs_;
        C* sums = local.data();
        if (chunks_ > 1)
          sums = partial.data() + (index * chunks_ + chunk) * task_size_;
        const Output output = output_of(index);
        accumulate(output, chunk, sums, grads.data(), inputs.data());
        if (chunks_ == 1)
          store(output, sums);
      }
    });
    if (chunks_ == 1)
      return;
    parallel_tasks(outputs_ * task_size_, chunks_, [&](int64_t begin, int64_t end) {
      for (int64_t size, at = begin; at < end; at += size) {
        const int64_t output = at / task_size_, first = at % task_size_;
        size = std::min(end - at, task_size_ - first);
        C* sums = partial.data() + output * chunks_ * task_size_ + first;
        for (int64_t chunk = 1; chunk < chunks_; chunk++) {
          const C* more = sums + chunk * task_size_;
          for (int64_t i = 0; i < size; i++)
            sums[i] += more[i];
        }
      }
    });
    parallel_tasks(outputs_, task_size_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        store(output_of(i), partial.data() + i * chunks_ * task_size_);
    });
  }

 private:
  static constexpr int64_t kFewChannels = 8;      // as many and more fill the rows of a product
  static constexpr int64_t kTaskSums = 64 * 1024; // stay in cache
  static constexpr int64_t kTasks = 32;           // enough for the threads to share
  static constexpr int64_t kTilePixels = 128;     // of a product
  static constexpr int64_t kChunkPixels = 512;    // that make up for adding sums of chunks

  // The taps and channels that one task, or one for each chunk of the pixels, computes.
  struct Output {
    int64_t group, panel, channel, channels, tap, taps;
  };

  Output output_of(int64_t index) const {
    const int64_t tap_blocks = ceil_div(taps_, taps_per_task_), blocks = ceil_div(p_.ic, block_);
    Output output;
    output.tap = index % tap_blocks * taps_per_task_;
    output.taps = std::min(taps_per_task_, taps_ - output.tap);
    index /= tap_blocks;
    output.channel = index % blocks * block_;
    output.channels = std::min(block_, p_.ic - output.channel);
    index /= blocks;
    output.panel = index % panels_.count;
    output.group = index / panels_.count;
    return output;
  }

  // Pixels of some rows of the result.
  struct Tile {
    int64_t n, d, h, rows, x, width;
  };

  // Vectors of channels of a tile's pixels, and their distances.
  struct Grads {
    const C* data;
    int64_t row, pixel;
  };

  Tile tile_of(int64_t index) const {
    Digits digits{index};
    Tile tile;
    tile.x = digits.next(width_tiles_) * tile_width_;
    tile.width = std::min(tile_width_, p_.dst_size[2] - tile.x);
    tile.h = digits.next(row_tiles_) * tile_rows_;
    tile.rows = std::min(tile_rows_, p_.dst_size[1] - tile.h);
    tile.d = digits.next(p_.dst_size[0]);
    tile.n = digits.rest;
    return tile;
  }

  // Taps share gradients that are packed; but of few pixels, threads get taps as tasks.
  int64_t choose_taps() const {
    const int64_t most = std::clamp<int64_t>(kTaskSums / (block_ * panels_.width), 1, taps_);
    const int64_t tasks = blocks_ * ceil_div(taps_, most) * most_chunks_;
    const int64_t taps = std::max<int64_t>(tasks < kTasks ? most * tasks / kTasks : most, 1);
    return ceil_div(taps_, ceil_div(taps_, taps));
  }

  int64_t most_chunks() const {
    return std::min(kTasks / outputs_, most_chunks_);
  }

  // Rows share the sums that a product loads and stores, but there are tiles for all chunks.
  int64_t choose_rows() const {
    const int64_t rows = p_.dst_size[1], tiles = p_.n * p_.dst_size[0] * rows * width_tiles_;
    const int64_t chunks = std::max<int64_t>(most_chunks(), 1);
    const int64_t most = std::min({kTilePixels / tile_width_, tiles / chunks, rows});
    return most <= 1 ? 1 : ceil_div(rows, ceil_div(rows, most));
  }

  // Of few channels, rows of the image are copied: products of one tap would be of few rows.
  std::optional<RowCopies<T>> plan_copies() const {
    const bool is_long = p_.kernel[2] * p_.ic * panels_.width > kTaskSums;
    if (p_.ic >= kFewChannels || taps_ == 1 || is_long)
      return {};
    const bool is_joined = p_.dst_stride[3] == p_.dst_size[2] * p_.dst_stride[4];
    const int64_t rows = is_joined ? std::max<int64_t>(kPixels / p_.dst_size[2], 1) : 1;
    return RowCopies<T>(p_, tile_width_, rows, kTaskSums / panels_.width, false);
  }

  void accumulate(const Output& o, int64_t chunk, C* sums, C* buffer, C* inputs) const {
    std::fill(sums, sums + task_size_, C(0));
    const int64_t oc = o.group * p_.oc + o.panel * panels_.width, ic = o.group * p_.ic + o.channel;
    const int64_t *xs = p_.src_stride, *ys = p_.dst_stride;
    for (int64_t i = tiles_ * chunk / chunks_; i < tiles_ * (chunk + 1) / chunks_; i++) {
      const Tile tile = tile_of(i);
      const Grads grads = load_grads(
          static_cast<const T*>(p_.dst) + tile.n * ys[0] + oc * ys[1] + tile.d * ys[2] +
              tile.h * ys[3] + tile.x * ys[4],
          tile,
          panels_.size(o.panel),
          buffer);
      const T* image = static_cast<const T*>(p_.src) + tile.n * xs[0] + ic * xs[1];
      if (copies_) {
        copies_->copy(image, tile.d, tile.h, tile.x, o.tap, o.taps, inputs);
        multiply_all(o, tile, inputs, grads, sums);
      } else {
        multiply_taps(o, tile, image, inputs, grads, sums);
      }
    }
  }

  // A row of the product for each tap and channel.
  void multiply_all(const Output& o, const Tile& tile, const C* copies, const Grads& grads, C* sums)
      const {
    multiply<C, Listed, Listed, Strided>(
        o.taps * o.channels,
        panels_.vectors(o.panel),
        tile.rows * tile.width,
        {copies,
         copies_->terms(),
         pixels_.data(),
         grads.data,
         {grads.pixel},
         sums,
         panels_.width,
         kLanes<C>,
         sums,
         panels_.width});
  }

  // A product for each tap, of the pixels that it meets.
  void multiply_taps(
      const Output& o,
      const Tile& tile,
      const T* image,
      C* widened,
      const Grads& grads,
      C* sums) const {
    const int64_t* xs = p_.src_stride;
    int64_t image_at[kTilePixels], grads_at[kTilePixels];
    for (int64_t t = 0; t < o.taps; t++) {
      Digits digits{o.tap + t};
      const int64_t kw = digits.next(p_.kernel[2]), kh = digits.next(p_.kernel[1]);
      const Segment d = segment_of_dst(p_, 0, digits.rest, tile.d, tile.d + 1);
      const Segment h = segment_of_dst(p_, 1, kh, tile.h, tile.h + tile.rows);
      const Segment w = segment_of_dst(p_, 2, kw, tile.x, tile.x + tile.width);
      if (d.count <= 0 || h.count <= 0 || w.count <= 0)
        continue;
      const T* first = image + d.src * xs[2] + h.src * xs[3] + w.src * xs[4];
      Block<C> a{};
      for (int64_t row = 0, i = 0; row < h.count; row++) {
        const Block<C> line = load_block(
            first + row * p_.stride[1] * xs[3],
            w.count,
            p_.stride[2] * xs[4],
            o.channels,
            xs[1],
            widened + row * w.count * o.channels);
        if (row == 0)
          a = line;
        const int64_t grads_row = (h.dst - tile.h + row) * grads.row;
        for (int64_t x = 0; x < w.count; x++, i++) {
          image_at[i] = line.data - a.data + x * line.pixel_stride;
          grads_at[i] = grads_row + (w.dst - tile.x + x) * grads.pixel;
        }
      }
      multiply<C, Strided, Listed, Listed>(
          o.channels,
          panels_.vectors(o.panel),
          h.count * w.count,
          {a.data,
           {a.channel_stride},
           image_at,
           grads.data,
           grads_at,
           sums + t * block_ * panels_.width,
           panels_.width,
           kLanes<C>,
           sums + t * block_ * panels_.width,
           panels_.width});
    }
  }

  // Rows of whole vectors: as they lie, or copied with zeros behind the last channel.
  Grads load_grads(const T* from, const Tile& tile, int64_t size, C* to) const {
    const int64_t *ys = p_.dst_stride, pixel = panels_.width, row = tile.width * pixel;
    if constexpr (std::is_same_v<T, C>) {
      if (ys[1] == 1 && size % kLanes<C> == 0)
        return {from, ys[3], ys[4]};
    }
    const bool is_joined = ys[3] == tile.width * ys[4];
    const int64_t lines = is_joined ? 1 : tile.rows, pixels = tile.rows * tile.width / lines;
    for (int64_t line = 0; line < lines; line++) {
      load_pixels<C, T>(
          {from + line * ys[3], size, pixels, ys[1], ys[4]},
          {to + line * row, kLanes<C>, panels_.width});
    }
    return {to, row, pixel};
  }

  void store(const Output& o, const C* sums) const {
    const int64_t* ws = p_.weights_stride;
    T* const group = static_cast<T*>(p_.out) + o.group * p_.weights_group;
    for (int64_t t = 0; t < o.taps; t++) {
      const int64_t tap = o.tap + t, kw = tap % p_.kernel[2];
      const int64_t kh = tap / p_.kernel[2] % p_.kernel[1];
      const int64_t kd = tap / p_.kernel[2] / p_.kernel[1];
      T* to = group + o.panel * panels_.width * ws[0] + o.channel * ws[1] + kd * ws[2] +
          kh * ws[3] + kw * ws[4];
      store_rows(
          sums + t * block_ * panels_.width,
          panels_.width,
          o.channels,
          panels_.size(o.panel),
          to,
          ws[1],
          ws[0]);
    }
  }

  const ConvProblem& p_;
  const Panels<C> panels_;
  const int64_t taps_, block_, width_tiles_, tile_width_;
  const std::optional<RowCopies<T>> copies_;
  const int64_t most_chunks_, blocks_, taps_per_task_, outputs_, tile_rows_, row_tiles_, tiles_,
      chunks_, task_size_;
  std::vector<int64_t> pixels_; // of a tile, in copies
};

} // namespace

void run_weights_gradient(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Vectors of whichever channels fill them better.
    const auto lanes = [](int64_t channels, int64_t rows) {
      return round_up(channels, kLanes<compute_t<T>>) * rows;
    };
    const bool is_better = can_exchange(p) && 4 * lanes(p.oc, p.ic) > 5 * lanes(p.ic, p.oc);
    const ConvProblem q = is_better ? exchanged(p) : p;
    WeightsGradient<T>(q).run();
  });
}

} // namespace torch_dnnl
