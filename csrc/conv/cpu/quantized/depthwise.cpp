// Quantized depthwise convolution: vectors of channels in float32, which holds the sums exactly.
#include <algorithm>
#include <cstring>
#include <vector>

#include "conv/cpu/quantized/epilogue.h"
#include "conv/cpu/quantized/kernels.h"
#include "conv/cpu/shared/products/lines.h"
#include "core/cpu/parallel.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kChannels = 64;                  // of a task, at most
constexpr int kPixels = kRegisters == 32 ? 14 : 7; // whose sums are in registers, at most

// A task computes some rows of some channels.
struct DepthwisePlan {
  int64_t blocks, rows, row_blocks; // of channels; rows of a task
  int64_t window;                   // pixels of a line that a row meets
  int64_t line_size, input_rows;    // of a task
};

DepthwisePlan plan_depthwise(const ConvProblem& p, int64_t threads) {
  DepthwisePlan plan{.blocks = ceil_div(p.groups, kChannels)};
  // Lines are copied once for all rows of a task.
  const bool are_many = p.n * plan.blocks * p.dst_size[0] >= 4 * threads;
  const int64_t rows = std::max<int64_t>(are_many ? 16 : 8, 2 * p.kernel[1]);
  plan.rows = std::min(p.dst_size[1], rows);
  plan.row_blocks = ceil_div(p.dst_size[1], plan.rows);
  const auto met = [&](int axis, int64_t outputs) {
    return (outputs - 1) * p.stride[axis] + (p.kernel[axis] - 1) * p.dilation[axis] + 1;
  };
  plan.window = met(2, p.dst_size[2]);
  plan.line_size = plan.window * kChannels + kChannels; // vectors reach over the last channel
  plan.input_rows = met(1, plan.rows);
  return plan;
}

struct DepthwiseTask {
  int64_t n, d;
  Range channels, rows;
};

DepthwiseTask depthwise_task(const ConvProblem& p, const DepthwisePlan& plan, int64_t index) {
  Digits digits{index};
  DepthwiseTask task{};
  task.rows = nth_range(digits.next(plan.row_blocks), plan.rows, p.dst_size[1]);
  task.d = digits.next(p.dst_size[0]);
  task.channels = nth_range(digits.next(plan.blocks), kChannels, p.groups);
  task.n = digits.rest;
  return task;
}

// Memory of a thread.
struct DepthwiseWorkspace {
  DepthwiseWorkspace(const ConvProblem& p, const DepthwisePlan& plan)
      : lines(p.kernel[0] * plan.input_rows * plan.line_size),
        pads(plan.line_size),
        bytes(plan.line_size),
        sums(p.dst_size[2] * kChannels),
        epilogue(p.dst_size[2] * kChannels),
        rows(p.kernel[0] * p.kernel[1]) {
    std::fill_n(pads.data(), plan.line_size, 0.0f);
  }
  Scratch<float> lines, pads;
  Scratch<uint8_t> bytes;
  Scratch<int32_t> sums;
  QuantizedEpilogue::Workspace epilogue;
  Scratch<const float*> rows; // of inputs, by row of the kernel
};

class Depthwise {
 public:
  explicit Depthwise(const QuantizedProblem& problem) : problem_(problem) {
    const int64_t* ws = p_.weights_stride;
    const auto* weights = static_cast<const int8_t*>(p_.weights);
    for (int64_t t = 0; t < taps_; t++) {
      Digits digits{t};
      const int64_t kw = digits.next(p_.kernel[2]), kh = digits.next(p_.kernel[1]);
      const int8_t* tap = weights + digits.rest * ws[2] + kh * ws[3] + kw * ws[4];
      for (int64_t c = 0; c < p_.groups; c++)
        weights_.data()[at(c / kChannels, t) + c % kChannels] = tap[c * ws[0]];
    }
  }

  void run() const {
    const int64_t tasks = p_.n * plan_.blocks * p_.dst_size[0] * plan_.row_blocks;
    const int64_t operations = plan_.rows * p_.dst_size[2] * taps_ * kChannels / 4;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const DepthwiseWorkspace own(p_, plan_);
      for (int64_t i = begin; i < end; i++) {
        const DepthwiseTask task = depthwise_task(p_, plan_, i);
        copy_lines(task, own);
        for (int64_t h = task.rows.begin; h < task.rows.end; h++)
          compute_row(task, h, own);
      }
    });
  }

 private:
  int64_t at(int64_t block, int64_t tap) const {
    return (block * taps_ + tap) * kChannels;
  }
  // The input row that output row h meets at kh = 0, and the input plane of kd.
  int64_t input_row(int64_t h) const {
    return h * p_.stride[1] - p_.pad[1];
  }
  int64_t input_plane(const DepthwiseTask& task, int64_t kd) const {
    return task.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
  }
  bool is_inside(int64_t d, int64_t row) const {
    return d >= 0 && d < p_.src_size[0] && row >= 0 && row < p_.src_size[1];
  }

  void copy_lines(const DepthwiseTask& task, const DepthwiseWorkspace& own) const {
    const int64_t channels = task.channels.count(), *xs = p_.src_stride;
    const int64_t first = input_row(task.rows.begin);
    const int64_t end = input_row(task.rows.end - 1) + (p_.kernel[1] - 1) * p_.dilation[1] + 1;
    for (int64_t kd = 0; kd < p_.kernel[0]; kd++) {
      const int64_t d = input_plane(task, kd);
      for (int64_t row = first; row < end; row++) {
        if (!is_inside(d, row))
          continue;
        const auto* image = static_cast<const uint8_t*>(p_.src) + task.n * xs[0] +
            task.channels.begin * xs[1] + d * xs[2] + row * xs[3];
        lines_.copy(
            {image, channels, xs[1], -p_.pad[2], plan_.window, 1, p_.src_size[2], xs[4]},
            channels,
            own.bytes.data(),
            own.lines.data() + (kd * plan_.input_rows + row - first) * plan_.line_size);
      }
    }
  }

  void compute_row(const DepthwiseTask& task, int64_t h, const DepthwiseWorkspace& own) const {
    const int64_t first = input_row(task.rows.begin), channels = task.channels.count();
    for (int64_t kd = 0; kd < p_.kernel[0]; kd++) {
      for (int64_t kh = 0; kh < p_.kernel[1]; kh++) {
        const int64_t row = input_row(h) + kh * p_.dilation[1];
        const float* line =
            own.lines.data() + (kd * plan_.input_rows + row - first) * plan_.line_size;
        own.rows.data()[kd * p_.kernel[1] + kh] =
            is_inside(input_plane(task, kd), row) ? line : own.pads.data();
      }
    }
    add_row(task.channels.begin / kChannels, channels, own);
    epilogue_.store(
        {own.sums.data(),
         kChannels,
         task.n,
         task.channels.begin,
         task.d,
         h,
         /*w=*/0,
         channels,
         p_.dst_size[2],
         no_excess_.data()},
        own.epilogue);
  }

  void add_row(int64_t block, int64_t channels, const DepthwiseWorkspace& own) const {
    static constexpr auto kAdd =
        table_of<kPixels>([](auto pixels) { return &Depthwise::add_pixels<pixels>; });
    const float* weights = weights_.data() + at(block, 0);
    const int64_t row = p_.dst_size[2], parts = ceil_div(row, kPixels);
    for (int64_t c = 0; c < channels; c += kLanes<float>) {
      for (int64_t part = 0; part < parts; part++) { // as equal as can be
        const int64_t x = row * part / parts, end = row * (part + 1) / parts;
        (this->*kAdd[end - x - 1])(x, c, channels, weights, own);
      }
    }
  }

  // A vector of channels of a few pixels.
  template <int pixels>
  void add_pixels(
      int64_t x,
      int64_t c,
      int64_t channels,
      const float* weights,
      const DepthwiseWorkspace& own) const {
    Vector<float> sums[pixels] = {};
    const int64_t step = p_.stride[2] * channels, tap_step = p_.dilation[2] * channels;
    const float* weight = weights + c;
    for (int64_t row = 0; row < p_.kernel[0] * p_.kernel[1]; row++) {
      const float* from = own.rows.data()[row] + x * step + c;
      for (int64_t k = 0; k < p_.kernel[2]; k++, from += tap_step, weight += kChannels) {
        const Vector<float> value = load_vector(weight);
#pragma GCC unroll 14
        for (int i = 0; i < pixels; i++)
          sums[i] = multiply_add<float>(load_vector(from + i * step), value, sums[i]);
      }
    }
#pragma GCC unroll 14
    for (int i = 0; i < pixels; i++) {
      const auto integers = __builtin_convertvector(sums[i], Vector<int32_t>);
      store_vector<int32_t>(own.sums.data() + (x + i) * kChannels + c, integers);
    }
  }

  const QuantizedProblem& problem_;
  const ConvProblem& p_ = problem_.conv;
  const int64_t taps_ = product(p_.kernel);
  const DepthwisePlan plan_ = plan_depthwise(p_, at::get_num_threads());
  const IntegerLines<float> lines_{
      p_.dtype == c10::kChar,
      static_cast<int>(problem_.src_zero_point.get())};
  std::vector<float> weights_ = std::vector<float>(plan_.blocks * taps_ * kChannels);
  const std::vector<int32_t> no_excess_ = std::vector<int32_t>(kChannels);
  const QuantizedEpilogue epilogue_{problem_};
};

} // namespace

bool supports_quantized_depthwise(const QuantizedProblem& p) {
  constexpr int64_t most = (1 << 24) / (255 * 128); // products whose sum float32 holds
  return p.conv.ic == 1 && p.conv.oc == 1 && product(p.conv.kernel) <= most;
}

void run_quantized_depthwise(const QuantizedProblem& p) {
  Depthwise(p).run();
}

} // namespace torch_dnnl
