// Depthwise convolution of channels-last images of bfloat16 by dot2: the products of two kernel
// rows at once. Images are read and written in place.
#include <algorithm>
#include <vector>

#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/problems/forward_parts.h"
#include "conv/cpu/shared/tap_columns.h"
#include "core/cpu/parallel.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
namespace {

using T = c10::BFloat16;
using Columns = TapColumns<T>;
constexpr int64_t kChannels = Columns::kChannels;

class DepthwisePairs {
 public:
  explicit DepthwisePairs(const ConvProblem& p) : p_(p) {
    const auto* const bias = static_cast<const T*>(p.bias);
    std::fill_n(first_.data(), weights_.blocks() * kChannels, 0.0f);
    for (int64_t c = 0; c < p.groups && bias != nullptr; c++)
      first_.data()[c / kChannels * kChannels + Columns::place(c % kChannels)] =
          static_cast<float>(bias[c * p.bias_stride]);
  }

  void run() const {
    const int64_t tasks = p_.n * p_.dst_size[0] * p_.dst_size[1], blocks = weights_.blocks();
    const int64_t operations =
        p_.dst_size[2] * blocks * kChannels * weights_.count() * p_.kernel[2];
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      std::vector<Columns::Rows> rows(blocks * weights_.count());
      for (int64_t i = begin; i < end; i++) {
        Digits digits{i};
        const int64_t h = digits.next(p_.dst_size[1]), d = digits.next(p_.dst_size[0]);
        compute_row(digits.rest, d, h, rows);
      }
    });
  }

 private:
  // Of outputs: all channels of some pixels, which lie together, before the next pixels. rows:
  // memory for those of all blocks of channels.
  void compute_row(int64_t n, int64_t d, int64_t h, std::vector<Columns::Rows>& rows) const {
    const int64_t *const xs = p_.src_stride, *const ys = p_.dst_stride;
    const T* const image = static_cast<const T*>(p_.src) + n * xs[0];
    for (int64_t block = 0; block < weights_.blocks(); block++) {
      const auto row_at = [&](int64_t in_d, int64_t in_h) {
        return image + in_d * xs[2] + in_h * xs[3] + block * kChannels;
      };
      weights_.select(block, d, h, pads_, xs[4], row_at, rows.data() + block * weights_.count());
    }
    T* const out = static_cast<T*>(p_.out) + n * ys[0] + d * ys[2] + h * ys[3];
    const int64_t width = p_.dst_size[2];
    for (int64_t x = 0; x < width; x += Columns::kOutputs) {
      for (int64_t block = 0; block < weights_.blocks(); block++) {
        const int64_t first = block * kChannels, missing = first + kChannels - p_.groups;
        const Columns::Run run{
            rows.data() + block * weights_.count(),
            weights_.count(),
            first_.data() + first,
            ~__mmask32(0) >> std::max<int64_t>(missing, 0),
            p_.src_size[2],
            pads_,
            /*flips=*/{}};
        add_(run, x * p_.stride[2] - p_.pad[2], out + x * ys[4] + first, ys[4], width - x);
      }
    }
  }

  const ConvProblem& p_;
  const ColumnWeights<T> weights_{p_};
  const Scratch<float> first_{weights_.blocks() * kChannels}; // what sums begin with
  const T pads_[kChannels] = {};
  const AddColumns<T> add_ = add_columns_of<T>(p_);
};

// Gradients of data are one convolution.
bool is_single(const ConvProblem& p) {
  return p.pass == ConvPass::forward ||
      (p.pass == ConvPass::backward_data && product(p.stride) == 1);
}

} // namespace

bool supports_depthwise_pairs(const ConvProblem& p) {
  const bool is_empty =
      p.activation == Activation::none && p.residual == nullptr && p.preactivation == nullptr;
  return p.dtype == c10::kBFloat16 && is_single(p) && p.ic == 1 && p.oc == 1 && is_empty &&
      p.src_stride[1] == 1 && p.dst_stride[1] == 1 && add_columns_of<T>(p) != nullptr &&
      __builtin_cpu_supports("avx512bf16");
}

void run_depthwise_pairs(const ConvProblem& p) {
  for (const ConvProblem& part : forward_parts(p).parts)
    DepthwisePairs(part).run();
}

#else
bool supports_depthwise_pairs(const ConvProblem& /*p*/) {
  return false;
}

void run_depthwise_pairs(const ConvProblem& /*p*/) {}
#endif

} // namespace torch_dnnl
