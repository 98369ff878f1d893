#include "conv/cpu/direct.h"

#include <algorithm>

#include "conv/cpu/gemm.h"
#include "conv/cpu/tasks.h"
#include "conv/reference.h"

namespace torch_dnnl {
namespace {

// Sizes of the blocks that a matrix product works on: b, kChannels x kPanel, and c,
// kPixels x kPanel, are in the first-level cache together.
constexpr int64_t kPixels = 64;
constexpr int64_t kChannels = 64;

using Buffer = Scratch<float>;

// The elements of src and dst that meet a tap along one axis: dst, dst + 1, ... and
// src, src + stride, ...
struct Segment {
  int64_t src, dst, count;
};

Segment segment_of_dst(const ConvProblem& p, int axis, int64_t tap, int64_t begin, int64_t end) {
  const int64_t shift = tap * p.dilation[axis] - p.pad[axis];
  const Range range = within(shift, p.stride[axis], p.src_size[axis], p.dst_size[axis]);
  const int64_t first = std::max(begin, range.begin);
  return {first * p.stride[axis] + shift, first, std::min(end, range.end) - first};
}

Segment segment_of_src(const ConvProblem& p, int axis, int64_t tap, int64_t begin, int64_t end) {
  const int64_t shift = tap * p.dilation[axis] - p.pad[axis];
  const auto first_from = [&](int64_t src) {
    return ceil_div(std::max<int64_t>(src - shift, 0), p.stride[axis]);
  };
  const int64_t first = first_from(begin);
  const int64_t last = std::min(first_from(end), p.dst_size[axis]);
  return {first * p.stride[axis] + shift, first, last - first};
}

// `channels` channels of `pixels` pixels in float32, with their strides.
struct Block {
  const float* data;
  int64_t pixel_stride, channel_stride;
};

// float32 stays where it is; other types are widened into `buffer`, in the order they lie in.
template <class T>
Block load_block(
    const T* src,
    int64_t pixels,
    int64_t pixel_stride,
    int64_t channels,
    int64_t channel_stride,
    float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return {src, pixel_stride, channel_stride};
  } else if (channel_stride == 1) {
    for (int64_t i = 0; i < pixels; i++) {
      at::vec::convert(src + i * pixel_stride, buffer + i * channels, channels);
    }
    return {buffer, channels, 1};
  } else {
    for (int64_t c = 0; c < channels; c++) {
      const T* line = src + c * channel_stride;
      float* out = buffer + c * pixels;
      if (pixel_stride == 1) {
        at::vec::convert(line, out, pixels);
      } else {
        for (int64_t i = 0; i < pixels; i++)
          out[i] = static_cast<float>(line[i * pixel_stride]);
      }
    }
    return {buffer, 1, pixels};
  }
}

// Rows of `channels` values, `width` apart, to a tensor of any type and strides.
template <class T>
void store_rows(
    const float* rows,
    int64_t width,
    int64_t pixels,
    int64_t channels,
    T* out,
    int64_t pixel_stride,
    int64_t channel_stride) {
  if (channel_stride == 1) {
    for (int64_t i = 0; i < pixels; i++) {
      at::vec::convert(rows + i * width, out + i * pixel_stride, channels);
    }
    return;
  }
  for (int64_t c = 0; c < channels; c++) {
    T* line = out + c * channel_stride;
    for (int64_t i = 0; i < pixels; i++)
      line[i * pixel_stride] = convert<T>(rows[i * width + c]);
  }
}

// How the channels that a product computes are cut into panels of whole vectors.
struct Panels {
  explicit Panels(int64_t channels)
      : channels(channels),
        width(std::min(kPanel, ceil_div(channels, kLanes) * kLanes)),
        count(ceil_div(channels, width)) {}
  int64_t channels, width, count;

  int64_t size(int64_t panel) const {
    return std::min(width, channels - panel * width);
  }
  int64_t vectors(int64_t panel) const {
    return ceil_div(size(panel), kLanes);
  }
};

// Forward and backward data are one computation: each output row gathers products
// of input rows with the weights of a tap. They differ in which of src and dst is
// the output, and so in the steps from one pixel of a segment to the next.
template <class T>
class Gather {
 public:
  explicit Gather(const ConvProblem& p)
      : p_(p),
        forward_(p.pass == ConvPass::forward),
        in_channels_(forward_ ? p.ic : p.oc),
        panels_(forward_ ? p.oc : p.ic),
        in_stride_(forward_ ? p.src_stride : p.dst_stride),
        out_stride_(forward_ ? p.dst_stride : p.src_stride),
        out_size_(forward_ ? p.dst_size : p.src_size),
        taps_(product(p.kernel)),
        in_step_(forward_ ? p.stride[2] : 1),
        out_step_(forward_ ? 1 : p.stride[2]),
        tile_width_(std::min(out_size_[2], kPixels)),
        tile_rows_(kPixels / tile_width_),
        // Widened tiles are used for several panels; float32 has nothing to share.
        panels_per_task_(std::is_same_v<T, float> ? 1 : std::min<int64_t>(panels_.count, 8)),
        weights_(p.groups * panels_.count * panels_.width * in_channels_ * taps_) {}

  void run() {
    pack_weights();
    const int64_t row_tiles = ceil_div(out_size_[0] * out_size_[1], tile_rows_);
    const int64_t width_tiles = ceil_div(out_size_[2], tile_width_);
    const int64_t panel_tasks = ceil_div(panels_.count, panels_per_task_);
    const int64_t tasks = p_.n * p_.groups * panel_tasks * row_tiles * width_tiles;
    const int64_t operations =
        tile_rows_ * tile_width_ * in_channels_ * taps_ * panels_.width * panels_per_task_;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const Buffer sums(panels_per_task_ * tile_rows_ * tile_width_ * panels_.width);
      const Buffer widened(std::is_same_v<T, float> ? 0 : tile_width_ * kChannels);
      for (int64_t task = begin; task < end; task++) {
        int64_t rest = task;
        const auto next = [&](int64_t count) {
          const int64_t index = rest % count;
          rest /= count;
          return index;
        };
        Tile tile;
        tile.x = next(width_tiles) * tile_width_;
        tile.width = std::min(tile_width_, out_size_[2] - tile.x);
        tile.row = next(row_tiles) * tile_rows_;
        tile.rows = std::min(tile_rows_, out_size_[0] * out_size_[1] - tile.row);
        tile.panel = next(panel_tasks) * panels_per_task_;
        tile.panels = std::min(panels_per_task_, panels_.count - tile.panel);
        tile.group = next(p_.groups);
        tile.n = rest;
        compute(tile, sums.data(), widened.data());
      }
    });
  }

 private:
  struct Tile {
    int64_t n, group, panel, panels, row, rows, x, width;
  };

  // [group][panel][block of input channels][tap][channel][width]
  float* packed(int64_t group, int64_t panel, int64_t channel, int64_t tap) const {
    const int64_t block = std::min(kChannels, in_channels_ - channel);
    return weights_.data() +
        ((group * panels_.count + panel) * in_channels_ * taps_ + channel * taps_ + tap * block) *
        panels_.width;
  }

  void pack_weights() {
    const int64_t blocks = ceil_div(in_channels_, kChannels);
    const int64_t *ws = p_.weights_stride, in_stride = ws[forward_ ? 1 : 0],
                  out_stride = ws[forward_ ? 0 : 1];
    const auto* weights = static_cast<const T*>(p_.weights);
    const int64_t tasks = p_.groups * panels_.count * blocks;
    const int64_t operations = taps_ * std::min(in_channels_, kChannels) * panels_.width * 32;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; task++) {
        const int64_t channel = task % blocks * kChannels;
        const int64_t panel = task / blocks % panels_.count, group = task / blocks / panels_.count;
        const int64_t block = std::min(kChannels, in_channels_ - channel);
        const int64_t size = panels_.size(panel);
        const T* from = weights + group * p_.oc * ws[0] + panel * panels_.width * out_stride;
        for (int64_t c = 0; c < block; c++) {
          int64_t tap = 0;
          for_each_tap([&](int64_t d, int64_t h, int64_t w) {
            const T* line = from + (channel + c) * in_stride + d * ws[2] + h * ws[3] + w * ws[4];
            float* to = packed(group, panel, channel, tap++) + c * panels_.width;
            for (int64_t i = 0; i < size; i++)
              to[i] = static_cast<float>(line[i * out_stride]);
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

  void compute(const Tile& tile, float* sums, float* widened) const {
    const int64_t panel_size = tile.rows * tile.width * panels_.width;
    initialise(tile, sums, panel_size);
    const T* image = static_cast<const T*>(forward_ ? p_.src : p_.dst) + tile.n * in_stride_[0] +
        tile.group * in_channels_ * in_stride_[1];
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
    store(tile, sums, panel_size);
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
        T* to = static_cast<T*>(p_.out) + tile.n * out_stride_[0] + channel * out_stride_[1] +
            d * out_stride_[2] + h * out_stride_[3] + tile.x * out_stride_[4];
        store_rows(
            sums + i * panel_size + row * tile.width * panels_.width,
            panels_.width,
            tile.width,
            panels_.size(tile.panel + i),
            to,
            out_stride_[4],
            out_stride_[1]);
      }
    }
  }

  const ConvProblem& p_;
  const bool forward_;
  const int64_t in_channels_;
  const Panels panels_;
  const int64_t *in_stride_, *out_stride_, *out_size_;
  const int64_t taps_, in_step_, out_step_, tile_width_, tile_rows_, panels_per_task_;
  const Buffer weights_;
};

// Backward weights: for each tap, src^T dst summed over all pixels. What a task
// computes, and the order of its sums, depend on the problem alone: the result is
// the same for any number of threads.
template <class T>
class WeightsGradient {
 public:
  explicit WeightsGradient(const ConvProblem& p)
      : p_(p),
        panels_(p.oc),
        taps_(product(p.kernel)),
        block_(std::min(p.ic, kChannels)),
        taps_per_task_(std::clamp<int64_t>(kTaskFloats / (block_ * panels_.width), 1, taps_)),
        width_tiles_(ceil_div(p.dst_size[2], kPixels)),
        tiles_(p.n * p.dst_size[0] * p.dst_size[1] * width_tiles_),
        outputs_(
            p.groups * panels_.count * ceil_div(p.ic, block_) * ceil_div(taps_, taps_per_task_)),
        chunks_(std::clamp<int64_t>(kTasks / outputs_, 1, std::max<int64_t>(tiles_, 1))),
        task_size_(taps_per_task_ * block_ * panels_.width) {}

  void run() {
    const Buffer partial(chunks_ == 1 ? 0 : chunks_ * outputs_ * task_size_);
    const int64_t operations = tiles_ / chunks_ * kPixels * task_size_;
    parallel_tasks(outputs_ * chunks_, operations, [&](int64_t begin, int64_t end) {
      const Buffer local(chunks_ == 1 ? task_size_ : 0);
      const Buffer grads(kPixels * panels_.width);
      const Buffer widened(std::is_same_v<T, float> ? 0 : kPixels * block_);
      for (int64_t task = begin; task < end; task++) {
        float* sums = chunks_ == 1 ? local.data() : partial.data() + task * task_size_;
        const Output output = output_of(task / chunks_);
        accumulate(output, task % chunks_, sums, grads.data(), widened.data());
        if (chunks_ == 1)
          store(output, sums);
      }
    });
    if (chunks_ == 1)
      return;
    parallel_tasks(outputs_, chunks_ * task_size_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        float* sums = partial.data() + i * chunks_ * task_size_;
        for (int64_t chunk = 1; chunk < chunks_; chunk++) {
          const float* more = sums + chunk * task_size_;
          for (int64_t j = 0; j < task_size_; j++)
            sums[j] += more[j];
        }
        store(output_of(i), sums);
      }
    });
  }

 private:
  static constexpr int64_t kTaskFloats = 64 * 1024; // what a task accumulates stays in cache
  static constexpr int64_t kTasks = 32;             // enough for the threads to share

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

  void accumulate(const Output& o, int64_t chunk, float* sums, float* grads, float* widened) const {
    std::fill(sums, sums + task_size_, 0.0f);
    const int64_t oc = o.group * p_.oc + o.panel * panels_.width, size = panels_.size(o.panel);
    const int64_t ic = o.group * p_.ic + o.channel, vectors = panels_.vectors(o.panel);
    const int64_t *xs = p_.src_stride, *ys = p_.dst_stride;
    for (int64_t i = tiles_ * chunk / chunks_; i < tiles_ * (chunk + 1) / chunks_; i++) {
      const int64_t x0 = i % width_tiles_ * kPixels;
      const int64_t x1 = std::min(x0 + kPixels, p_.dst_size[2]);
      const int64_t row = i / width_tiles_, h = row % p_.dst_size[1];
      const int64_t d = row / p_.dst_size[1] % p_.dst_size[0];
      const int64_t n = row / p_.dst_size[1] / p_.dst_size[0];
      const Block b = load_grads(
          static_cast<const T*>(p_.dst) + n * ys[0] + oc * ys[1] + d * ys[2] + h * ys[3] +
              x0 * ys[4],
          x1 - x0,
          size,
          grads);
      for (int64_t t = 0; t < o.taps; t++) {
        const int64_t tap = o.tap + t, kw = tap % p_.kernel[2];
        const int64_t kh = tap / p_.kernel[2] % p_.kernel[1];
        const int64_t kd = tap / p_.kernel[2] / p_.kernel[1];
        const Segment sd = segment_of_dst(p_, 0, kd, d, d + 1);
        const Segment sh = segment_of_dst(p_, 1, kh, h, h + 1);
        const Segment sw = segment_of_dst(p_, 2, kw, x0, x1);
        if (sd.count <= 0 || sh.count <= 0 || sw.count <= 0)
          continue;
        const Block a = load_block(
            static_cast<const T*>(p_.src) + n * xs[0] + ic * xs[1] + sd.src * xs[2] +
                sh.src * xs[3] + sw.src * xs[4],
            sw.count,
            p_.stride[2] * xs[4],
            o.channels,
            xs[1],
            widened);
        gemm(
            o.channels,
            vectors,
            sw.count,
            {a.data,
             a.channel_stride,
             a.pixel_stride,
             b.data + (sw.dst - x0) * b.pixel_stride,
             b.pixel_stride,
             sums + t * block_ * panels_.width,
             panels_.width});
      }
    }
  }

  // Rows of whole vectors: as they lie, or copied with zeros behind the last channel.
  Block load_grads(const T* from, int64_t pixels, int64_t size, float* to) const {
    const int64_t stride = p_.dst_stride[1], pixel_stride = p_.dst_stride[4];
    if constexpr (std::is_same_v<T, float>) {
      if (stride == 1 && size % kLanes == 0)
        return {from, pixel_stride, 1};
    }
    for (int64_t i = 0; i < pixels; i++) {
      const T* pixel = from + i * pixel_stride;
      float* row = to + i * panels_.width;
      if (stride == 1) {
        at::vec::convert(pixel, row, size);
      } else {
        for (int64_t c = 0; c < size; c++)
          row[c] = static_cast<float>(pixel[c * stride]);
      }
      std::fill(row + size, row + panels_.width, 0.0f);
    }
    return {to, panels_.width, 1};
  }

  void store(const Output& o, const float* sums) const {
    const int64_t* ws = p_.weights_stride;
    const int64_t oc = o.group * p_.oc + o.panel * panels_.width;
    for (int64_t t = 0; t < o.taps; t++) {
      const int64_t tap = o.tap + t, kw = tap % p_.kernel[2];
      const int64_t kh = tap / p_.kernel[2] % p_.kernel[1];
      const int64_t kd = tap / p_.kernel[2] / p_.kernel[1];
      T* to = static_cast<T*>(p_.out) + oc * ws[0] + o.channel * ws[1] + kd * ws[2] + kh * ws[3] +
          kw * ws[4];
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
  const Panels panels_;
  const int64_t taps_, block_, taps_per_task_, width_tiles_, tiles_, outputs_, chunks_, task_size_;
};

template <class T>
void run_typed(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights) {
    WeightsGradient<T>(p).run();
  } else {
    Gather<T>(p).run();
  }
}

} // namespace

bool can_run_direct(const ConvProblem& p) {
  return p.dtype != c10::ScalarType::Double && p.ic * p.oc >= 16;
}

void run_direct(const ConvProblem& p) {
  switch (p.dtype) {
    case c10::ScalarType::BFloat16:
      return run_typed<c10::BFloat16>(p);
    case c10::ScalarType::Half:
      return run_typed<c10::Half>(p);
    default:
      return run_typed<float>(p);
  }
}

} // namespace torch_dnnl
