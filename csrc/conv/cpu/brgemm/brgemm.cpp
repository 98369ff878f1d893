// Convolution of 16-bit floats, and of float32, as an implicit GEMM (igemm/) by the dot products of
// the CPU. Accumulators are float32 and are rounded once.
#include <algorithm>
#include <cstring>
#include <variant>

#include "conv/cpu/igemm/igemm.h"
#include "conv/cpu/shared/clear.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/problems/forward_parts.h"
#include "core/cpu/transpose.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

#if defined(CPU_CAPABILITY_AVX512)
// Rounds accumulators to bfloat16, in memory and in registers. The instructions flush subnormal
// numbers to 0, but dot products have flushed these already.
void round_accumulators(
    const float* acc,
    const OutputRun& run,
    c10::BFloat16* out,
    int64_t out_step) {
  constexpr int64_t n = 2 * kLanes<float>;
  for (int64_t x = 0; x < run.pixels; x++, acc += kPanelColumns, out += out_step) {
    for (int64_t c = 0; c < run.channels; c += n) {
      const __m512 low = _mm512_loadu_ps(acc + c), high = _mm512_loadu_ps(acc + c + n / 2);
      __m512i rounded;
      asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low), "v"(high));
      if (run.channels >= c + n)
        _mm512_storeu_si512(out + c, rounded);
      else
        _mm512_mask_storeu_epi16(out + c, (1u << (run.channels - c)) - 1, rounded);
    }
  }
}

struct BFloat16TileOutput {
  static constexpr bool kTakesParts = false;
  const float* bias; // of the panel
  c10::BFloat16* out;
  int64_t out_step; // from a pixel to the next

  TileVector initial(int v) const {
    return _mm512_castps_si512(_mm512_loadu_ps(bias + v * kLanes<float>));
  }
  template <int mr>
  void store(const TileVector (&acc)[mr][kTileVectors], int64_t row) const {
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; v++) {
        __m256i rounded;
        asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(acc[r][v]));
        std::memcpy(out + (row + r) * out_step + v * kLanes<float>, &rounded, sizeof(rounded));
      }
    }
  }
};
#endif

// The output stage: accumulators begin with the bias, and the epilogue completes them. Padding is
// 0 and needs no compensation.
template <class T>
class FloatOutput {
 public:
  struct Workspace {
    explicit Workspace(int64_t most) : rounded(most) {}
    const Scratch<T> rounded; // [pixel][kPanelColumns], if the result is not channels-last
  };
  using Acc = Accumulators<float>;

  FloatOutput(const ConvProblem& p, const IgemmPlan& plan)
      : plan_(plan), epilogue_(p), out_stride_(p.dst_stride), has_bias_(p.bias != nullptr) {
    const auto* bias = static_cast<const T*>(p.bias);
    const int64_t channels = has_bias_ ? p.groups * p.oc : 0;
    for (int64_t c = 0; c < channels; c++)
      bias_.data()[c] = static_cast<float>(bias[c * p.bias_stride]);
    std::fill_n(bias_.data() + channels, kPanelColumns, 0.0f);
  }

  const float* initial(const Acc& acc) const {
    return has_bias_ ? bias_.data() + channel(acc.group, acc.panel) : nullptr;
  }
  void compensate(const Acc& /*acc*/, int64_t /*row*/, Range /*pixels*/, int64_t /*block*/) const {}
  void store(const Acc& acc, const IgemmTask& task, Range rows, const Workspace& own) const {
    for (int64_t row = rows.begin; row < rows.end; row++) {
      const float* const from = acc.at(row - rows.begin);
      const OutputRun run = output_run(task, row, acc.panel, acc.pixels);
      if (plan_.uses_amx && is_only_rounded())
        store_rounded(from, run, own);
      else
        epilogue_.store_pixels(from, kLanes<float>, kPanelColumns, run);
    }
  }

  void prefetch(const Acc& acc, const IgemmTask& task, Range rows) const {
#if defined(__x86_64__)
    constexpr int64_t line = 64 / sizeof(T);
    for (int64_t row = rows.begin; row < rows.end && out_stride_[1] == 1; row++) {
      const OutputRun run = output_run(task, row, acc.panel, acc.pixels);
      const T* out = epilogue_.output(run);
      for (int64_t x = 0; x < run.pixels; x++, out += out_stride_[4])
        for (int64_t c = 0; c < run.channels; c += line)
          asm volatile("prefetchw %0" : : "m"(out[c]));
    }
#endif
  }

  bool takes_tiles() const {
    return is_only_rounded();
  }
  static bool takes_parts_of_tiles() {
    return false;
  }
#if defined(CPU_CAPABILITY_AVX512)
  std::variant<BFloat16TileOutput> tile_output(const TileRun& run, const Workspace& own) const {
    const OutputRun outputs = output_run(run.task, run.row, run.panel, run.pixels);
    const float* const bias = bias_.data() + (has_bias_ ? outputs.channel : 0);
    if (out_stride_[1] == 1)
      return BFloat16TileOutput{bias, epilogue_.output(outputs), out_stride_[4]};
    return BFloat16TileOutput{bias, own.rounded.data(), kPanelColumns};
  }
  void finish(const TileRun& run, const Workspace& own) const {
    if (out_stride_[1] != 1)
      store_transposed(output_run(run.task, run.row, run.panel, run.pixels), own);
  }
#endif

 private:
  // Whether there is no epilogue, and rounded results are contiguous or only need a transpose.
  bool is_only_rounded() const {
    return epilogue_.is_empty() && (out_stride_[1] == 1 || out_stride_[4] == 1);
  }
  void store_rounded(const float* acc, const OutputRun& run, const Workspace& own) const {
#if defined(CPU_CAPABILITY_AVX512)
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
      if (out_stride_[1] == 1)
        return round_accumulators(acc, run, epilogue_.output(run), out_stride_[4]);
      round_accumulators(acc, run, own.rounded.data(), kPanelColumns);
      store_transposed(run, own);
    }
#endif
  }
  void store_transposed(const OutputRun& run, const Workspace& own) const {
    T* const out = epilogue_.output(run);
    transpose_numbers(
        own.rounded.data(), kPanelColumns, run.pixels, out, out_stride_[1], run.channels);
  }
  // The first channel of a panel, among those of all groups.
  int64_t channel(int64_t group, int64_t panel) const {
    return group * plan_.oc + panel * kPanelColumns;
  }
  OutputRun output_run(const IgemmTask& task, int64_t row, int64_t panel, int64_t pixels) const {
    return {
        task.n,
        channel(task.group, panel),
        task.d,
        row,
        task.pixels.begin,
        std::min(kPanelColumns, plan_.oc - panel * kPanelColumns),
        pixels};
  }

  const IgemmPlan& plan_;
  const Epilogue<T> epilogue_;
  const int64_t* const out_stride_;
  const bool has_bias_;
  const Scratch<float> bias_{(has_bias_ ? plan_.groups * plan_.oc : 0) + kPanelColumns};
};

template <class T>
void run_part(const ConvProblem& problem) {
  using Gemm = GemmOf<T>;
  const ConvProblem p = with_joined_pixels(problem);
  const FloatRows<T> rows;
  const IgemmPlan plan = plan_igemm<Gemm>(p, at::get_num_threads());
  const WeightPanels<Gemm> weights(p, plan);
  const FloatOutput<T> output(p, plan);
  const Igemm<Gemm, FloatOutput<T>> igemm{p, plan, weights, output};
  IgemmRun(igemm, rows).run();
}

// f.operator()<WeightPanels>(p, plan) for a forward problem.
template <class F>
void with_plan(const ConvProblem& problem, const F& f) {
  const ConvProblem p = with_joined_pixels(problem);
  dispatch(IgemmTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using Gemm = GemmOf<T>;
    f.template operator()<WeightPanels<Gemm>>(p, plan_igemm<Gemm>(p, /*threads=*/1));
  });
}

int64_t packed_size(const ConvProblem& problem) {
  int64_t size = 0;
  with_plan(problem, [&]<class Weights>(const ConvProblem& p, const IgemmPlan& plan) {
    size = Weights::packed_size(p, plan);
  });
  return size;
}

bool pack(const ConvProblem& problem, void* to) {
  with_plan(problem, [&]<class Weights>(const ConvProblem& p, const IgemmPlan& plan) {
    Weights(p, plan, to);
  });
  return true;
}

int64_t layout(const ConvProblem& problem) {
  int64_t layout = 0;
  with_plan(problem, [&]<class Weights>(const ConvProblem& p, const IgemmPlan& plan) {
    layout = Weights::layout(p, plan);
  });
  return layout;
}

} // namespace

const Packing<ConvProblem> brgemm_packing{packed_size, pack, layout};

// Gradients of data of few parts: each of them packs its weights. Outputs without a part are zeros.
bool supports_brgemm(const ConvProblem& p) {
  constexpr int64_t most_parts = 16;
  if (p.dtype == c10::ScalarType::Double)
    return false;
  if (p.pass == ConvPass::backward_weights)
    return supports_brgemm_weights(p);
  if (p.pass == ConvPass::forward)
    return true;
  return product(p.stride) <= most_parts && !(has_epilogue(p) && forward_parts(p).has_zeros);
}

bool run_brgemm(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights)
    return brgemm_weights_gradient(p);
  const ForwardParts all = forward_parts(p);
  if (all.has_zeros)
    clear_images(p);
  dispatch(IgemmTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    for (const ConvProblem& part : all.parts)
      run_part<T>(part);
  });
  return true;
}

} // namespace torch_dnnl
