// The inner loops of depthwise convolution, with all sums in registers: a block of pixels that
// gathers its taps, and a block of taps that is summed over pixels. A pixel is vectors whose lanes
// are channels. Where several input channels meet in an output channel, each of them is a tap.
#pragma once

#include <array>
#include <utility>

#include "core/lanes.h"

namespace torch_dnnl {

// As many sums as fit the registers beside what is multiplied: vectors of channels of some pixels,
// whose number divides the widths of most images, or taps.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int64_t kBlockVectors = 4; // of 32 registers, 28 for sums
#else
inline constexpr int64_t kBlockVectors = 2; // of 16 registers, 14 for sums
#endif
constexpr int64_t most_block_pixels(int64_t vectors) {
  return vectors <= kBlockVectors / 2 ? 14 : 7;
}
inline constexpr int kBlockTaps = 9;

// Where the pixels that a row of taps meets begin, and the row's weights.
template <class C>
struct TapRow {
  const C *pixels, *weights;
};

// A tap of a row, and which outputs of a block meet a pixel of the image there.
struct BlockTap {
  int64_t pixel, weight; // where those of the first output are, from first_pixel and in a row
  uint32_t met;          // a bit for each output
};

// Neighbouring outputs. All steps are in elements.
struct PixelBlock {
  int64_t pixels;               // outputs, <= most_block_pixels of the vectors
  int64_t first_pixel;          // in a row
  int64_t first_out;            // where the first output is
  int64_t pixel_step, out_step; // from one output to the next one
  int64_t first_tap, taps;      // which of a list
};

// What a block is computed from, for some vectors of channels. The shifts are added to the pointers
// of every row; the steps are from one vector to the next.
template <class C>
struct GatherOperands {
  const BlockTap* taps;
  int64_t vectors; // <= kBlockVectors; in a pixel they lie side by side
  const TapRow<C>* rows;
  int64_t count;
  int64_t pixel_shift, weight_shift, weight_step;
  const C* bias;
  C* out;
  int64_t out_step;
};

namespace tap_kernels_detail {

// Sum i is of pixel i / vectors and vector v = i % vectors. All sums are named by constants: of an
// array that a loop runs over the compiler may keep a copy in memory, even if the loop is unrolled.
template <class C, size_t... i, size_t... v>
void gather_block(
    const PixelBlock& b,
    const GatherOperands<C>& o,
    std::index_sequence<i...>,
    std::index_sequence<v...>) {
  constexpr int64_t n = kLanes<C>;
  constexpr size_t vectors = sizeof...(v);
  constexpr uint32_t all = (1u << sizeof...(i) / vectors) - 1;
  const BlockTap *const first = o.taps + b.first_tap, *const last = first + b.taps;
  // Copies, which a store to the image cannot change.
  const int64_t step = b.pixel_step, weight_step = o.weight_step;
  const int64_t out_step = b.out_step, vector_step = o.out_step;
  Lanes<C> sums[] = {Lanes<C>::loadu(o.bias + i % vectors * n)...};
  for (const TapRow<C>*row = o.rows, *end = row + o.count; row != end; row++) {
    const C* const pixels = row->pixels + b.first_pixel + o.pixel_shift;
    const C* const weights = row->weights + o.weight_shift;
    for (const BlockTap* tap = first; tap != last; tap++) {
      const C *x = pixels + tap->pixel, *w = weights + tap->weight;
      const Lanes<C> weight[] = {Lanes<C>::loadu(w + v * weight_step)...};
      const C* const fours[] = {x, x + 4 * step, x + 8 * step, x + 12 * step};
      const auto pixel = [&](size_t at) {
        const size_t p = at / vectors;
        return Lanes<C>::loadu(fours[p / 4] + p % 4 * step + at % vectors * n);
      };
      const uint32_t met = tap->met;
      if (met == all) {
        ((sums[i] = at::vec::fmadd(pixel(i), weight[i % vectors], sums[i])), ...);
      } else {
        ((met >> i / vectors & 1
              ? void(sums[i] = at::vec::fmadd(pixel(i), weight[i % vectors], sums[i]))
              : void()),
         ...);
      }
    }
  }
  C* const out = o.out + b.first_out;
  (sums[i].store(out + i / vectors * out_step + i % vectors * vector_step), ...);
}

template <class C, size_t pixels, size_t vectors>
void gather_taps(const PixelBlock& b, const GatherOperands<C>& o) {
  gather_block<C>(
      b, o, std::make_index_sequence<pixels * vectors>(), std::make_index_sequence<vectors>());
}

template <class C, size_t vectors, size_t... i>
constexpr auto gathers_by_pixels(std::index_sequence<i...>) {
  return std::array{&gather_taps<C, i + 1, vectors>...};
}

template <class C, size_t vectors>
constexpr auto gathers =
    gathers_by_pixels<C, vectors>(std::make_index_sequence<most_block_pixels(vectors)>());

} // namespace tap_kernels_detail

// out[p] = bias + sum over rows, taps of pixel * weight, for each output p of the block.
template <class C, size_t vectors = kBlockVectors>
void gather_taps(const PixelBlock& b, const GatherOperands<C>& o) {
  if constexpr (vectors > 1) {
    if (o.vectors < static_cast<int64_t>(vectors))
      return gather_taps<C, vectors - 1>(b, o);
  }
  tap_kernels_detail::gathers<C, vectors>[b.pixels - 1](b, o);
}

// A tap, where the pixels that it meets begin and where its sums are.
template <class C>
struct TapSum {
  const C* pixels;
  C* sum;
};

namespace tap_kernels_detail {

template <class C, int taps>
void sum_pixels(
    const TapSum<C>* list,
    int64_t pixels,
    int64_t pixel_step,
    const C* grad,
    int64_t grad_step,
    int64_t shift,
    int64_t sum_shift) {
  const C* x[taps];
  Lanes<C> sums[taps];
#pragma GCC unroll 16
  for (int t = 0; t < taps; t++) {
    x[t] = list[t].pixels + shift;
    sums[t] = Lanes<C>(0);
  }
  for (int64_t p = 0, at = 0; p < pixels; p++, at += pixel_step) {
    const auto y = Lanes<C>::loadu(grad + p * grad_step);
#pragma GCC unroll 16
    for (int t = 0; t < taps; t++)
      sums[t] = at::vec::fmadd(Lanes<C>::loadu(x[t] + at), y, sums[t]);
  }
#pragma GCC unroll 16
  for (int t = 0; t < taps; t++) {
    C* to = list[t].sum + sum_shift;
    (Lanes<C>::loadu(to) + sums[t]).store(to);
  }
}

template <class C, size_t... i>
constexpr auto sums(std::index_sequence<i...>) {
  return std::array{&sum_pixels<C, static_cast<int>(i) + 1>...};
}

template <class C>
constexpr auto sums_by_taps = sums<C>(std::make_index_sequence<kBlockTaps>());

} // namespace tap_kernels_detail

// sum += sum over pixels of pixel * grad, for each of at most kBlockTaps taps; `shift` and
// `sum_shift` are added to the pointers of every tap.
template <class C>
void sum_pixels(
    const TapSum<C>* list,
    int64_t taps,
    int64_t pixels,
    int64_t pixel_step,
    const C* grad,
    int64_t grad_step,
    int64_t shift,
    int64_t sum_shift) {
  tap_kernels_detail::sums_by_taps<C>[taps - 1](
      list, pixels, pixel_step, grad, grad_step, shift, sum_shift);
}

} // namespace torch_dnnl
