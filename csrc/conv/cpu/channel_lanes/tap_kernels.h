// The inner loops of depthwise convolution: a block of neighbouring outputs gathers its taps, and
// the gradients of taps gather a block of gradients. A pixel is a vector whose lanes are channels.
// Where several input channels meet in an output channel, each of them is a tap.
//
// Loads bound such loops, not products: a core does one of either per cycle, and a load that
// crosses cache lines takes two. So neighbouring taps are one run: each pixel that it meets is
// loaded once, and multiplied by all taps while the outputs' sums, or gradients, stay in registers.
#pragma once

#include <array>
#include <utility>

#include "core/cpu/simd.h"

namespace torch_dnnl {

// As many outputs as fit the registers beside the weights of the longest run and a pixel.
inline constexpr int64_t kBlockPixels = kRegisters == 32 ? 16 : 7;

// The lengths of runs, longest first; any number of taps is a sum of them.
inline constexpr int64_t kRunTaps[] = {7, 5, 3, 2, 1};
// Runs of several taps have kernels for outputs that are so many pixels apart, or fewer.
inline constexpr int64_t kMostRunStride = 2;

// Neighbouring taps, which meet neighbouring pixels. One tap may meet pixels at any distance.
struct TapRun {
  int64_t taps;          // one of kRunTaps
  int64_t pixel, weight; // where the first ones are, from first_pixel and in a row
  uint64_t inside;       // a bit for each pixel that is met: whether it is one of the image
};

// Neighbouring outputs. All steps are in elements.
struct PixelBlock {
  int64_t outputs;              // <= kBlockPixels
  int64_t stride;               // of the outputs, in pixels; 1 if there are runs of one tap only
  int64_t first_pixel;          // in a row
  int64_t first_out;            // where the first output is
  int64_t pixel_step, out_step; // from one pixel that a run meets to the next one, and of outputs
  int64_t weight_step;          // from one tap of a run to the next one
  int64_t first_run, runs;      // which of a list
};

// Where the pixels that a row of taps meets begin, and the row's weights, or their sums.
template <class C>
struct TapRow {
  const C* pixels;
  C* weights;
};

// What a block is computed from. The shifts are added to the pointers of every row.
template <class C>
struct TapOperands {
  const TapRun* runs;
  const TapRow<C>* rows;
  int64_t count;
  int64_t pixel_shift, weight_shift;
};

// Vectors of channels that are computed one after the other, and the steps from one to the next:
// pixels and biases lie together.
struct VectorRun {
  int64_t count, weight_step, out_step;
};

namespace tap_kernels_detail {

// f(pixel, tap, output) for all products of a run.
template <size_t taps, size_t stride, size_t outputs, class C, class F>
[[gnu::always_inline]] inline void
for_each_product(const C* pixels, int64_t step, uint64_t inside, const F& f) {
  if constexpr (taps == 1 && stride > 1) // the pixels between are not met
    return for_each_product<taps, 1, outputs>(pixels, step * stride, inside, f);
  for_constants<(outputs - 1) * stride + taps>([&](auto i) __attribute__((always_inline)) {
    constexpr size_t at = decltype(i)::value;
    if (inside >> at & 1) [[likely]] {
      auto pixel = load_vector(pixels);
      if constexpr (taps > 1)
        keep_in_register<C>(pixel);
      for_constants<taps>([&](auto k) __attribute__((always_inline)) {
        constexpr size_t tap = decltype(k)::value;
        if constexpr (at >= tap && (at - tap) % stride == 0 && (at - tap) / stride < outputs)
          f(pixel, k, std::integral_constant<size_t, (at - tap) / stride>());
      });
    }
    pixels += step;
  });
}

// f(taps, pixels, weights, inside) for all runs of all rows, with a constant number of taps.
template <class C, class F>
[[gnu::always_inline]] inline void
for_each_run(const PixelBlock& b, const TapOperands<C>& o, const F& f) {
  const TapRun *const first = o.runs + b.first_run, *const last = first + b.runs;
  for (const TapRow<C>*row = o.rows, *end = row + o.count; row != end; row++) {
    const C* const pixels = row->pixels + b.first_pixel + o.pixel_shift;
    C* const weights = row->weights + o.weight_shift;
    for (const TapRun* run = first; run != last; run++) {
      for_constants<std::size(kRunTaps)>([&](auto i) __attribute__((always_inline)) {
        constexpr size_t taps = kRunTaps[decltype(i)::value];
        if (run->taps == taps)
          f(std::integral_constant<size_t, taps>(),
            pixels + run->pixel,
            weights + run->weight,
            run->inside);
      });
    }
  }
}

template <class C, size_t outputs, size_t stride>
void gather_taps(
    const PixelBlock& b,
    TapOperands<C> o,
    const VectorRun& vectors,
    const C* bias,
    C* out,
    bool is_streamed) {
  out += b.first_out;
  for (int64_t v = 0; v < vectors.count; v++) {
    Vector<C> sums[outputs];
    for_constants<outputs>([&](auto p)
                               __attribute__((always_inline)) { sums[p] = load_vector(bias); });
    for_each_run(
        b,
        o,
        [&](auto count, const C* pixels, const C* weights, uint64_t inside)
            __attribute__((always_inline)) {
              constexpr size_t taps = decltype(count)::value;
              Vector<C> weight[taps];
              for_constants<taps>([&](auto k) __attribute__((always_inline)) {
                weight[k] = load_vector(weights + k * b.weight_step);
              });
              for_each_product<taps, stride, outputs>(
                  pixels,
                  b.pixel_step,
                  inside,
                  [&](const Vector<C>& pixel, auto k, auto p) __attribute__((always_inline)) {
                    sums[p] = multiply_add<C>(pixel, weight[k], sums[p]);
                  });
            });
    for_constants<outputs>([&](auto p) __attribute__((always_inline)) {
      C* const to = out + p * b.out_step;
      is_streamed ? stream_vector(to, sums[p]) : store_vector(to, sums[p]);
    });
    o.pixel_shift += kLanes<C>;
    o.weight_shift += vectors.weight_step;
    bias += kLanes<C>;
    out += vectors.out_step;
  }
}

template <class C, size_t outputs, size_t stride>
void sum_pixels(const PixelBlock& b, const TapOperands<C>& o, const C* grad) {
  Vector<C> grads[outputs];
  grad += b.first_out;
  for_constants<outputs>([&](auto p) __attribute__((always_inline)) {
    grads[p] = load_vector(grad + p * b.out_step);
  });
  for_each_run(
      b,
      o,
      [&](auto count, const C* pixels, C* to, uint64_t inside) __attribute__((always_inline)) {
        constexpr size_t taps = decltype(count)::value;
        constexpr size_t parts =
            taps < 4 ? 2 : 1; // of a sum, so that additions wait less for others
        Vector<C> sums[taps * parts] = {};
        for_each_product<taps, stride, outputs>(
            pixels,
            b.pixel_step,
            inside,
            [&](const Vector<C>& pixel, auto k, auto p) __attribute__((always_inline)) {
              constexpr size_t i = decltype(k)::value + decltype(p)::value % parts * taps;
              sums[i] = multiply_add<C>(pixel, grads[p], sums[i]);
            });
        for_constants<taps>([&](auto k) __attribute__((always_inline)) {
          if constexpr (parts == 2)
            sums[k] += sums[taps + k];
          C* const total = to + k * b.weight_step;
          store_vector(total, load_vector(total) + sums[k]);
        });
      });
}

// The kernels for each stride and number of outputs.
template <class C, size_t stride, size_t... i>
constexpr auto kernels_of_stride(std::index_sequence<i...>) {
  return std::array{std::pair{&gather_taps<C, i + 1, stride>, &sum_pixels<C, i + 1, stride>}...};
}

template <class C, size_t... i>
constexpr auto kernels_of(std::index_sequence<i...>) {
  return std::array{kernels_of_stride<C, i + 1>(std::make_index_sequence<kBlockPixels>())...};
}

template <class C>
constexpr auto kernels = kernels_of<C>(std::make_index_sequence<kMostRunStride>());

} // namespace tap_kernels_detail

// out[p] = bias + sum over rows, taps of pixel * weight, for each output p of the block, of each
// vector. Streamed outputs are stored past the caches.
template <class C>
void gather_taps(
    const PixelBlock& b,
    const TapOperands<C>& o,
    const VectorRun& vectors,
    const C* bias,
    C* out,
    bool is_streamed) {
  const auto kernel = tap_kernels_detail::kernels<C>[b.stride - 1][b.outputs - 1].first;
  kernel(b, o, vectors, bias, out, is_streamed);
}

// weight += sum over p of pixel * grad[p], for each tap of all rows.
template <class C>
void sum_pixels(const PixelBlock& b, const TapOperands<C>& o, const C* grad) {
  tap_kernels_detail::kernels<C>[b.stride - 1][b.outputs - 1].second(b, o, grad);
}

} // namespace torch_dnnl
