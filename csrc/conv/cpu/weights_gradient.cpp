#include <algorithm>

#include "conv/cpu/blocks.h"
#include "conv/cpu/direct.h"
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
        taps_per_task_(std::clamp<int64_t>(kTaskFloats / (block_ * panels_.width), 1, taps_)),
        width_tiles_(ceil_div(p.dst_size[2], kPixels)),
        tiles_(p.n * p.dst_size[0] * p.dst_size[1] * width_tiles_),
        outputs_(
            p.groups * panels_.count * ceil_div(p.ic, block_) * ceil_div(taps_, taps_per_task_)),
        chunks_(std::clamp<int64_t>(kTasks / outputs_, 1, std::max<int64_t>(tiles_, 1))),
        task_size_(taps_per_task_ * block_ * panels_.width) {}

  void run() {
    const Scratch<C> partial(chunks_ == 1 ? 0 : chunks_ * outputs_ * task_size_);
    const int64_t operations = tiles_ / chunks_ * kPixels * task_size_;
    parallel_tasks(outputs_ * chunks_, operations, [&](int64_t begin, int64_t end) {
      const Scratch<C> local(chunks_ == 1 ? task_size_ : 0);
      const Scratch<C> grads(kPixels * panels_.width);
      const Scratch<C> widened(std::is_same_v<T, C> ? 0 : kPixels * block_);
      for (int64_t task = begin; task < end; task++) {
        C* sums = chunks_ == 1 ? local.data() : partial.data() + task * task_size_;
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
        C* sums = partial.data() + i * chunks_ * task_size_;
        for (int64_t chunk = 1; chunk < chunks_; chunk++) {
          const C* more = sums + chunk * task_size_;
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

  void accumulate(const Output& o, int64_t chunk, C* sums, C* grads, C* widened) const {
    std::fill(sums, sums + task_size_, C(0));
    const int64_t oc = o.group * p_.oc + o.panel * panels_.width, size = panels_.size(o.panel);
    const int64_t ic = o.group * p_.ic + o.channel, vectors = panels_.vectors(o.panel);
    const int64_t *xs = p_.src_stride, *ys = p_.dst_stride;
    for (int64_t i = tiles_ * chunk / chunks_; i < tiles_ * (chunk + 1) / chunks_; i++) {
      const int64_t x0 = i % width_tiles_ * kPixels;
      const int64_t x1 = std::min(x0 + kPixels, p_.dst_size[2]);
      const int64_t row = i / width_tiles_, h = row % p_.dst_size[1];
      const int64_t d = row / p_.dst_size[1] % p_.dst_size[0];
      const int64_t n = row / p_.dst_size[1] / p_.dst_size[0];
      const Block<C> b = load_grads(
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
        const Block<C> a = load_block(
            static_cast<const T*>(p_.src) + n * xs[0] + ic * xs[1] + sd.src * xs[2] +
                sh.src * xs[3] + sw.src * xs[4],
            sw.count,
            p_.stride[2] * xs[4],
            o.channels,
            xs[1],
            widened);
        gemm<C>(
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
  Block<C> load_grads(const T* from, int64_t pixels, int64_t size, C* to) const {
    const int64_t stride = p_.dst_stride[1], pixel_stride = p_.dst_stride[4];
    if constexpr (std::is_same_v<T, C>) {
      if (stride == 1 && size % kLanes<C> == 0)
        return {from, pixel_stride, 1};
    }
    for (int64_t i = 0; i < pixels; i++) {
      std::fill(to + i * panels_.width + size, to + (i + 1) * panels_.width, C(0));
    }
    if constexpr (std::is_same_v<T, C>) {
      if (pixel_stride == 1) {
        transpose(from, stride, size, pixels, to, panels_.width);
        return {to, panels_.width, 1};
      }
    }
    for (int64_t i = 0; i < pixels; i++) {
      const T* pixel = from + i * pixel_stride;
      C* row = to + i * panels_.width;
      if (stride == 1) {
        at::vec::convert(pixel, row, size);
      } else {
        for (int64_t c = 0; c < size; c++)
          row[c] = static_cast<C>(pixel[c * stride]);
      }
    }
    return {to, panels_.width, 1};
  }

  void store(const Output& o, const C* sums) const {
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
  const Panels<C> panels_;
  const int64_t taps_, block_, taps_per_task_, width_tiles_, tiles_, outputs_, chunks_, task_size_;
};

} // namespace

void run_weights_gradient(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) {
    WeightsGradient<typename decltype(tag)::type>(p).run();
  });
}

} // namespace torch_dnnl
