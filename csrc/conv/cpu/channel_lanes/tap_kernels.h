// The inner loops of depthwise convolution: a block of neighbouring outputs gathers its taps, and
// the gradients of taps gather a block of gradients. A pixel is a vector whose lanes are channels.
// Where several input channels meet in an output channel, each of them is a tap.
//
// Loads bound such loops, not products: a core does one of either per cycle, and a load that
// crosses cache lines takes two. So neighbouring taps are one run: each pixel that it meets is
// loaded once, and multiplied by all taps while the outputs' sums, or gradients, stay in registers.
#pragma once

#include "conv/cpu/shared/microkernel.h"
#include "core/cpu/vectors.h"
#include "core/math.h"

namespace torch_dnnl {

// As many outputs as fit the registers beside the weights of the longest run and a pixel; of
// float64, which is rare, fewer, for each number of outputs is a kernel to compile.
template <class C>
inline constexpr int64_t kBlockPixels = sizeof(C) == 8 ? 4
    : kRegisters == 32                                 ? 16
                                                       : 7;

// Of many outputs, kernels compute an even number.
inline constexpr bool has_kernels(int64_t outputs) {
  constexpr int64_t few = 8;
  return outputs <= few || outputs % 2 == 0;
}

// How many of n outputs are the next block, if blocks are to be of equal size.
inline int64_t outputs_of_block(int64_t n, int64_t most) {
  const int64_t outputs = ceil_div(n, ceil_div(n, most));
  if (has_kernels(outputs))
    return outputs;
  return outputs < n ? outputs + 1 : ceil_div(n, 2);
}

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
  int64_t outputs;              // <= kBlockPixels<C>
  int64_t stride;               // of the outputs, in pixels; 1 if there are runs of one tap only
  int64_t first_pixel;          // in a row
  int64_t first, first_out;     // the first output: which of the row, and where it is
  int64_t pixel_step, out_step; // from one pixel that a run meets to the next one, and of outputs
  int64_t weight_step;          // from one tap of a run to the next one
  int64_t first_run, runs;      // which of a list
};

// Where the pixels that a row of taps meets begin, in the image or in scratch memory, and the row's
// weights, or their sums.
template <class C>
struct TapRow {
  const void* pixels;
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
// pixels lie together.
struct VectorRun {
  int64_t count, weight_step, bias_step, out_step;
};

// How outputs reach memory. ahead: through the caches, into which the lines of the next block, and
// pixels that are met for the first time, are brought meanwhile. Processors foresee neither well
// where all channels of some pixels come before the next pixels.
struct Stores {
  enum { plain, ahead, streamed } how;
  int64_t pixels_ahead;  // from pixels to those that are brought; 0: those of the next block
  Bounds<double> bounds; // clamp the sums
};

namespace tap_kernels_detail {

// The loops over vectors are unrolled completely, as their arrays are registers then.
inline constexpr int kUnrolled = 64;

// Pixels that are brought early come to the second-level cache.
inline constexpr int kLocality = 2;

// The lanes that are computed at once: as many as a register has, so that sums, weights and a pixel
// fit the registers.
template <class C>
inline constexpr int64_t kAtOnce = sizeof(Register<C>) / sizeof(C);

// Pixels are of type P, in the image that of its elements.
template <class C, class P>
[[gnu::always_inline]] inline Register<C> load_pixel(const P* pixel) {
  if constexpr (std::is_same_v<P, C>)
    return load_register(pixel);
  else if constexpr (kAtOnce<C> == kLanes<C>)
    return Vector<C>(load_lanes<C>(pixel));
  else
    return load_quad<C>(pixel);
}
template <class C, class P>
[[gnu::always_inline]] inline void store_pixel(P* pixel, const Register<C>& sums, Stores stores) {
  if constexpr (kAtOnce<C> == kLanes<C>) {
    if constexpr (!std::is_same_v<P, C>)
      store_lanes<C>(pixel, Lanes<C>(sums));
    else if (stores.how == Stores::streamed)
      stream_vector(pixel, sums);
    else
      store_vector(pixel, sums);
  } else if constexpr (std::is_same_v<P, C>) {
    store_register(pixel, sums);
  } else {
    store_quad<C>(pixel, sums);
  }
}

// The results have the bits of activate().
template <class C, size_t outputs>
[[gnu::always_inline]] inline void
clamp(Register<C> (&sums)[outputs], const Bounds<double>& bounds) {
  const Register<C> zero{};
  const Register<C> least = static_cast<C>(bounds.low) - zero;
  const Register<C> most = static_cast<C>(bounds.high) - zero;
#pragma GCC unroll kUnrolled
  for (size_t p = 0; p < outputs; p++)
    sums[p] = torch_dnnl::clamp(sums[p], least, most);
}

// f(pixel, tap, output) for all products of a run.
template <class C, size_t taps, size_t stride, size_t outputs, class P, class F>
[[gnu::always_inline]] inline void
for_each_product(const P* pixels, int64_t step, uint64_t inside, const F& f) {
  if constexpr (taps == 1 && stride > 1) // the pixels between are not met
    return for_each_product<C, taps, 1, outputs>(pixels, step * stride, inside, f);
#pragma GCC unroll kUnrolled
  for (size_t at = 0; at < (outputs - 1) * stride + taps; at++, pixels += step) {
    if (inside >> at & 1) [[likely]] {
      auto pixel = load_pixel<C>(pixels);
      if constexpr (taps > 1)
        keep_in_register(pixel);
#pragma GCC unroll kUnrolled
      for (size_t tap = 0; tap < taps; tap++)
        if (at >= tap && (at - tap) % stride == 0 && (at - tap) / stride < outputs)
          f(pixel, tap, (at - tap) / stride);
    }
  }
}

// f(taps, pixels, weights, inside) for all runs of all rows, with a constant number of taps.
template <class P, class C, class F>
[[gnu::always_inline]] inline void
for_each_run(const PixelBlock& b, const TapOperands<C>& o, const F& f) {
  const TapRun *const first = o.runs + b.first_run, *const last = first + b.runs;
  for (const TapRow<C>*row = o.rows, *end = row + o.count; row != end; row++) {
    const P* const pixels = static_cast<const P*>(row->pixels) + b.first_pixel + o.pixel_shift;
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

template <size_t taps, size_t stride, class C, class P, size_t outputs>
[[gnu::always_inline]] inline void gather_run(
    const PixelBlock& b,
    const P* pixels,
    const C* weights,
    uint64_t inside,
    Register<C> (&sums)[outputs]) {
  Register<C> weight[taps];
#pragma GCC unroll kUnrolled
  for (size_t k = 0; k < taps; k++)
    weight[k] = load_register(weights + k * b.weight_step);
  const auto add =
      [&](const Register<C>& pixel, size_t k, size_t p)
          __attribute__((always_inline)) { sums[p] = multiply_add(pixel, weight[k], sums[p]); };
  for_each_product<C, taps, stride, outputs>(pixels, b.pixel_step, inside, add);
}

template <class P, class C, size_t outputs, size_t stride>
void gather_taps(
    const PixelBlock& b,
    const TapOperands<C>& operands,
    const VectorRun& vectors,
    const C* bias,
    P* out,
    Stores stores) {
  TapOperands<C> o = operands;
  out += b.first_out;
  for (int64_t lane = 0; lane < vectors.count * kLanes<C>; lane += kAtOnce<C>) {
    const int64_t vector = lane / kLanes<C>, in_vector = lane % kLanes<C>;
    o.pixel_shift = operands.pixel_shift + lane;
    o.weight_shift = operands.weight_shift + vector * vectors.weight_step + in_vector;
    P* const to = out + vector * vectors.out_step + in_vector;
    if (stores.how == Stores::ahead && lane * sizeof(P) % kCacheLine == 0) {
      constexpr int64_t pixels = outputs * stride;
      const int64_t ahead = stores.pixels_ahead != 0 ? stores.pixels_ahead : pixels * b.pixel_step;
      // The last rows are those that the row of outputs before has not met.
      for (int64_t r = std::max<int64_t>(o.count - stride, 0); r < o.count; r++) {
        const P* const row = static_cast<const P*>(o.rows[r].pixels) + b.first_pixel;
#pragma GCC unroll kUnrolled
        for (int64_t i = 0; i < pixels; i++)
          __builtin_prefetch(row + o.pixel_shift + ahead + i * b.pixel_step, /*rw=*/0, kLocality);
      }
#pragma GCC unroll kUnrolled
      for (size_t p = 0; p < outputs; p++)
        __builtin_prefetch(to + (outputs + p) * b.out_step, /*rw=*/1);
    }
    Register<C> sums[outputs];
#pragma GCC unroll kUnrolled
    for (size_t p = 0; p < outputs; p++)
      sums[p] = load_register(bias + vector * vectors.bias_step + in_vector);
    for_each_run<P>(b, o, [&](auto taps, auto... run) __attribute__((always_inline)) {
      gather_run<taps(), stride, C>(b, run..., sums);
    });
    if (stores.bounds.are_set)
      clamp<C>(sums, stores.bounds);
#pragma GCC unroll kUnrolled
    for (size_t p = 0; p < outputs; p++)
      store_pixel<C>(to + p * b.out_step, sums[p], stores);
  }
}

template <size_t taps, size_t stride, class C, class P, size_t outputs>
[[gnu::always_inline]] inline void sum_run(
    const PixelBlock& b,
    const P* pixels,
    C* to,
    uint64_t inside,
    const Register<C> (&grads)[outputs]) {
  constexpr size_t parts = taps < 4 ? 2 : 1; // of a sum, so that additions wait less for others
  Register<C> sums[taps * parts] = {};
  const auto add = [&](const Register<C>& pixel, size_t k, size_t p)
                       __attribute__((always_inline)) {
                         const size_t i = k + p % parts * taps;
                         sums[i] = multiply_add(pixel, grads[p], sums[i]);
                       };
  for_each_product<C, taps, stride, outputs>(pixels, b.pixel_step, inside, add);
#pragma GCC unroll kUnrolled
  for (size_t k = 0; k < taps; k++) {
    if constexpr (parts == 2)
      sums[k] += sums[taps + k];
    C* const total = to + k * b.weight_step;
    store_register(total, load_register(total) + sums[k]);
  }
}

template <class P, class C, size_t outputs, size_t stride>
void sum_pixels(const PixelBlock& b, const TapOperands<C>& operands, const P* grad) {
  TapOperands<C> o = operands;
  for (int64_t lane = 0; lane < kLanes<C>; lane += kAtOnce<C>) {
    o.pixel_shift = operands.pixel_shift + lane;
    o.weight_shift = operands.weight_shift + lane;
    Register<C> grads[outputs];
#pragma GCC unroll kUnrolled
    for (size_t p = 0; p < outputs; p++)
      grads[p] = load_pixel<C>(grad + b.first_out + lane + p * b.out_step);
    for_each_run<P>(b, o, [&](auto taps, auto... run) __attribute__((always_inline)) {
      sum_run<taps(), stride, C>(b, run..., grads);
    });
  }
}

// The kernels for each stride and number of outputs. Where there are none, the kernel of one output
// less, which is not called, takes the place.
constexpr size_t kernel_outputs(size_t outputs) {
  return has_kernels(outputs) ? outputs : outputs - 1;
}
template <class P, class C>
constexpr auto gathers = table_of<kMostRunStride>([](auto stride) {
  return table_of<kBlockPixels<C>>([](auto outputs) {
    return &gather_taps<P, C, kernel_outputs(decltype(outputs)::value), decltype(stride)::value>;
  });
});
template <class P, class C>
constexpr auto sums = table_of<kMostRunStride>([](auto stride) {
  return table_of<kBlockPixels<C>>([](auto outputs) {
    return &sum_pixels<P, C, kernel_outputs(decltype(outputs)::value), decltype(stride)::value>;
  });
});

} // namespace tap_kernels_detail

// out[p] = bias + sum over rows, taps of pixel * weight, for each output p of the block, of each
// vector. Pixels are of the type of outputs.
template <class P, class C>
void gather_taps(
    const PixelBlock& b,
    const TapOperands<C>& o,
    const VectorRun& vectors,
    const C* bias,
    P* out,
    Stores stores) {
  const auto kernel = tap_kernels_detail::gathers<P, C>[b.stride - 1][b.outputs - 1];
  kernel(b, o, vectors, bias, out, stores);
}

// weight += sum over p of pixel * grad[p], for each tap of all rows.
template <class P, class C>
void sum_pixels(const PixelBlock& b, const TapOperands<C>& o, const P* grad) {
  tap_kernels_detail::sums<P, C>[b.stride - 1][b.outputs - 1](b, o, grad);
}

} // namespace torch_dnnl
