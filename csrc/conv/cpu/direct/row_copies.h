// Rows of an image with few channels, copied with their pads for products of many taps at once.
// Nothing is copied for each tap: the inputs of a tap are the same rows from another pixel on.
//
// A band is some rows of the result, a tile wide. Its lines are the rows of the image that it
// meets, with pads. Rows of the band share lines. Here a 3x3 kernel has stride 1; in the plan,
// band_rows is 2, band_lines is 4 and band_step is 1.
//
//     image              band           lines                     inputs of tap (1, 2)
//                                       0   0 0 0 0 0 0 0
//     a b c d e          row 0          1   0 a b c d e 0         row 0   b c d e 0   of line 1
//     f g h i j          row 1          2   0 f g h i j 0         row 1   g h i j 0   of line 2
//     k l m n o                         3   0 k l m n o 0
//
// A line is one copy if all taps along W read it; where they are far apart, with a dilation or a
// long stride, there is a copy of a line for each tap along W, of the pixels that this tap meets.
//
// Vectors of pixels need inputs next to each other. With a stride of s, a copy for them consists of
// s phases, which begin at successive pixels. With s = 2 and three taps:
//
//     line   a b c d e f g     copy   a c e g | b d f .     inputs   tap 0: a c e   (phase 0)
//                                                                    tap 1: b d f   (phase 1)
//                                                                    tap 2: c e g   (phase 0)
#pragma once

#include <algorithm>
#include <vector>

#include "conv/problem.h"
#include "core/cpu/shuffles.h"
#include "core/cpu/vectors.h"
#include "core/math.h"

namespace torch_dnnl {

struct RowCopiesPlan {
  // Taps: of the kernel, of one product (but for the last one), and along W that share a copy.
  int64_t taps, product_taps, copy_taps;
  int64_t line_copies; // copies of a line

  // Pixels of a copy: phases of `phase_pixels` each. In the image, pixels of a copy are
  // `image_step` apart.
  int64_t phases, phase_pixels, image_step;
  // Elements of a copy: from a pixel of a phase to the next, from a channel to the next, in all.
  int64_t pixel_step, channel_step, copy_size;

  // Rows of the result in a band; lines that they meet, and from one row's to the next row's.
  int64_t band_rows, band_lines, band_step;

  // From the input of a pixel of the result to that of the next pixel, and of the row below.
  int64_t result_pixel_step, result_row_step;
  // Where the inputs of each term of a product, [tap][channel], begin.
  std::vector<int64_t> terms;
  int64_t copies; // of a band, for all taps

  // Copies that some taps of a product need.
  int64_t copies_for(int64_t some_taps) const {
    return some_taps < taps ? some_taps / copy_taps : copies;
  }
  // Elements of all copies of a product.
  int64_t size() const {
    return copies_for(product_taps) * copy_size;
  }
};

// Copies for `width` pixels of a row of the result, and for the same pixels of the rows below in a
// band of up to `rows`, if these meet some lines in common. A product has about `depth` terms, or
// all.
inline RowCopiesPlan plan_row_copies(
    const ConvProblem& p,
    int64_t width,
    int64_t rows,
    int64_t depth,
    bool lanes_are_pixels) {
  const int64_t *k = p.kernel, stride = p.stride[2];
  RowCopiesPlan o{};
  o.taps = product(k);
  const bool share_copies = p.dilation[2] == 1 && stride <= k[2];
  o.copy_taps = share_copies ? k[2] : 1;
  o.line_copies = k[2] / o.copy_taps;
  o.product_taps = std::clamp(depth / (o.copy_taps * p.ic) * o.copy_taps, o.copy_taps, o.taps);

  const bool has_phases = share_copies && lanes_are_pixels;
  const int64_t result_step = share_copies && !lanes_are_pixels ? stride : 1; // pixels of a phase
  o.phases = has_phases ? stride : 1;
  o.phase_pixels = (width - 1) * result_step + (o.copy_taps - 1) / o.phases + 1;
  o.image_step = share_copies ? 1 : stride;
  const bool channels_first = lanes_are_pixels || p.src_stride[1] != 1;
  o.pixel_step = channels_first ? 1 : p.ic;
  o.channel_step = channels_first ? o.phase_pixels * o.phases : 1;
  o.copy_size = o.phase_pixels * o.phases * p.ic;

  const int64_t lines = p.stride[1] / p.dilation[1];
  const bool has_band =
      o.product_taps == o.taps && p.stride[1] % p.dilation[1] == 0 && lines < k[1];
  o.band_rows = has_band ? ceil_div(p.dst_size[1], ceil_div(p.dst_size[1], rows)) : 1;
  o.band_step = has_band ? lines : 0;
  o.band_lines = (o.band_rows - 1) * o.band_step + k[1];
  o.copies = k[0] * o.band_lines * o.line_copies;

  o.result_pixel_step = result_step * o.pixel_step;
  o.result_row_step = o.band_step * o.line_copies * o.copy_size;
  for (int64_t tap = 0; tap < o.product_taps; tap++) {
    Digits digits{tap};
    const int64_t x = digits.next(k[2]), h = digits.next(k[1]),
                  line = digits.rest * o.band_lines + h;
    const int64_t copy = line * o.line_copies + x / o.copy_taps, at = x % o.copy_taps;
    for (int64_t c = 0; c < p.ic; c++) {
      o.terms.push_back(
          copy * o.copy_size + c * o.channel_step + at % o.phases * o.phase_pixels +
          at / o.phases * o.pixel_step);
    }
  }
  return o;
}

// Makes the copies of a plan.
template <class T>
struct RowCopies {
  using C = compute_t<T>;
  const ConvProblem& p;
  const RowCopiesPlan& plan;

  // What taps [first, first + taps) of a product meet, for results from pixel x of row (d, h) on:
  // for each tap along the first axis, for each row of the image that the band meets, for each tap
  // in a row that has its own copy.
  void copy(const T* image, int64_t d, int64_t h, int64_t x, int64_t first_tap, int64_t taps, C* to)
      const {
    const int64_t first = first_tap / plan.copy_taps, end = first + plan.copies_for(taps);
    for (int64_t i = first; i < end; i++, to += plan.copy_size) {
      const int64_t line = i / plan.line_copies;
      const int64_t tap[3] = {
          line / plan.band_lines, line % plan.band_lines, i % plan.line_copies * plan.copy_taps};
      const int64_t at[3] = {d, h, x};
      int64_t src[3];
      for (int a = 0; a < 3; a++)
        src[a] = at[a] * p.stride[a] + tap[a] * p.dilation[a] - p.pad[a];
      const bool is_inside =
          src[0] >= 0 && src[0] < p.src_size[0] && src[1] >= 0 && src[1] < p.src_size[1];
      if (is_inside)
        copy_row(image + src[0] * p.src_stride[2] + src[1] * p.src_stride[3], src[2], to);
      else
        std::fill(to, to + plan.copy_size, C(0));
    }
  }

 private:
  // Pixels of a row of the image from x on, and of its pads.
  void copy_row(const T* row, int64_t x, C* to) const {
    const int64_t step = plan.image_step * plan.phases, from_step = step * p.src_stride[4];
    for (int64_t phase = 0; phase < plan.phases;
         phase++, x += plan.image_step, to += plan.phase_pixels) {
      const Range inside = within(x, step, p.src_size[2], plan.phase_pixels);
      const int64_t begin = std::min(inside.begin, plan.phase_pixels),
                    end = std::max(inside.end, begin);
      const T* from = row + (x + begin * step) * p.src_stride[4];
      if (plan.pixel_step != p.ic) { // channels first
        for (int64_t c = 0; c < p.ic; c++)
          copy_run(from + c * p.src_stride[1], from_step, {begin, end}, to + c * plan.channel_step);
        continue;
      }
      std::fill(to, to + begin * p.ic, C(0));
      std::fill(to + end * p.ic, to + plan.phase_pixels * p.ic, C(0));
      if (from_step == p.ic) { // and so channels are next to each other
        widen(from, (end - begin) * p.ic, to + begin * p.ic);
        continue;
      }
      for (int64_t i = begin; i < end; i++, from += from_step)
        widen(from, p.ic, to + i * p.ic);
    }
  }

  // The pixels of a phase: zeros, but for those inside.
  void copy_run(const T* from, int64_t from_step, Range inside, C* to) const {
    std::fill(to, to + inside.begin, C(0));
    std::fill(to + inside.end, to + plan.phase_pixels, C(0));
    if (from_step == 1)
      return widen(from, inside.count(), to + inside.begin);
    int64_t i = inside.begin;
    if constexpr (std::is_same_v<T, C>) {
      constexpr int64_t n = kLanes<C>;
      if (from_step == 2) {
        for (; i + n < inside.end; i += n, from += 2 * n) {
          const auto pixels = deinterleave_lanes(Lanes<C>::loadu(from), Lanes<C>::loadu(from + n));
          pixels.first.store(to + i);
        }
      }
    }
    for (; i < inside.end; i++, from += from_step)
      to[i] = static_cast<C>(*from);
  }
};

} // namespace torch_dnnl
