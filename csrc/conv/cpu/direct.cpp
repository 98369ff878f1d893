#include "conv/cpu/direct.h"

#include <algorithm>

#include "conv/cpu/epilogue.h"
#include "conv/cpu/matrices.h"
#include "conv/cpu/packed_weights.h"
#include "conv/cpu/roles.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// With fewer input channels, several taps are one product, of about so many terms.
constexpr int64_t kFewChannels = 16;
constexpr int64_t kMergedDepth = 256;

// Input channels of a product.
constexpr int64_t kDepth = 128;

// So many panels use inputs that it is worth to copy them.
constexpr int64_t kManyPanels = 4;

// Weights of an output channel that are packed together.
constexpr int64_t kPackedTerms = 128;

// Forward and backward data are one computation: each output row gathers products
// of input rows with the weights of a tap. They differ in which of src and dst is
// the output, and so in the steps from one pixel of a segment to the next.
template <class T>
class Gather : Roles {
 public:
  explicit Gather(const ConvProblem& p)
      : Roles(p),
        epilogue_(p),
        panels_(out_channels_),
        taps_(product(p.kernel)),
        in_step_(forward_ ? p.stride[2] : 1),
        out_step_(forward_ ? 1 : p.stride[2]),
        tile_width_(std::min(out_size_[2], kPixels)),
        tile_rows_(kPixels / tile_width_),
        row_tiles_(ceil_div(out_size_[0] * out_size_[1], tile_rows_)),
        width_tiles_(ceil_div(out_size_[2], tile_width_)),
        panels_per_task_(choose_panels_per_task()),
        line_(p.kernel[2] * in_channels_),
        merged_depth_(
            forward_ && in_channels_ < kFewChannels && taps_ > 1
                ? std::clamp(kMergedDepth / line_, int64_t(1), p.kernel[0] * p.kernel[1]) * line_
                : 0) {}

  void run() {
    weights_ = packed_weights(
        p_,
        Packing::direct,
        panels_.width,
        p_.groups * panels_.count * panels_.width * in_channels_ * taps_,
        [&](const void* weights, float* to) { pack_weights(static_cast<const T*>(weights), to); });
    const int64_t panel_tasks = ceil_div(panels_.count, panels_per_task_);
    const int64_t tasks = p_.n * p_.groups * panel_tasks * row_tiles_ * width_tiles_;
    const int64_t operations =
        tile_rows_ * tile_width_ * in_channels_ * taps_ * panels_.width * panels_per_task_;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const Buffer sums(panels_per_task_ * tile_rows_ * tile_width_ * panels_.width);
      const Buffer packed_inputs(tile_width_ * std::max(tile_rows_ * kDepth, merged_depth_));
      for (int64_t task = begin; task < end; task++) {
        int64_t rest = task;
        const auto next = [&](int64_t count) {
          const int64_t index = rest % count;
          rest /= count;
          return index;
        };
        Tile tile;
        tile.x = next(width_tiles_) * tile_width_;
        tile.width = std::min(tile_width_, out_size_[2] - tile.x);
        tile.row = next(row_tiles_) * tile_rows_;
        tile.rows = std::min(tile_rows_, out_size_[0] * out_size_[1] - tile.row);
        tile.panel = next(panel_tasks) * panels_per_task_;
        tile.panels = std::min(panels_per_task_, panels_.count - tile.panel);
        tile.group = next(p_.groups);
        tile.n = rest;
        compute(tile, sums.data(), packed_inputs.data());
      }
    });
  }

 private:
  struct Tile {
    int64_t n, group, panel, panels, row, rows, x, width;
  };

  // Panels share a tile of inputs that is in the cache, and packed; but threads get tasks too.
  int64_t choose_panels_per_task() const {
    const int64_t tiles = p_.n * p_.groups * row_tiles_ * width_tiles_;
    const int64_t shared = tiles * panels_.count / (4 * at::get_num_threads());
    return std::clamp<int64_t>(shared, 1, std::min<int64_t>(panels_.count, 8));
  }

  // Of packed weights: [group][panel][block of input channels][tap][channel][width]
  int64_t offset(int64_t group, int64_t panel, int64_t channel, int64_t tap) const {
    const int64_t block = std::min(kDepth, in_channels_ - channel);
    return ((group * panels_.count + panel) * in_channels_ * taps_ + channel * taps_ +
            tap * block) *
        panels_.width;
  }

  void pack_weights(const T* weights, float* packed) const {
    const int64_t blocks = ceil_div(in_channels_, kDepth);
    const int64_t* ws = p_.weights_stride;
    const Axis across{{1, 1, 1, out_channels_}, {0, 0, 0, weights_out_stride_}};
    const Axis terms{
        {in_channels_, p_.kernel[0], p_.kernel[1], p_.kernel[2]},
        {weights_in_stride_, ws[2], ws[3], ws[4]}};
    const int64_t at_once = std::max<int64_t>(kPackedTerms / taps_ / 4 * 4, 4); // channels
    const int64_t tasks = p_.groups * panels_.count * blocks;
    const int64_t operations = taps_ * std::min(in_channels_, kDepth) * panels_.width * 32;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const Scratch<int64_t> rows(kPanel), columns(at_once * taps_);
      const Buffer part(at_once * taps_ * kPanel);
      for (int64_t task = begin; task < end; task++) {
        const int64_t channel = task % blocks * kDepth;
        const int64_t panel = task / blocks % panels_.count, group = task / blocks / panels_.count;
        const int64_t block = std::min(kDepth, in_channels_ - channel);
        across.offsets(panel * panels_.width, panels_.size(panel), rows.data());
        for (int64_t c = 0; c < block; c += at_once) {
          const int64_t count = std::min(at_once, block - c);
          terms.offsets((channel + c) * taps_, count * taps_, columns.data());
          pack_panels<kPanel>(
              weights + group * p_.oc * ws[0],
              rows.data(),
              panels_.size(panel),
              columns.data(),
              count * taps_,
              part.data(),
              0);
          // From the order that they lie in to that of products.
          for (int64_t tap = 0; tap < taps_; tap++) {
            float* to = packed + offset(group, panel, channel, tap) + c * panels_.width;
            for (int64_t i = 0; i < count; i++, to += panels_.width)
              std::copy_n(part.data() + (i * taps_ + tap) * kPanel, panels_.width, to);
          }
        }
      }
    });
  }

  template <class F>
  void for_each_tap(const F& f) const {
    for (int64_t d = 0; d < p_.kernel[0]; d++) {
      for (int64_t h = 0; h < p_.kernel[1]; h++) {
        for (int64_t w = 0; w < p_.kernel[2]; w++)
          f(d, h, w);
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

  void compute(const Tile& tile, float* sums, float* packed_inputs) const {
    const int64_t panel_size = tile.rows * tile.width * panels_.width;
    initialise(tile, sums, panel_size);
    const T* image = input<T>(tile.n, tile.group);
    if (merged_depth_ > 0) {
      add_merged(tile, image, sums, panel_size, packed_inputs);
    } else {
      add(tile, image, sums, panel_size, packed_inputs);
    }
    store(tile, sums, panel_size);
  }

  // A product for each block of input channels and tap.
  void
  add(const Tile& tile, const T* image, float* sums, int64_t panel_size, float* widened) const {
    for (int64_t channel = 0; channel < in_channels_; channel += kDepth) {
      const int64_t block = std::min(kDepth, in_channels_ - channel);
      int64_t tap = -1;
      for_each_tap([&](int64_t kd, int64_t kh, int64_t kw) {
        tap++;
        const Segment w = segment(2, kw, tile.x, tile.x + tile.width);
        if (w.count <= 0)
          return;
        struct Row {
          Block inputs;
          int64_t sums;
        };
        Row rows[kPixels];
        int64_t count = 0;
        for (int64_t row = 0; row < tile.rows; row++) {
          const int64_t d = (tile.row + row) / out_size_[1], h = (tile.row + row) % out_size_[1];
          const Segment sd = segment(0, kd, d, d + 1), sh = segment(1, kh, h, h + 1);
          if (sd.count <= 0 || sh.count <= 0)
            continue;
          const T* from = image + channel * in_stride_[1] + in(sd) * in_stride_[2] +
              in(sh) * in_stride_[3] + in(w) * in_stride_[4];
          float* buffer = widened + count * w.count * block;
          rows[count++] = {
              tile.panels < kManyPanels
                  ? load_block(
                        from, w.count, in_step_ * in_stride_[4], block, in_stride_[1], buffer)
                  : pack_block(from, w.count, block, buffer),
              (row * tile.width + out(w) - tile.x) * panels_.width};
        }
        // Weights stay in the first-level cache for all rows.
        for (int64_t i = 0; i < tile.panels; i++) {
          const int64_t panel = tile.panel + i;
          for (int64_t row = 0; row < count; row++) {
            const auto& [a, sums_at] = rows[row];
            gemm(
                w.count,
                panels_.vectors(panel),
                block,
                {a.data,
                 a.pixel_stride,
                 a.channel_stride,
                 weights_.get() + offset(tile.group, panel, channel, tap),
                 panels_.width,
                 sums + i * panel_size + sums_at,
                 out_step_ * panels_.width});
          }
        }
      });
    }
  }

  // Next to each other for many uses, pixels of a row of any step: [pixel][channel].
  Block pack_block(const T* from, int64_t pixels, int64_t channels, float* to) const {
    const int64_t pixel_step = in_step_ * in_stride_[4];
    if (in_stride_[1] == 1) {
      for (int64_t x = 0; x < pixels; x++)
        at::vec::convert(from + x * pixel_step, to + x * channels, channels);
      return {to, channels, 1};
    }
    for (int64_t c = 0; c < channels; c++) {
      const T* line = from + c * in_stride_[1];
      float* row = to + c * pixels;
      if (pixel_step == 1) {
        at::vec::convert(line, row, pixels);
      } else {
        for (int64_t x = 0; x < pixels; x++)
          row[x] = static_cast<float>(line[x * pixel_step]);
      }
    }
    return {to, 1, pixels};
  }

  // With few input channels: a product for as many rows of taps as make it worth to load and store
  // the sums, of inputs that are copied next to each other for that.
  void add_merged(const Tile& tile, const T* image, float* sums, int64_t panel_size, float* inputs)
      const {
    const int64_t tap_rows = p_.kernel[0] * p_.kernel[1], at_once = merged_depth_ / line_;
    for (int64_t row = 0; row < tile.rows; row++) {
      const int64_t d = (tile.row + row) / out_size_[1], h = (tile.row + row) % out_size_[1];
      for (int64_t first = 0; first < tap_rows; first += at_once) {
        const int64_t depth = std::min(at_once, tap_rows - first) * line_;
        for (int64_t k = 0; k < depth / line_; k++) {
          const Segment sd = segment(0, (first + k) / p_.kernel[1], d, d + 1);
          const Segment sh = segment(1, (first + k) % p_.kernel[1], h, h + 1);
          const bool is_inside = sd.count > 0 && sh.count > 0;
          const T* from = image + in(sd) * in_stride_[2] + in(sh) * in_stride_[3];
          copy_line(tile, is_inside ? from : nullptr, inputs + k * line_, depth);
        }
        for (int64_t i = 0; i < tile.panels; i++) {
          const int64_t panel = tile.panel + i;
          gemm(
              tile.width,
              panels_.vectors(panel),
              depth,
              {inputs,
               depth,
               1,
               weights_.get() + offset(tile.group, panel, 0, first * p_.kernel[2]),
               panels_.width,
               sums + i * panel_size + row * tile.width * panels_.width,
               panels_.width});
        }
      }
    }
  }

  // What a row of taps meets at each pixel of a tile's row: [pixel][tap][input channel], pixels
  // `step` apart. `row`: of the image, or null where there is none.
  void copy_line(const Tile& tile, const T* row, float* to, int64_t step) const {
    if (row != nullptr && in_stride_[1] == 1 && in_stride_[4] == in_channels_ &&
        p_.dilation[2] == 1)
      return copy_runs(tile, row, to, step);
    for (int64_t tap = 0; tap < p_.kernel[2]; tap++) {
      const Segment s = segment(2, tap, tile.x, tile.x + tile.width);
      const int64_t count = row == nullptr ? 0 : std::max<int64_t>(s.count, 0);
      const int64_t begin = count == 0 ? 0 : out(s) - tile.x;
      for (int64_t c = 0; c < in_channels_; c++, to++) {
        for (int64_t x = 0; x < begin; x++)
          to[x * step] = 0;
        for (int64_t x = begin + count; x < tile.width; x++)
          to[x * step] = 0;
        if (count == 0)
          continue;
        const T* from = row + c * in_stride_[1] + in(s) * in_stride_[4];
        for (int64_t x = 0; x < count; x++)
          to[(begin + x) * step] = static_cast<float>(from[x * in_step_ * in_stride_[4]]);
      }
    }
  }

  // The same of a row in which all channels and pixels follow each other.
  void copy_runs(const Tile& tile, const T* row, float* to, int64_t step) const {
    const int64_t taps = p_.kernel[2];
    for (int64_t x = 0; x < tile.width; x++, to += step) {
      const int64_t first = (tile.x + x) * p_.stride[2] - p_.pad[2];
      const int64_t begin = std::clamp<int64_t>(-first, 0, taps);
      const int64_t end = std::clamp<int64_t>(in_size_[2] - first, begin, taps);
      std::fill(to, to + begin * in_channels_, 0.0f);
      at::vec::convert(
          row + (first + begin) * in_channels_,
          to + begin * in_channels_,
          (end - begin) * in_channels_);
      std::fill(to + end * in_channels_, to + line_, 0.0f);
    }
  }

  void initialise(const Tile& tile, float* sums, int64_t panel_size) const {
    if (p_.bias == nullptr) {
      std::fill(sums, sums + tile.panels * panel_size, 0.0f);
      return;
    }
    for (int64_t i = 0; i < tile.panels; i++) {
      float* panel = sums + i * panel_size;
      const int64_t first = (tile.panel + i) * panels_.width;
      const T* bias =
          static_cast<const T*>(p_.bias) + (tile.group * p_.oc + first) * p_.bias_stride;
      const int64_t size = panels_.size(tile.panel + i);
      for (int64_t c = 0; c < panels_.width; c++) {
        panel[c] = c < size ? static_cast<float>(bias[c * p_.bias_stride]) : 0.0f;
      }
      for (int64_t at = panels_.width; at < panel_size; at += panels_.width) {
        std::copy(panel, panel + panels_.width, panel + at);
      }
    }
  }

  void store(const Tile& tile, const float* sums, int64_t panel_size) const {
    for (int64_t i = 0; i < tile.panels; i++) {
      const int64_t channel = tile.group * panels_.channels + (tile.panel + i) * panels_.width;
      for (int64_t row = 0; row < tile.rows; row++) {
        const int64_t d = (tile.row + row) / out_size_[1], h = (tile.row + row) % out_size_[1];
        const float* rows = sums + i * panel_size + row * tile.width * panels_.width;
        const int64_t channels = panels_.size(tile.panel + i);
        if (!epilogue_.is_empty()) {
          epilogue_.store_pixels(
              rows, kLanes, panels_.width, {tile.n, channel, d, h, tile.x, channels, tile.width});
          continue;
        }
        T* to = static_cast<T*>(p_.out) + tile.n * out_stride_[0] + channel * out_stride_[1] +
            d * out_stride_[2] + h * out_stride_[3] + tile.x * out_stride_[4];
        store_rows(rows, panels_.width, tile.width, channels, to, out_stride_[4], out_stride_[1]);
      }
    }
  }

  const Epilogue<T> epilogue_;
  const Panels panels_;
  const int64_t taps_, in_step_, out_step_, tile_width_, tile_rows_, row_tiles_, width_tiles_,
      panels_per_task_;
  const int64_t line_;         // products of a row of taps
  const int64_t merged_depth_; // products of the rows of taps that are one product; or 0
  std::shared_ptr<const float> weights_;
};

} // namespace

bool can_run_direct(const ConvProblem& p) {
  return p.dtype != c10::ScalarType::Double && p.ic * p.oc >= 16;
}

void run_direct(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights) {
    return run_weights_gradient(p);
  }
  dispatch(TypeList<float, c10::BFloat16, c10::Half>{}, p.dtype, [&](auto tag) {
    Gather<typename decltype(tag)::type>(p).run();
  });
}

} // namespace torch_dnnl
