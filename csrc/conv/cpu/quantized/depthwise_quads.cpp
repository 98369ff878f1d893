// Quantized depthwise convolution by dot4 of bytes. Pixels are read as 64 adjacent channels: in
// place from channels-last images, and from copied rows of other images.
#include <algorithm>
#include <vector>

#include "conv/cpu/quantized/epilogue.h"
#include "conv/cpu/quantized/kernels.h"
#include "conv/cpu/quantized/tap_columns.h"
#include "conv/cpu/shared/image_rows.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
namespace {

using Columns = TapColumns;
constexpr int64_t kChannels = Columns::kChannels;
constexpr int64_t kPixels = 64; // of outputs whose sums stay in the first-level cache
constexpr int64_t kCopied =
    256 * 1024; // bytes of copied rows, which stay in the second-level cache

// How outputs are cut into tasks.
struct QuadPlan {
  bool reads_image;
  int64_t blocks, blocks_of_task; // of channels
  int64_t rows, row_blocks;       // of outputs, of a task
  int64_t rows_at_once;           // which follow one another in the result
  int64_t copied_rows;            // of the image, that a task meets
};

QuadPlan plan_quads(const ConvProblem& p, int64_t threads) {
  QuadPlan plan{};
  plan.reads_image = p.src_stride[1] == 1;
  plan.blocks = ceil_div(p.groups, kChannels);
  plan.blocks_of_task = plan.reads_image ? plan.blocks : 1;
  const auto are_joined = [&](const int64_t* stride) {
    return stride[3] == p.dst_size[2] * stride[4];
  };
  const bool has_joined_rows =
      are_joined(p.dst_stride) && (p.residual == nullptr || are_joined(p.residual_stride));
  plan.rows_at_once = has_joined_rows ? std::max<int64_t>(kPixels / p.dst_size[2], 1) : 1;
  plan.rows = plan.rows_at_once;
  const int64_t reach = (p.kernel[1] - 1) * p.dilation[1] + 1;
  const auto copied_rows = [&] { return (plan.rows - 1) * p.stride[1] + reach; };
  if (!plan.reads_image) {
    // The first rows of a task are copied again.
    const int64_t rows_of_copies = kCopied / (p.src_size[2] * kChannels);
    const int64_t most = std::max<int64_t>((rows_of_copies - reach) / p.stride[1], 2 * reach);
    const int64_t tasks = p.n * plan.blocks * p.dst_size[0];
    const int64_t enough = ceil_div(p.dst_size[1] * tasks, 4 * threads);
    plan.rows = std::clamp(enough, std::min(plan.rows_at_once, most), most);
  }
  plan.rows = std::min(plan.rows, p.dst_size[1]);
  plan.rows_at_once = std::min(plan.rows_at_once, plan.rows);
  plan.row_blocks = ceil_div(p.dst_size[1], plan.rows);
  plan.copied_rows = plan.reads_image ? 0 : copied_rows();
  return plan;
}

struct Place {
  int64_t n, d, block, h; // of outputs
};

// A block of channels of a plane of one image.
const uint8_t* plane_of(const ConvProblem& p, const Place& at, int64_t d) {
  const int64_t* const xs = p.src_stride;
  return static_cast<const uint8_t*>(p.src) + at.n * xs[0] + at.block * kChannels * xs[1] +
      d * xs[2];
}

// The rows of the image that a task meets, with channels that lie together.
class CopiedRows {
 public:
  CopiedRows(const ConvProblem& p, const QuadPlan& plan)
      : p_(p), memory_(plan.copied_rows * row_size()) {}

  // Of rows of outputs; there is one plane of taps.
  void copy(const Place& at, Range rows) {
    const int64_t* const xs = p_.src_stride;
    const int64_t reach = (p_.kernel[1] - 1) * p_.dilation[1] + 1, most = p_.src_size[1];
    const int64_t first = rows.begin * p_.stride[1] - p_.pad[1];
    const int64_t last = (rows.end - 1) * p_.stride[1] - p_.pad[1] + reach;
    first_ = std::clamp<int64_t>(first, 0, most);
    const int64_t end = std::clamp<int64_t>(last, 0, most);
    const int64_t d = at.d * p_.stride[0] - p_.pad[0], width = p_.src_size[2];
    if (d < 0 || d >= p_.src_size[0])
      return;
    const uint8_t* const plane = plane_of(p_, at, d);
    const int64_t channels = std::min(kChannels, p_.groups - at.block * kChannels);
    const int64_t at_once = xs[3] == width ? end - first_ : 1;
    const IntegerRows<uint8_t> as_they_are{/*is_signed=*/false, /*zero_point=*/0};
    for (int64_t h = first_; h < end; h += at_once)
      as_they_are.copy(
          {plane + h * xs[3], channels, xs[1], 0, at_once * width, 1, at_once * width, 1},
          kChannels,
          /*bytes=*/nullptr,
          memory_.data() + (h - first_) * row_size());
  }
  const uint8_t* at(int64_t row) const {
    return memory_.data() + (row - first_) * row_size();
  }

 private:
  int64_t row_size() const {
    return p_.src_size[2] * kChannels;
  }

  const ConvProblem& p_;
  const Scratch<uint8_t> memory_; // [row][pixel][channel]
  int64_t first_ = 0;             // row of the image
};

// In the order of sums: their initial values, which subtract the compensation, and the scales and
// biases of the epilogue, for so many channels. The other channels have 0.
class LaneSteps {
 public:
  LaneSteps(
      const QuantizedEpilogue& epilogue,
      const ColumnWeights& weights,
      const int32_t* compensation,
      int64_t channels)
      : first_(weights.blocks() * kChannels),
        scales_(weights.blocks() * kChannels),
        biases_(weights.blocks() * kChannels) {
    // Channels beyond the last are computed, too: without the zeros perhaps with subnormal numbers,
    // which take a hundred times as long.
    const int64_t n = weights.blocks() * kChannels;
    std::fill_n(first_.data(), n, 0);
    std::fill_n(scales_.data(), n, 0.0f);
    std::fill_n(biases_.data(), n, 0.0f);
    const auto [scale, bias, _] = epilogue.all_channels();
    for (int64_t c = 0; c < channels; c++) {
      const int64_t block = c / kChannels, copies = weights.is_half(block) ? 2 : 1;
      for (int64_t i = 0; i < copies; i++) {
        const int64_t at = block * kChannels + Columns::place(c % kChannels + i * Columns::kHalf);
        first_.data()[at] = wrapping_sub(0, compensation[c]);
        scales_.data()[at] = scale[c];
        biases_.data()[at] = bias[c];
      }
    }
  }

  const int32_t* first(int64_t block) const {
    return first_.data() + block * kChannels;
  }
  QuantizedEpilogue::Channels channels(int64_t block) const {
    return {scales_.data() + block * kChannels, biases_.data() + block * kChannels, nullptr};
  }

 private:
  const Scratch<int32_t> first_;
  const Scratch<float> scales_, biases_;
};

class DepthwiseQuads {
 public:
  explicit DepthwiseQuads(const QuantizedProblem& problem) : problem_(problem) {
    std::fill_n(pads_, kChannels, static_cast<uint8_t>(zero_point()));
  }

  void run() const {
    const int64_t block_tasks = ceil_div(plan_.blocks, plan_.blocks_of_task);
    const int64_t tasks = p_.n * p_.dst_size[0] * plan_.row_blocks * block_tasks;
    const int64_t operations = plan_.rows * p_.dst_size[2] * plan_.blocks_of_task * kChannels *
        layout_.count() * p_.kernel[2];
    parallel_tasks(tasks, operations, [&](SharedTasks::OfThread mine) {
      Workspace own(*this);
      for (const int64_t i : mine) {
        Digits digits{i};
        Place at{};
        const Range blocks =
            nth_range(digits.next(block_tasks), plan_.blocks_of_task, plan_.blocks);
        const Range rows = nth_range(digits.next(plan_.row_blocks), plan_.rows, p_.dst_size[1]);
        at.d = digits.next(p_.dst_size[0]);
        at.n = digits.rest;
        compute(at, blocks, rows, own);
      }
    });
  }

 private:
  // Memory of a thread.
  struct Workspace {
    explicit Workspace(const DepthwiseQuads& all)
        : rows(all.layout_.count()), copied(all.p_, all.plan_) {}
    std::vector<Columns::Rows> rows;
    CopiedRows copied;
    const Scratch<int32_t> sums{(kPixels + Columns::kOutputs) * kChannels};
    const QuantizedEpilogue::Workspace epilogue{kPixels * kChannels};
  };

  int zero_point() const { // of inputs in memory
    return static_cast<int>(problem_.src_zero_point.get());
  }
  bool is_signed() const {
    return p_.dtype == c10::kChar;
  }
  int64_t channels(int64_t block) const {
    return std::min(kChannels, p_.groups - block * kChannels);
  }
  void compute(Place at, Range blocks, Range rows, Workspace& own) const {
    if (!plan_.reads_image) {
      at.block = blocks.begin;
      own.copied.copy(at, rows);
    }
    for (int64_t end, h = rows.begin; h < rows.end; h = end) {
      end = std::min(h + plan_.rows_at_once, rows.end);
      for (at.block = blocks.begin; at.block < blocks.end; at.block++)
        compute_rows(at, {h, end}, own);
    }
  }

  void compute_rows(Place at, Range rows, Workspace& own) const {
    const Columns::Run run{
        own.rows.data(),
        layout_.count(),
        steps_.first(at.block),
        ~__mmask64(0) >> (kChannels - channels(at.block)),
        p_.src_size[2],
        pads_,
        _mm512_set1_epi8(is_signed() ? -128 : 0)};
    const int64_t width = p_.dst_size[2];
    const bool in_halves = is_in_halves(at.block);
    const AddColumns add = in_halves ? add_halves_ : add_;
    const int64_t outputs = (in_halves ? 2 : 1) * Columns::kOutputs;
    const int64_t step = in_halves ? Columns::kHalf : kChannels; // from sums to sums
    // Once, if there are several rows.
    for (int64_t w = 0; w < width; w += kPixels) {
      const int64_t pixels = std::min(kPixels, width - w);
      for (at.h = rows.begin; at.h < rows.end; at.h++) {
        select_rows(at, own);
        int32_t* const sums = own.sums.data() + (at.h - rows.begin) * pixels * kChannels;
        for (int64_t x = 0; x < pixels; x += outputs)
          add(run,
              (w + x) * p_.stride[2] - p_.pad[2],
              sums + x * step,
              kChannels,
              Columns::kOutputs);
      }
      const QuantizedRun results{
          own.sums.data(),
          kChannels,
          at.n,
          at.block * kChannels,
          at.d,
          rows.begin,
          w,
          channels(at.block),
          rows.count() * pixels,
          compensation_.data() + at.block * kChannels};
      if (is_in_lanes_) {
        epilogue_.store_lanes(results, in_halves, steps_.channels(at.block), own.epilogue);
      } else {
        sort_sums(own.sums.data(), results.pixels);
        epilogue_.store(results, own.epilogue);
      }
    }
  }

  void select_rows(const Place& at, Workspace& own) const {
    const int64_t* const xs = p_.src_stride;
    const int64_t step = plan_.reads_image ? xs[4] : kChannels;
    const auto row_at = [&](int64_t d, int64_t h) {
      return plan_.reads_image ? plane_of(p_, at, d) + h * xs[3] : own.copied.at(h);
    };
    layout_.select(weights_.data(), at.block, at.d, at.h, pads_, step, row_at, own.rows.data());
  }

  // Of each channel: the zero point times the sum of its weights.
  Scratch<int32_t> compensation() const {
    const int32_t* const sums = layout_.sums(weights_.data());
    const int64_t n = layout_.blocks() * kChannels;
    const int32_t offset = zero_point() + (is_signed() ? 128 : 0);
    Scratch<int32_t> all(n);
    for (int64_t c = 0; c < n; c++)
      all.data()[c] = offset * sums[c];
    return all;
  }

  // Rows of results follow one another in sums of whole vectors only.
  bool is_in_halves(int64_t block) const {
    return is_in_lanes_ && layout_.is_half(block) && plan_.rows_at_once == 1;
  }

  const QuantizedProblem& problem_;
  const ConvProblem& p_ = problem_.conv;
  const QuadPlan plan_ = plan_quads(p_, at::get_num_threads());
  const ColumnWeights layout_{p_};
  const PackedWeights<int8_t> weights_{p_, layout_.bytes(), [&](int8_t* to) { layout_.pack(to); }};
  const Scratch<int32_t> compensation_ = compensation();
  uint8_t pads_[kChannels]; // as the image has them
  const AddColumns add_ = add_columns_of(p_), add_halves_ = add_columns_of</*in_halves=*/true>(p_);
  const QuantizedEpilogue epilogue_{problem_};
  const bool is_in_lanes_ = epilogue_.takes_lanes();
  const LaneSteps steps_{epilogue_, layout_, compensation_.data(), is_in_lanes_ ? p_.groups : 0};
};

} // namespace

bool supports_quantized_depthwise_quads(const QuantizedProblem& p) {
  constexpr int64_t most = 1 << 24; // bytes of the rows that an output meets
  const ConvProblem& conv = p.conv;
  const int64_t reach = (conv.kernel[1] - 1) * conv.dilation[1] + 1;
  const bool can_copy = conv.src_stride[4] == 1 && conv.kernel[0] == 1 &&
      3 * reach * conv.stride[1] <= most / (kChannels * conv.src_size[2]);
  return has_short_sums(p) && conv.ic == 1 && conv.oc == 1 &&
      (conv.src_stride[1] == 1 || can_copy) && add_columns_of(conv) != nullptr &&
      __builtin_cpu_supports("avx512vnni");
}

void run_quantized_depthwise_quads(const QuantizedProblem& p) {
  DepthwiseQuads(p).run();
}

const Packing<QuantizedProblem> quantized_depthwise_quads_packing{
    [](const QuantizedProblem& p) { return ColumnWeights(p.conv).bytes(); },
    [](const QuantizedProblem& p, void* to) {
      ColumnWeights(p.conv).pack(static_cast<int8_t*>(to));
      return true;
    },
    [](const QuantizedProblem& p) { return p.conv.kernel[2]; }};

#else
const Packing<QuantizedProblem> quantized_depthwise_quads_packing{};

bool supports_quantized_depthwise_quads(const QuantizedProblem& /*p*/) {
  return false;
}

void run_quantized_depthwise_quads(const QuantizedProblem& /*p*/) {}
#endif

// Fewer channels waste most of a vector.
bool prefers_quantized_depthwise_quads(const QuantizedProblem& p) {
  return p.conv.groups >= 16;
}

} // namespace torch_dnnl
