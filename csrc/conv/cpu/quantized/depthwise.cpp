// Quantized depthwise convolution, and that of groups of few channels: vectors of output channels,
// and products of pairs of 16-bit numbers, which are exact.
#include <algorithm>
#include <vector>

#include "conv/cpu/quantized/depthwise_lines.h"
#include "conv/cpu/quantized/depthwise_plan.h"
#include "conv/cpu/quantized/epilogue.h"
#include "conv/cpu/quantized/kernels.h"
#include "core/cpu/dot2.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {
namespace {

constexpr int kPixels = kRegisters == 32 ? 28 : 12; // whose sums are in registers, at most

// Where the pairs of a row of outputs are, for a row of the kernel that meets data: the line of
// inputs, and the weights of the first vector.
struct RowOfTaps {
  const Int32Lanes *line, *weights;
};

// Some outputs, and where what they are computed from lies, in vectors.
struct DepthwiseRun {
  const RowOfTaps* rows;
  int64_t count;        // of rows
  const int64_t* terms; // where the pairs of each term of a row are
  int64_t term_count, output_step;
  int64_t line_offset, weights_offset; // of the channels, and of the first output
};

// The sums of a vector of channels, `pitch` from a pixel's to the next.
template <int pixels>
void add_pixels(const DepthwiseRun& run, int32_t* to, int64_t pitch) {
  Int32Lanes sums[pixels] = {};
  for (int64_t r = 0; r < run.count; r++) {
    const Int32Lanes* const line = run.rows[r].line + run.line_offset;
    const Int32Lanes* const weights = run.rows[r].weights + run.weights_offset;
    for (int64_t j = 0; j < run.term_count; j++) {
      const Int32Lanes weight = weights[j], *from = line + run.terms[j];
#pragma GCC unroll 28
      for (int i = 0; i < pixels; i++)
        sums[i] = dot2(sums[i], from[i * run.output_step], weight);
    }
  }
#pragma GCC unroll 28
  for (int i = 0; i < pixels; i++)
    store_int32(to + i * pitch, sums[i]);
}

// Memory of a thread.
struct DepthwiseWorkspace {
  DepthwiseWorkspace(const QuantizedProblem& p, const DepthwisePlan& plan)
      : lines(p, plan),
        sums(plan.width * plan.block),
        epilogue(plan.width * plan.block),
        rows(p.conv.kernel[0] * p.conv.kernel[1]) {}
  DepthwiseLines lines;
  Scratch<int32_t> sums;
  QuantizedEpilogue::Workspace epilogue;
  std::vector<RowOfTaps> rows;
};

// Pairs of weights: [vector][row of the kernel][term][channel of the vector][2].
class WeightPairs {
 public:
  WeightPairs(const ConvProblem& p, const DepthwisePlan& plan) : p_(p), plan_(plan) {}

  int64_t size() const { // elements
    return 2 * ceil_div(channels_, kInt32Lanes) * vector_;
  }
  void pack(int16_t* to) const {
    std::fill_n(to, size(), int16_t(0));
    parallel_ranges(ceil_div(channels_, kInt32Lanes), 2 * vector_, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin * kInt32Lanes; c < std::min(end * kInt32Lanes, channels_); c++)
        pack_channel(c / p_.oc, c % p_.oc, to + 2 * (c / kInt32Lanes * vector_ + c % kInt32Lanes));
    });
  }

 private:
  void pack_channel(int64_t group, int64_t channel, int16_t* to) const {
    const int64_t* ws = p_.weights_stride;
    const int8_t* const weights =
        static_cast<const int8_t*>(p_.weights) + group * p_.weights_group + channel * ws[0];
    for (int64_t kd = 0; kd < p_.kernel[0]; kd++)
      for (int64_t kh = 0; kh < p_.kernel[1]; kh++)
        for (int64_t tap = 0; tap < plan_.taps; tap++)
          for (int64_t pair = 0; pair < plan_.channel_pairs; pair++, to += 2 * kInt32Lanes) {
            const int64_t kw = tap * plan_.pair_taps, i = 2 * pair;
            const int8_t* const first = weights + i * ws[1] + kd * ws[2] + kh * ws[3] + kw * ws[4];
            to[0] = first[0];
            if (plan_.pair_taps == 2 ? kw + 1 < p_.kernel[2] : i + 1 < p_.ic)
              to[1] = first[plan_.pair_taps == 2 ? ws[4] : ws[1]];
          }
  }

  const ConvProblem& p_;
  const DepthwisePlan& plan_;
  const int64_t channels_ = p_.groups * p_.oc;
  const int64_t vector_ = p_.kernel[0] * p_.kernel[1] * plan_.terms() * kInt32Lanes; // pairs
};

class Depthwise {
 public:
  explicit Depthwise(const QuantizedProblem& problem) : problem_(problem) {}

  void run() const {
    const int64_t tasks = p_.n * plan_.blocks * plan_.tiles * p_.dst_size[0] * plan_.row_blocks;
    const int64_t operations =
        plan_.rows * plan_.width * kernel_rows_ * plan_.terms() * plan_.block / 2;
    parallel_tasks(tasks, operations, [&](SharedTasks::OfThread mine) {
      DepthwiseWorkspace own(problem_, plan_);
      for (const int64_t i : mine) {
        const DepthwiseTask task = depthwise_task(p_, plan_, i);
        own.lines.select_task(task);
        for (int64_t h = task.rows.begin; h < task.rows.end; h++)
          compute_row(task, h, own);
      }
    });
  }

 private:
  void compute_row(const DepthwiseTask& task, int64_t h, DepthwiseWorkspace& own) const {
    int64_t count = 0;
    const auto* const weights = reinterpret_cast<const Int32Lanes*>(weights_.data());
    for (int64_t kd = 0; kd < p_.kernel[0]; kd++) {
      const int64_t d = task.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
      if (d < 0 || d >= p_.src_size[0])
        continue;
      for (int64_t kh = 0; kh < p_.kernel[1]; kh++) {
        const int64_t row = h * p_.stride[1] + kh * p_.dilation[1] - p_.pad[1];
        if (row < 0 || row >= p_.src_size[1])
          continue;
        own.rows[count++] = {
            own.lines.line(kd, kh, d, row), weights + (kd * p_.kernel[1] + kh) * plan_.terms()};
      }
    }
    add_row(task, count, own);
    epilogue_.store(
        {own.sums.data(),
         plan_.block,
         task.n,
         task.channels.begin,
         task.d,
         h,
         task.pixels.begin,
         task.channels.count(),
         task.pixels.count(),
         no_compensation_.data()},
        own.epilogue);
  }

  void add_row(const DepthwiseTask& task, int64_t rows, const DepthwiseWorkspace& own) const {
    static constexpr auto kAdd = table_of<kPixels>([](auto pixels) { return &add_pixels<pixels>; });
    const int64_t row = task.pixels.count(), parts = ceil_div(row, int64_t(kPixels));
    for (int64_t c = 0; c < task.channels.count(); c += kInt32Lanes) {
      const int64_t line = c / kInt32Lanes * plan_.channel_pairs * plan_.line;
      const int64_t vector = (task.channels.begin + c) / kInt32Lanes;
      DepthwiseRun run{own.rows.data(), rows, terms_.data(), plan_.terms(), plan_.output_step};
      run.weights_offset = vector * kernel_rows_ * plan_.terms();
      for (int64_t part = 0; part < parts; part++) { // as equal as can be
        const int64_t x = row * part / parts, end = row * (part + 1) / parts;
        run.line_offset = line + x * plan_.output_step;
        kAdd[end - x - 1](run, own.sums.data() + x * plan_.block + c, plan_.block);
      }
    }
  }

  std::vector<int64_t> terms() const {
    std::vector<int64_t> terms;
    for (int64_t tap = 0; tap < plan_.taps; tap++)
      for (int64_t pair = 0; pair < plan_.channel_pairs; pair++)
        terms.push_back(plan_.pairs_at(tap, pair));
    return terms;
  }

  const QuantizedProblem& problem_;
  const ConvProblem& p_ = problem_.conv;
  const int64_t kernel_rows_ = p_.kernel[0] * p_.kernel[1];
  const DepthwisePlan plan_ = plan_depthwise(p_, at::get_num_threads());
  const std::vector<int64_t> terms_ = terms();
  const WeightPairs pairs_{p_, plan_};
  const PackedWeights<int16_t> weights_{p_, pairs_.size(), [&](int16_t* to) { pairs_.pack(to); }};
  const std::vector<int32_t> no_compensation_ = std::vector<int32_t>(plan_.block);
  const QuantizedEpilogue epilogue_{problem_};
};

template <class F>
auto with_pairs(const QuantizedProblem& p, const F& f) {
  const DepthwisePlan plan = plan_depthwise(p.conv, /*threads=*/1);
  return f(WeightPairs(p.conv, plan));
}

} // namespace

const Packing<QuantizedProblem> quantized_depthwise_packing{
    [](const QuantizedProblem& p) {
      return with_pairs(p, [](const WeightPairs& pairs) {
        return pairs.size() * static_cast<int64_t>(sizeof(int16_t));
      });
    },
    [](const QuantizedProblem& p, void* to) {
      with_pairs(p, [&](const WeightPairs& pairs) { pairs.pack(static_cast<int16_t*>(to)); });
      return true;
    },
    [](const QuantizedProblem& p) { return p.conv.kernel[2]; }};

// A vector has whole groups or parts of one, and 16 bytes have all inputs of its groups.
bool supports_quantized_depthwise(const QuantizedProblem& p) {
  const int64_t ic = p.conv.ic, oc = p.conv.oc;
  const bool is_depthwise = ic == 1 && oc == 1;
  const bool has_few = ic > 1 && ic <= oc && kPanelLanes % oc == 0;
  return has_short_sums(p) && (is_depthwise || has_few);
}

bool prefers_quantized_depthwise(const QuantizedProblem& p) {
  // Groups of more channels fill the columns of products.
  return (p.conv.ic == 1 || p.conv.groups > 1) && p.conv.oc < kPanelLanes;
}

void run_quantized_depthwise(const QuantizedProblem& p) {
  Depthwise(p).run();
}

} // namespace torch_dnnl
