#include "conv/cpu/direct.h"

#include <algorithm>

#include "conv/cpu/blocks.h"
#include "conv/cpu/epilogue.h"
#include "conv/cpu/roles.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// With fewer input channels, several taps are one product, of about so many terms.
constexpr int64_t kFewChannels = 16;
constexpr int64_t kMergedDepth = 256;

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
                : 0),
        weights_(p.groups * panels_.count * panels_.width * in_channels_ * taps_) {}

  void run() {
    pack_weights();
    const int64_t panel_tasks = ceil_div(panels_.count, panels_per_task_);
    const int64_t tasks = p_.n * p_.groups * panel_tasks * row_tiles_ * width_tiles_;
    const int64_t operations =
        tile_rows_ * tile_width_ * in_channels_ * taps_ * panels_.width * panels_per_task_;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const Buffer sums(panels_per_task_ * tile_rows_ * tile_width_ * panels_.width);
      const Buffer packed_inputs(tile_width_ * std::max(kChannels, merged_depth_));
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

  // [group][panel][block of input channels][tap][channel][width]
  float* packed(int64_t group, int64_t panel, int64_t channel, int64_t tap) const {
    const int64_t block = std::min(kChannels, in_channels_ - channel);
    return weights_.data() +
        ((group * panels_.count + panel) * in_channels_ * taps_ + channel * taps_ + tap * block) *
        panels_.width;
  }

  void pack_weights() {
    const int64_t blocks = ceil_div(in_channels_, kChannels);
    const int64_t* ws = p_.weights_stride;
    const auto* weights = static_cast<const T*>(p_.weights);
    const int64_t tasks = p_.groups * panels_.count * blocks;
    const int64_t operations = taps_ * std::min(in_channels_, kChannels) * panels_.width * 32;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; task++) {
        const int64_t channel = task % blocks * kChannels;
        const int64_t panel = task / blocks % panels_.count, group = task / blocks / panels_.count;
        const int64_t block = std::min(kChannels, in_channels_ - channel);
        const int64_t size = panels_.size(panel);
        const T* from =
            weights + group * p_.oc * ws[0] + panel * panels_.width * weights_out_stride_;
        for (int64_t c = 0; c < block; c++) {
          int64_t tap = 0;
          for_each_tap([&](int64_t d, int64_t h, int64_t w) {
            const T* line =
                from + (channel + c) * weights_in_stride_ + d * ws[2] + h * ws[3] + w * ws[4];
            float* to = packed(group, panel, channel, tap++) + c * panels_.width;
            for (int64_t i = 0; i < size; i++)
              to[i] = static_cast<float>(line[i * weights_out_stride_]);
            std::fill(to + size, to + panels_.width, 0.0f);
          });
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
    for (int64_t channel = 0; channel < in_channels_; channel += kChannels) {
      const int64_t block = std::min(kChannels, in_channels_ - channel);
      int64_t tap = -1;
      for_each_tap([&](int64_t kd, int64_t kh, int64_t kw) {
        tap++;
        const Segment w = segment(2, kw, tile.x, tile.x + tile.width);
        if (w.count <= 0)
          return;
        for (int64_t row = 0; row < tile.rows; row++) {
          const int64_t d = (tile.row + row) / out_size_[1], h = (tile.row + row) % out_size_[1];
          const Segment sd = segment(0, kd, d, d + 1), sh = segment(1, kh, h, h + 1);
          if (sd.count <= 0 || sh.count <= 0)
            continue;
          const Block a = load_block(
              image + channel * in_stride_[1] + in(sd) * in_stride_[2] + in(sh) * in_stride_[3] +
                  in(w) * in_stride_[4],
              w.count,
              in_step_ * in_stride_[4],
              block,
              in_stride_[1],
              widened);
          float* c = sums + (row * tile.width + out(w) - tile.x) * panels_.width;
          for (int64_t i = 0; i < tile.panels; i++) {
            const int64_t panel = tile.panel + i;
            gemm(
                w.count,
                panels_.vectors(panel),
                block,
                {a.data,
                 a.pixel_stride,
                 a.channel_stride,
                 packed(tile.group, panel, channel, tap),
                 panels_.width,
                 c + i * panel_size,
                 out_step_ * panels_.width});
          }
        }
      });
    }
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
               packed(tile.group, panel, 0, first * p_.kernel[2]),
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
  const Buffer weights_;
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
