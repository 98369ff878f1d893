// Quantized convolution of groups with few channels, in int32: a thread computes four neighbouring
// output channels of four neighbouring pixels of a row.
//
// Four output channels need the inputs of one group or of a few, which are next to each other: the
// window of the run. It is read by words of four channels. To each word and output channel belong
// four weights, those of other groups being 0, so that one instruction multiplies and adds: in a
// depthwise convolution one weight of the four is not 0. A kernel that runs first lays weights out
// this way.
#include <algorithm>
#include <limits>

#include "conv/cuda/quantized/epilogue.h"
#include "conv/cuda/quantized/kernels.h"
#include "conv/reference.h"
#include "core/cuda/dot.h"
#include "core/dispatch.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWord = 4; // channels of inputs

struct WordsProblem {
  QuantizedProblem q;
  QuantizedRuns runs;
  int64_t channel_runs, width_runs; // of all output channels; of a row of pixels
  int words;                        // of the longest window
  bool reads_words;                 // whether inputs are read by words, else by bytes
  // [tap][word][run][output channel]
  const uint32_t* weights;

  explicit WordsProblem(const QuantizedProblem& q)
      : q(q), runs(q, q.conv.groups * q.conv.oc), words(0), weights(nullptr) {
    const ConvProblem& p = q.conv;
    channel_runs = ceil_div(p.groups * p.oc, kRun);
    width_runs = ceil_div(p.dst_size[2], kRun);
    const int64_t channels = p.groups * p.ic;
    const int64_t size[3] = {p.src_size[0], p.src_size[1], p.src_size[2]};
    reads_words = p.src_stride[1] == 1 && channels % kWord == 0 && is_aligned(p.src, kWord) &&
        (p.n == 1 || p.src_stride[0] % kWord == 0);
    for (int a = 0; a < 3; a++)
      reads_words &= size[a] == 1 || p.src_stride[2 + a] % kWord == 0;
    // Windows of later runs are like those of the first ones.
    for (int64_t run = 0; run < std::min(channel_runs, p.oc); run++) {
      const int64_t last = std::min((run + 1) * kRun, p.groups * p.oc) - 1;
      const int64_t end = (last / p.oc + 1) * p.ic;
      words = std::max(words, static_cast<int>(ceil_div(end - first_input(run), kWord)));
      reads_words &= first_input(run) % kWord == 0;
    }
    // Runs of pixels begin where rows do.
    const bool is_whole = !runs.along_pixels || p.dst_size[2] % kRun == 0;
    runs.dst_is_whole &= is_whole;
    runs.residual_is_whole &= is_whole;
  }

  // The first input channel, of all groups, of a run of output channels.
  TORCH_DNNL_HD int64_t first_input(int64_t run) const {
    return run * kRun / q.conv.oc * q.conv.ic;
  }
  TORCH_DNNL_HD int64_t weight_words() const {
    return product(q.conv.kernel) * words * channel_runs * kRun;
  }
};

// The weights of one word.
struct PackWords {
  WordsProblem p;
  uint32_t* packed;

  TORCH_DNNL_HD void operator()(int64_t i) const {
    const ConvProblem& c = p.q.conv;
    const int64_t oc = position(i, p.channel_runs * kRun, 1);
    const int64_t word = position(i, p.words, p.channel_runs * kRun);
    const int64_t tap = i / (p.channel_runs * kRun * p.words);
    // From the first input of the channel's group on.
    const int64_t group = oc / c.oc;
    const int64_t first = p.first_input(oc / kRun) + word * kWord - group * c.ic;
    const auto* from = static_cast<const unsigned char*>(c.weights) + oc * c.weights_stride[0];
    int64_t stride = 1;
    for (int a = 2; a >= 0; a--) {
      from += position(tap, c.kernel[a], stride) * c.weights_stride[2 + a];
      stride *= c.kernel[a];
    }
    uint32_t bytes = 0;
    for (int e = 0; e < kWord; e++) {
      const int64_t input = first + e;
      if (group < c.groups && input >= 0 && input < c.ic)
        bytes |= static_cast<uint32_t>(from[input * c.weights_stride[1]]) << 8 * e;
    }
    packed[i] = bytes;
  }
};

// Where a thread's outputs are.
struct Outputs {
  int64_t run, n, x[3]; // x: of the first pixel

  TORCH_DNNL_HD Outputs(const WordsProblem& p, int64_t index) {
    const ConvProblem& c = p.q.conv;
    Digits rest{index};
    // Neighbouring threads access what is close in memory.
    if (!p.runs.along_pixels)
      run = next(rest, p.channel_runs);
    x[2] = next(rest, p.width_runs) * kRun;
    x[1] = next(rest, c.dst_size[1]);
    x[0] = next(rest, c.dst_size[0]);
    if (p.runs.along_pixels)
      run = next(rest, p.channel_runs);
    n = rest.rest;
  }

 private:
  // 32-bit division is several times faster.
  TORCH_DNNL_HD static int64_t next(Digits& digits, int64_t count) {
    if ((digits.rest | count) >> 32 != 0)
      return digits.next(count);
    const auto rest = static_cast<uint32_t>(digits.rest), by = static_cast<uint32_t>(count);
    digits.rest = rest / by;
    return rest % by;
  }
};

// Four channels of a pixel; those beyond the last one are 0.
template <bool reads_words>
__device__ __forceinline__ uint32_t
load_word(const unsigned char* from, int64_t channel_stride, int64_t channels_left) {
  if constexpr (reads_words)
    return *reinterpret_cast<const uint32_t*>(from);
  uint32_t word = 0;
#pragma unroll
  for (int e = 0; e < kWord; e++)
    if (e < channels_left)
      word |= static_cast<uint32_t>(from[e * channel_stride]) << 8 * e;
  return word;
}

template <class T, bool reads_words>
__global__ void __launch_bounds__(kThreads)
    quantized_depthwise_kernel(int64_t items, const __grid_constant__ WordsProblem p) {
  const ConvProblem& c = p.q.conv;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= items)
    return;
  const Outputs o(p, item);
  const int64_t *stride = c.src_stride, first_input = p.first_input(o.run);
  int64_t first[3];
#pragma unroll
  for (int a = 0; a < 3; a++)
    first[a] = o.x[a] * c.stride[a] - c.pad[a];
  const Range depths = within(first[0], c.dilation[0], c.src_size[0], c.kernel[0]);
  const Range rows = within(first[1], c.dilation[1], c.src_size[1], c.kernel[1]);
  const auto zero_point = static_cast<int32_t>(p.q.src_zero_point.get());
  const auto* src =
      static_cast<const unsigned char*>(c.src) + o.n * stride[0] + first_input * stride[1];
  const uint32_t pads = 0x01010101u * static_cast<unsigned char>(zero_point);
  // [pixel][output channel]; weights: the sums of those that were multiplied
  int32_t sums[kRun][kRun] = {}, weights[kRun] = {};
  // The last window may be shorter than others.
  const int64_t channels_left = c.groups * c.ic - first_input;
  const int words = static_cast<int>(min(int64_t(p.words), ceil_div(channels_left, kWord)));
  const int64_t word_step = p.channel_runs * kRun; // from the weights of a word to the next
  const int64_t pixel_step = c.stride[2] * stride[4];
  const auto pixel_columns = static_cast<int>(c.stride[2]);
  const auto width = static_cast<unsigned>(c.src_size[2]);
  for (int64_t d = depths.begin; d < depths.end; d++) {
    for (int64_t h = rows.begin; h < rows.end; h++) {
      const unsigned char* of_tap = src + (first[0] + d * c.dilation[0]) * stride[2] +
          (first[1] + h * c.dilation[1]) * stride[3] + first[2] * stride[4];
      const uint32_t* of_weights =
          p.weights + (d * c.kernel[1] + h) * c.kernel[2] * p.words * word_step + o.run * kRun;
      auto column = static_cast<int>(first[2]);
      for (auto taps = static_cast<int>(c.kernel[2]); taps > 0; taps--) {
        const unsigned char* of_word = of_tap;
        for (int word = 0; word < words; word++) {
          const auto w = load_vector<kRun>(of_weights + word * word_step);
#pragma unroll
          for (int e = 0; e < kRun; e++)
            weights[e] = dot<uint8_t>(0x01010101, w.at[e], weights[e]);
#pragma unroll
          for (int pixel = 0; pixel < kRun; pixel++) {
            uint32_t x = pads;
            if (static_cast<unsigned>(column + pixel * pixel_columns) < width) {
              x = load_word<reads_words>(
                  of_word + pixel * pixel_step, stride[1], channels_left - word * kWord);
            }
#pragma unroll
            for (int e = 0; e < kRun; e++)
              sums[pixel][e] = dot<T>(x, w.at[e], sums[pixel][e]);
          }
          of_word += kWord * stride[1];
        }
        of_weights += p.words * word_step;
        of_tap += c.dilation[2] * stride[4];
        column += static_cast<int>(c.dilation[2]);
      }
    }
  }

  const QuantizedSteps steps(p.q);
  const int64_t oc = o.run * kRun;
  const auto channels = static_cast<int>(min(c.groups * c.oc - oc, int64_t(kRun)));
  const auto pixels = static_cast<int>(min(c.dst_size[2] - o.x[2], int64_t(kRun)));
  float scale[kRun], bias[kRun];
  int32_t excess[kRun];
#pragma unroll
  for (int e = 0; e < kRun; e++) {
    const int64_t channel = oc + (e < channels ? e : 0);
    scale[e] = steps.scale(p.q, channel);
    bias[e] = QuantizedSteps::bias(p.q, channel);
    excess[e] = zero_point * weights[e];
  }
  const auto offset = [&](const int64_t* to, int channel, int pixel) {
    return o.n * to[0] + (oc + channel) * to[1] + o.x[0] * to[2] + o.x[1] * to[3] +
        (o.x[2] + pixel) * to[4];
  };
  // The runs of the 4 x 4 outputs.
#pragma unroll
  for (int i = 0; i < kRun; i++) {
    const bool along_pixels = p.runs.along_pixels;
    if (i >= (along_pixels ? channels : pixels))
      break;
    int32_t of_run[kRun];
    float scale_of[kRun], bias_of[kRun];
    RunOffsets dst, residual;
#pragma unroll
    for (int e = 0; e < kRun; e++) {
      const int channel = along_pixels ? i : e, pixel = along_pixels ? e : i;
      of_run[e] = along_pixels ? sums[e][i] - excess[i] : sums[i][e] - excess[e];
      scale_of[e] = along_pixels ? scale[i] : scale[e];
      bias_of[e] = along_pixels ? bias[i] : bias[e];
      dst.at[e] = offset(c.dst_stride, channel, pixel);
      residual.at[e] = offset(c.residual_stride, channel, pixel);
    }
    complete_run(
        p.q,
        steps,
        p.runs,
        of_run,
        scale_of,
        bias_of,
        along_pixels ? pixels : channels,
        dst,
        residual);
  }
}

int64_t items_of(const ConvProblem& p) {
  return ceil_div(p.groups * p.oc, kRun) * ceil_div(p.dst_size[2], kRun) * p.dst_size[0] *
      p.dst_size[1] * p.n;
}

} // namespace

bool supports_quantized_depthwise(const QuantizedProblem& q) {
  const ConvProblem& p = q.conv;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  // Columns of the image, and those beside it that runs meet.
  const int64_t columns =
      (p.dst_size[2] + kRun) * p.stride[2] + p.kernel[2] * p.dilation[2] + p.pad[2];
  const bool is_prelu = p.activation == Activation::prelu; // the reference has it
  return p.ic > 0 && !is_prelu && has_short_sums(q) && ceil_div(items_of(p), kThreads) <= kMost &&
      std::max(columns, p.src_size[2]) <= kMost;
}

void run_quantized_depthwise(const QuantizedProblem& q) {
  WordsProblem p(q);
  const Scratch packed(p.weight_words() * sizeof(uint32_t));
  auto* weights = static_cast<uint32_t*>(packed.data());
  for_each_element(p.weight_words(), PackWords{p, weights});
  p.weights = weights;
  const int64_t items = items_of(q.conv);
  const dim3 grid(static_cast<unsigned>(ceil_div(items, kThreads)));
  dispatch(TypeList<uint8_t, int8_t>{}, q.conv.dtype, [&]<class T>(std::type_identity<T>) {
    launch(
        p.reads_words ? quantized_depthwise_kernel<T, true> : quantized_depthwise_kernel<T, false>,
        grid,
        dim3(kThreads),
        0,
        items,
        p);
  });
}

} // namespace torch_dnnl::cuda
