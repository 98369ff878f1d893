// Quantized depthwise convolution of channels-last images where the machine adds up products of
// four bytes at once: those of a column of four taps.
//
// Rows of the kernel are taken four at a time, the last ones with rows of weight 0. Of 64 channels
// of four pixels, one above the other, two steps of interleaving make the four bytes of each
// channel neighbours. Interleaving stays within the 16 bytes of a lane: vector v of four then has
// channels 16 l + 4 v to 16 l + 4 v + 3 in lane l.
#include <algorithm>
#include <vector>

#include "conv/cpu/quantized/epilogue.h"
#include "conv/cpu/quantized/kernels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
namespace {

constexpr int64_t kChannels = 64; // at once
constexpr int kVectors = 4;       // of their sums
constexpr int64_t kPixels = 32;   // of a row, whose sums stay in the first-level cache
constexpr int kOutputs = 4;       // whose sums are in registers

// Products of unsigned bytes by signed ones, whose instruction this library's flags do not include.
inline __m512i add_quads(__m512i sums, __m512i a, const int8_t* b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "m"(*reinterpret_cast<const __m512i*>(b)));
  return sums;
}

// Four rows of inputs, of which some may be pads.
struct RowQuad {
  const uint8_t* rows[4]; // the pixel of column 0, of the first channel
  int64_t step[4];        // from a pixel to the next
  const int8_t* weights;  // [tap][vector][byte]
};

// Some outputs of a row, of up to 64 channels.
struct QuadRun {
  const RowQuad* quads;
  int64_t count;       // of quads
  __mmask64 channels;  // that there are
  int64_t columns;     // of the image
  const uint8_t* pads; // instead of pixels of other columns
  __m512i flips;       // makes signed bytes unsigned
};

struct Column {
  __m512i quads[kVectors];
};

inline Column load_column(const QuadRun& run, const RowQuad& quad, int64_t x) {
  const bool is_inside = x >= 0 && x < run.columns;
  const auto load = [&](int row) {
    const uint8_t* const at = is_inside ? quad.rows[row] + x * quad.step[row] : run.pads;
    return _mm512_xor_si512(_mm512_maskz_loadu_epi8(run.channels, at), run.flips);
  };
  const __m512i a = load(0), b = load(1), c = load(2), d = load(3);
  const __m512i ab[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
  const __m512i cd[2] = {_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)};
  return {
      {_mm512_unpacklo_epi16(ab[0], cd[0]),
       _mm512_unpackhi_epi16(ab[0], cd[0]),
       _mm512_unpacklo_epi16(ab[1], cd[1]),
       _mm512_unpackhi_epi16(ab[1], cd[1])}};
}

// In the order of channels: lanes l of the vectors v are a matrix, which is transposed.
inline void store_in_order(const __m512i (&sums)[kVectors], int32_t* to) {
  const __m512i a = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44);
  const __m512i b = _mm512_shuffle_i32x4(sums[2], sums[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(sums[0], sums[1], 0xee);
  const __m512i d = _mm512_shuffle_i32x4(sums[2], sums[3], 0xee);
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(a, b, 0x88));
  _mm512_storeu_si512(to + 16, _mm512_shuffle_i32x4(a, b, 0xdd));
  _mm512_storeu_si512(to + 32, _mm512_shuffle_i32x4(c, d, 0x88));
  _mm512_storeu_si512(to + 48, _mm512_shuffle_i32x4(c, d, 0xdd));
}

// kOutputs outputs, of which the first meets column x with its first tap: sums are kChannels apart.
template <int taps, int stride>
void add_outputs(const QuadRun& run, int64_t x, int32_t* to) {
  constexpr int columns = (kOutputs - 1) * stride + taps;
  __m512i sums[kOutputs][kVectors] = {};
  for (int64_t q = 0; q < run.count; q++) {
    const RowQuad& quad = run.quads[q];
#pragma GCC unroll 16
    for (int column = 0; column < columns; column++) {
      const Column loaded = load_column(run, quad, x + column);
#pragma GCC unroll 4
      for (int i = 0; i < kOutputs; i++) {
        const int tap = column - i * stride;
        if (tap < 0 || tap >= taps)
          continue;
        const int8_t* const weights = quad.weights + tap * kVectors * sizeof(__m512i);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++)
          sums[i][v] = add_quads(sums[i][v], loaded.quads[v], weights + v * sizeof(__m512i));
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kOutputs; i++)
    store_in_order(sums[i], to + i * kChannels);
}

using AddOutputs = void (*)(const QuadRun& run, int64_t x, int32_t* to);

// Null for taps and strides that there are no instances of.
AddOutputs add_outputs_of(const ConvProblem& p) {
  const auto of_stride = [&]<int taps>(std::integral_constant<int, taps>) -> AddOutputs {
    return p.stride[2] == 1 ? &add_outputs<taps, 1>
        : p.stride[2] == 2  ? &add_outputs<taps, 2>
                            : nullptr;
  };
  if (p.dilation[2] != 1)
    return nullptr;
  switch (p.kernel[2]) {
    case 3:
      return of_stride(std::integral_constant<int, 3>());
    case 5:
      return of_stride(std::integral_constant<int, 5>());
    case 7:
      return of_stride(std::integral_constant<int, 7>());
    default:
      return nullptr;
  }
}

class DepthwiseQuads {
 public:
  explicit DepthwiseQuads(const QuantizedProblem& problem) : problem_(problem) {
    std::fill_n(weights_.data(), blocks_ * block_weights_, int8_t(0));
    for (int64_t c = 0; c < p_.groups; c++)
      pack_channel(c);
    std::fill_n(pads_, kChannels, static_cast<uint8_t>(zero_point()));
  }

  void run() const {
    const int64_t rows = p_.n * p_.dst_size[0] * p_.dst_size[1];
    const int64_t operations = p_.dst_size[2] * p_.groups * kernel_rows_ * p_.kernel[2] / 4;
    parallel_tasks(rows, operations, [&](int64_t begin, int64_t end) {
      Workspace own(quads_);
      for (int64_t row = begin; row < end; row++)
        compute_row(row, own);
    });
  }

 private:
  // Memory of a thread.
  struct Workspace {
    explicit Workspace(int64_t count) : quads(count) {}
    std::vector<RowQuad> quads;
    const Scratch<int32_t> sums{(kPixels + kOutputs) * kChannels};
    const QuantizedEpilogue::Workspace epilogue{kPixels * kChannels};
  };

  int zero_point() const { // of inputs in memory
    return static_cast<int>(problem_.src_zero_point.get());
  }
  bool is_signed() const {
    return p_.dtype == c10::kChar;
  }

  // [block][quad][tap][vector][channel of the vector][row of the quad]
  void pack_channel(int64_t c) {
    const int64_t* const ws = p_.weights_stride;
    const auto* const weights = static_cast<const int8_t*>(p_.weights) + c * p_.weights_group;
    const int64_t lane = c % kChannels / 16, vector = c % 16 / 4;
    int8_t* const to =
        weights_.data() + c / kChannels * block_weights_ + vector * 64 + lane * 16 + c % 4 * 4;
    int32_t sum = 0;
    for (int64_t row = 0; row < kernel_rows_; row++) {
      for (int64_t tap = 0; tap < p_.kernel[2]; tap++) {
        const int8_t weight =
            weights[row / p_.kernel[1] * ws[2] + row % p_.kernel[1] * ws[3] + tap * ws[4]];
        to[(row / 4 * p_.kernel[2] + tap) * kVectors * 64 + row % 4] = weight;
        sum += weight;
      }
    }
    const int offset = zero_point() + (is_signed() ? 128 : 0);
    excess_.data()[c] = offset * sum;
  }

  void compute_row(int64_t index, Workspace& own) const {
    Digits digits{index};
    const int64_t h = digits.next(p_.dst_size[1]), d = digits.next(p_.dst_size[0]);
    const int64_t n = digits.rest;
    for (int64_t block = 0; block < blocks_; block++) {
      const int64_t first = block * kChannels;
      const int64_t channels = std::min(kChannels, p_.groups - first);
      select_rows({n, first, d, h, 0}, own);
      const QuadRun run{
          own.quads.data(),
          quads_,
          ~__mmask64(0) >> (kChannels - channels),
          p_.src_size[2],
          pads_,
          _mm512_set1_epi8(is_signed() ? -128 : 0)};
      for (int64_t w = 0; w < p_.dst_size[2]; w += kPixels) {
        const int64_t pixels = std::min(kPixels, p_.dst_size[2] - w);
        for (int64_t x = 0; x < pixels; x += kOutputs)
          add_(run, (w + x) * p_.stride[2] - p_.pad[2], own.sums.data() + x * kChannels);
        epilogue_.store(
            {own.sums.data(),
             kChannels,
             n,
             first,
             d,
             h,
             w,
             channels,
             pixels,
             excess_.data() + first},
            own.epilogue);
      }
    }
  }

  struct Place {
    int64_t n, channel, d, h, w; // of outputs
  };

  // The rows of the image that a row of outputs meets.
  void select_rows(const Place& at, Workspace& own) const {
    const int64_t* const xs = p_.src_stride;
    const auto* const image =
        static_cast<const uint8_t*>(p_.src) + at.n * xs[0] + at.channel * xs[1];
    for (int64_t row = 0; row < 4 * quads_; row++) {
      const int64_t kd = row / p_.kernel[1], kh = row % p_.kernel[1];
      const int64_t d = at.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
      const int64_t h = at.h * p_.stride[1] + kh * p_.dilation[1] - p_.pad[1];
      const bool is_inside =
          row < kernel_rows_ && d >= 0 && d < p_.src_size[0] && h >= 0 && h < p_.src_size[1];
      RowQuad& quad = own.quads[row / 4];
      quad.rows[row % 4] = is_inside ? image + d * xs[2] + h * xs[3] : pads_;
      quad.step[row % 4] = is_inside ? xs[4] : 0;
      quad.weights = weights_.data() + at.channel / kChannels * block_weights_ +
          row / 4 * p_.kernel[2] * kVectors * 64;
    }
  }

  const QuantizedProblem& problem_;
  const ConvProblem& p_ = problem_.conv;
  const int64_t blocks_ = ceil_div(p_.groups, kChannels);
  const int64_t kernel_rows_ = p_.kernel[0] * p_.kernel[1], quads_ = ceil_div(kernel_rows_, 4);
  const int64_t block_weights_ = quads_ * p_.kernel[2] * kVectors * 64;
  const Scratch<int8_t> weights_{blocks_ * block_weights_};
  const Scratch<int32_t> excess_{blocks_ * kChannels};
  uint8_t pads_[kChannels]; // as the image has them
  const AddOutputs add_ = add_outputs_of(p_);
  const QuantizedEpilogue epilogue_{problem_};
};

} // namespace

bool supports_quantized_depthwise_quads(const QuantizedProblem& p) {
  const ConvProblem& conv = p.conv;
  return has_short_sums(p) && conv.ic == 1 && conv.oc == 1 && conv.src_stride[1] == 1 &&
      add_outputs_of(conv) != nullptr && __builtin_cpu_supports("avx512vnni");
}

void run_quantized_depthwise_quads(const QuantizedProblem& p) {
  DepthwiseQuads(p).run();
}

#else
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
