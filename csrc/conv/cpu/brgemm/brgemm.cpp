// Convolution of half types as products that the machine has instructions for, through torch's
// brgemm: sums are of float32 and are rounded once. float32 is computed so as well.
#include <algorithm>
#include <cstring>

#include "conv/cpu/shared/clear.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/problems/forward_parts.h"
#include "conv/cpu/shared/products/register_tiles.h"
#include "conv/cpu/shared/products/row_products.h"
#include "core/cpu/transpose.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

#if defined(CPU_CAPABILITY_AVX512)
// Sums become bfloat16. No sum of such products is a subnormal number, of which the instructions
// would make 0. First those in memory, then those in registers.
void round_sums(const float* sums, const OutputRun& run, c10::BFloat16* out, int64_t out_step) {
  constexpr int64_t n = 2 * kLanes<float>;
  for (int64_t x = 0; x < run.pixels; x++, sums += kProductColumns, out += out_step) {
    for (int64_t c = 0; c < run.channels; c += n) {
      const __m512 low = _mm512_loadu_ps(sums + c), high = _mm512_loadu_ps(sums + c + n / 2);
      __m512i rounded;
      asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low), "v"(high));
      if (run.channels >= c + n)
        _mm512_storeu_si512(out + c, rounded);
      else
        _mm512_mask_storeu_epi16(out + c, (1u << (run.channels - c)) - 1, rounded);
    }
  }
}
struct TileRounding {
  const float* bias; // of the panel
  int64_t channels;  // that there are
  c10::BFloat16* out;
  int64_t out_step; // from a pixel to the next

  TileSums first(int v) const {
    return _mm512_castps_si512(_mm512_loadu_ps(bias + v * kLanes<float>));
  }
  template <int rows, int vectors>
  void store(const TileSums (&sums)[rows][vectors], int64_t row) const {
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) {
        __m256i rounded;
        asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(sums[r][v]));
        constexpr int64_t n = kLanes<float>;
        c10::BFloat16* const to = out + (row + r) * out_step + v * n;
        if (channels >= (v + 1) * n)
          std::memcpy(to, &rounded, sizeof(rounded));
        else
          copy_part<n>(to, reinterpret_cast<const c10::BFloat16*>(&rounded), channels - v * n);
      }
    }
  }
};
#endif

// Sums begin with the bias, and are completed by the epilogue. Pads are 0.
template <class T>
class FloatEnds {
 public:
  struct Workspace {
    explicit Workspace(int64_t most) : tiles(most) {}
    const Scratch<T> tiles; // outputs of tiles that are not channels-last
  };
  using Sums = PanelSums<float>;

  FloatEnds(const ConvProblem& p, const ProductPlan& plan)
      : plan_(plan), epilogue_(p), out_stride_(p.dst_stride), has_bias_(p.bias != nullptr) {
    const auto* bias = static_cast<const T*>(p.bias);
    const int64_t channels = has_bias_ ? p.groups * p.oc : 0;
    for (int64_t c = 0; c < channels; c++)
      bias_.data()[c] = static_cast<float>(bias[c * p.bias_stride]);
    std::fill_n(bias_.data() + channels, kProductColumns, 0.0f);
  }

  const float* first(const Sums& sums) const {
    return has_bias_ ? bias_.data() + channel_of(sums) : nullptr;
  }
  void skip(const Sums& /*sums*/, int64_t /*row*/, Range /*pixels*/, int64_t /*block*/) const {}
  void store(const Sums& sums, const RowTask& task, Range rows, const Workspace& own) const {
    const int64_t channels = std::min(kProductColumns, plan_.oc - sums.panel * kProductColumns);
    for (int64_t row = rows.begin; row < rows.end; row++) {
      const float* const from = sums.at(row - rows.begin);
      const OutputRun run{
          task.n, channel_of(sums), task.d, row, task.pixels.begin, channels, sums.pixels};
      if (plan_.in_tiles && are_rounded_only())
        store_rounded(from, run, own);
      else
        epilogue_.store_pixels(from, kLanes<float>, kProductColumns, run);
    }
  }

  void fetch_outputs(const Sums& sums, const RowTask& task, Range rows) const {
#if defined(__x86_64__)
    constexpr int64_t line = 64 / sizeof(T);
    const int64_t channels = std::min(kProductColumns, plan_.oc - sums.panel * kProductColumns);
    for (int64_t row = rows.begin; row < rows.end && out_stride_[1] == 1; row++) {
      const T* out = epilogue_.output(
          {task.n, channel_of(sums), task.d, row, task.pixels.begin, channels, sums.pixels});
      for (int64_t x = 0; x < sums.pixels; x++, out += out_stride_[4])
        for (int64_t c = 0; c < channels; c += line)
          asm volatile("prefetchw %0" : : "m"(out[c]));
    }
#endif
  }

  // Results without an epilogue.
  bool takes_tiles() const {
    return has_register_tiles<ProductsOf<T>>() && are_rounded_only();
  }
  void multiply(const TileProduct<ProductsOf<T>>& product, const TileRun& at, const Workspace& own)
      const {
#if defined(CPU_CAPABILITY_AVX512)
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
      const RowTask& task = at.task;
      const int64_t first = at.panel * kProductColumns, channel = task.group * plan_.oc + first;
      const int64_t channels = std::min(kProductColumns, plan_.oc - first);
      T* const out = epilogue_.output(
          {task.n, channel, task.d, at.row, task.pixels.begin, channels, product.m});
      const float* const bias = bias_.data() + (has_bias_ ? channel : 0);
      if (out_stride_[1] == 1)
        return multiply_in_registers(product, TileRounding{bias, channels, out, out_stride_[4]});
      T* const tiles = own.tiles.data();
      multiply_in_registers(product, TileRounding{bias, channels, tiles, kProductColumns});
      transpose_numbers(tiles, kProductColumns, product.m, out, out_stride_[1], channels);
    }
#endif
  }

 private:
  bool are_rounded_only() const {
    return epilogue_.is_empty() && (out_stride_[1] == 1 || out_stride_[4] == 1);
  }
  void store_rounded(const float* sums, const OutputRun& run, const Workspace& own) const {
#if defined(CPU_CAPABILITY_AVX512)
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
      T* const out = epilogue_.output(run);
      if (out_stride_[1] == 1)
        return round_sums(sums, run, out, out_stride_[4]);
      T* const tiles = own.tiles.data();
      round_sums(sums, run, tiles, kProductColumns);
      transpose_numbers(tiles, kProductColumns, run.pixels, out, out_stride_[1], run.channels);
    }
#endif
  }
  // Among those of all groups.
  int64_t channel_of(const Sums& sums) const {
    return sums.group * plan_.oc + sums.panel * kProductColumns;
  }

  const ProductPlan& plan_;
  const Epilogue<T> epilogue_;
  const int64_t* const out_stride_;
  const bool has_bias_;
  const Scratch<float> bias_{(has_bias_ ? plan_.groups * plan_.oc : 0) + kProductColumns};
};

template <class T>
void run_part(const ConvProblem& problem) {
  using Products = ProductsOf<T>;
  const ConvProblem p = with_joined_pixels(problem);
  const FloatLines<T> lines;
  const ProductPlan plan = plan_products<Products>(p, at::get_num_threads());
  const ProductWeights<Products> weights(p, plan);
  const FloatEnds<T> ends(p, plan);
  RowProducts<Products, FloatLines<T>, FloatEnds<T>>(p, plan, lines, weights, ends).run();
}

// f.operator()<ProductWeights>(p, plan) for a forward problem.
template <class F>
void with_plan(const ConvProblem& problem, const F& f) {
  const ConvProblem p = with_joined_pixels(problem);
  dispatch(BrgemmTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using Products = ProductsOf<T>;
    f.template operator()<ProductWeights<Products>>(p, plan_products<Products>(p, /*threads=*/1));
  });
}

int64_t packed_size(const ConvProblem& problem) {
  int64_t size = 0;
  with_plan(problem, [&]<class Weights>(const ConvProblem& p, const ProductPlan& plan) {
    size = Weights::packed_size(p, plan);
  });
  return size;
}

bool pack(const ConvProblem& problem, void* to) {
  with_plan(problem, [&]<class Weights>(const ConvProblem& p, const ProductPlan& plan) {
    Weights(p, plan, to);
  });
  return true;
}

int64_t layout(const ConvProblem& problem) {
  int64_t layout = 0;
  with_plan(problem, [&]<class Weights>(const ConvProblem& p, const ProductPlan& plan) {
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
  dispatch(BrgemmTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    for (const ConvProblem& part : all.parts)
      run_part<T>(part);
  });
  return true;
}

} // namespace torch_dnnl
