// The inner loops of depthwise convolution, with all sums in registers: a block of pixels that
// gathers its taps, and a block of taps that is summed over pixels. A pixel is a vector whose lanes
// are channels; where several input channels meet in an output channel, it is `inner` such vectors.
#pragma once

#include <array>
#include <utility>

#include "core/lanes.h"

namespace torch_dnnl {

// More sums than this do not fit 16 registers beside what is multiplied.
inline constexpr int kBlockPixels = 14;
inline constexpr int kBlockTaps = 9;

// Where the pixels that a row of taps meets begin, and the row's weights.
template <class C>
struct TapRow {
  const C *pixels, *weights;
};

// Neighbouring outputs that meet the same taps. All steps are in elements.
struct PixelBlock {
  int64_t pixels;                   // outputs, <= kBlockPixels
  int64_t taps, inner;              // of a row
  int64_t first_pixel, first_tap;   // where those of the first output and tap are in a row
  int64_t first_out;                // where the first output is
  int64_t pixel_step, out_step;     // from one output to the next one
  int64_t tap_pixel_step, tap_step; // from one tap to the next one
  // Of `inner`: one vector, but as a variable. If it were a constant, the compiler would find that
  // a pixel of one step is one of the next step too, and keep it in a register that the sums need.
  int64_t inner_step;
};

// What a block is computed from; the shifts are added to the pointers of every row.
template <class C>
struct GatherOperands {
  const TapRow<C>* rows;
  int64_t count;
  int64_t pixel_shift, weight_shift;
  const C* bias;
  C* out;
};

namespace tap_kernels_detail {

// vectors: the pixel step, where it is a constant number of vectors; 0 otherwise.
template <class C, int pixels, int vectors>
void gather_taps(const PixelBlock& b, const GatherOperands<C>& o) {
  // Copies: what the kernel stores might overwrite the originals, as far as the compiler knows.
  const int64_t step = vectors > 0 ? vectors * kLanes<C> : b.pixel_step;
  const int64_t taps = b.taps, inner = b.inner, inner_step = b.inner_step, out_step = b.out_step;
  const int64_t tap_pixel_step = b.tap_pixel_step, tap_step = b.tap_step;
  C* const out = o.out + b.first_out;
  const auto bias = Lanes<C>::loadu(o.bias);
  // Each loop takes a step at least: otherwise the compiler keeps the sums in memory too.
  if (o.count == 0 || taps <= 0) {
    for (int p = 0; p < pixels; p++)
      bias.store(out + p * out_step);
    return;
  }
  Lanes<C> sums[pixels];
#pragma GCC unroll 16
  for (int p = 0; p < pixels; p++)
    sums[p] = bias;
  const TapRow<C>*row = o.rows, *end = row + o.count;
  do {
    const C* x = row->pixels + b.first_pixel + o.pixel_shift;
    const C* w = row->weights + b.first_tap + o.weight_shift;
    int64_t tap = taps;
    do {
      const C *xi = x, *wi = w;
      int64_t i = inner;
      do {
        const auto weight = Lanes<C>::loadu(wi);
#pragma GCC unroll 16
        for (int p = 0; p < pixels; p++)
          sums[p] = at::vec::fmadd(Lanes<C>::loadu(xi + p * step), weight, sums[p]);
        xi += inner_step;
        wi += inner_step;
      } while (--i != 0);
      x += tap_pixel_step;
      w += tap_step;
    } while (--tap != 0);
  } while (++row != end);
#pragma GCC unroll 16
  for (int p = 0; p < pixels; p++)
    sums[p].store(out + p * out_step);
}

template <class C, int vectors, size_t... i>
constexpr auto gathers(std::index_sequence<i...>) {
  return std::array{&gather_taps<C, static_cast<int>(i) + 1, vectors>...};
}

template <class C, int vectors>
constexpr auto gathers_by_pixels = gathers<C, vectors>(std::make_index_sequence<kBlockPixels>());

} // namespace tap_kernels_detail

// out[p] = bias + sum over rows, taps, i of pixel * weight, for each output p of the block.
template <class C>
void gather_taps(const PixelBlock& b, const GatherOperands<C>& o) {
  using namespace tap_kernels_detail;
  const auto& by_pixels = b.pixel_step == kLanes<C> ? gathers_by_pixels<C, 1>
      : b.pixel_step == 2 * kLanes<C>               ? gathers_by_pixels<C, 2>
      : b.pixel_step == 4 * kLanes<C>               ? gathers_by_pixels<C, 4>
                                                    : gathers_by_pixels<C, 0>;
  by_pixels[b.pixels - 1](b, o);
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
