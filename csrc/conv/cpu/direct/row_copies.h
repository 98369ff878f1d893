// Rows of an image with few channels, copied with their pads for products of many taps at once.
// Nothing is copied for each tap: the inputs of a tap are the same rows from another pixel on.
#pragma once

#include <algorithm>
#include <vector>

#include "conv/cpu/shared/blocks.h"

namespace torch_dnnl {

template <class T>
class RowCopies {
 public:
  using C = compute_t<T>;

  // For `width` pixels of a row of the result, and for the same of the rows below in a band of up
  // to `rows`, if they meet some rows of the image in common. A product has about `depth` terms,
  // or all. Vectors of pixels need inputs next to each other.
  RowCopies(const ConvProblem& p, int64_t width, int64_t rows, int64_t depth, bool lanes_are_pixels)
      : p_(p), taps_(product(p.kernel)) {
    const int64_t stride = p.stride[2];
    if (p.dilation[2] == 1 && stride <= p.kernel[2]) {
      copied_taps_ = p.kernel[2];
      (lanes_are_pixels ? phases_ : row_step_) = stride;
    } else {
      copied_step_ = stride;
    }
    run_ = (width - 1) * row_step_ + (copied_taps_ - 1) / phases_ + 1;
    if (!lanes_are_pixels && p.src_stride[1] == 1) {
      pixel_step_ = p.ic;
    } else {
      channel_step_ = run_ * phases_;
    }
    copy_size_ = run_ * phases_ * p.ic;
    const int64_t copies = depth / (copied_taps_ * p.ic);
    product_taps_ = std::clamp(copies * copied_taps_, copied_taps_, taps_);
    plan_band(rows);
    for (int64_t tap = 0; tap < product_taps_; tap++) {
      const int64_t row = tap / p.kernel[2], x = tap % p.kernel[2];
      const int64_t line = row / p.kernel[1] * band_lines_ + row % p.kernel[1];
      const int64_t copy = line * copies_of_line() + x / copied_taps_, at = x % copied_taps_;
      for (int64_t c = 0; c < p.ic; c++) {
        terms_.push_back(
            copy * copy_size_ + c * channel_step_ + at % phases_ * run_ +
            at / phases_ * pixel_step_);
      }
    }
  }

  // Taps of a product, but for the last one.
  int64_t product_taps() const {
    return product_taps_;
  }
  int64_t band_rows() const {
    return band_rows_;
  }
  // Elements of all copies of a product, or band.
  int64_t size() const {
    return copies_in(product_taps_) * copy_size_;
  }
  // Where the inputs begin that the terms of a product, [tap][channel], are of.
  const int64_t* terms() const {
    return terms_.data();
  }
  // From the input of a pixel of the result to that of the next pixel, and of the row below.
  int64_t pixel_step() const {
    return row_step_ * pixel_step_;
  }
  int64_t row_step() const {
    return band_step_ * copies_of_line() * copy_size_;
  }

  // What taps [first, first + taps) of a product meet, for results from pixel x of row (d, h) on:
  // for each tap along the first axis, for each row of the image that the band meets, for each tap
  // in a row that has its own copy.
  void copy(const T* image, int64_t d, int64_t h, int64_t x, int64_t first_tap, int64_t taps, C* to)
      const {
    const int64_t first = first_tap / copied_taps_, end = first + copies_in(taps);
    for (int64_t i = first; i < end; i++, to += copy_size_) {
      const int64_t line = i / copies_of_line();
      const int64_t tap[3] = {
          line / band_lines_, line % band_lines_, i % copies_of_line() * copied_taps_};
      const int64_t at[3] = {d, h, x};
      int64_t src[3];
      for (int a = 0; a < 3; a++)
        src[a] = at[a] * p_.stride[a] + tap[a] * p_.dilation[a] - p_.pad[a];
      const bool is_inside =
          src[0] >= 0 && src[0] < p_.src_size[0] && src[1] >= 0 && src[1] < p_.src_size[1];
      if (is_inside) {
        copy_row(image + src[0] * p_.src_stride[2] + src[1] * p_.src_stride[3], src[2], to);
      } else {
        std::fill(to, to + copy_size_, C(0));
      }
    }
  }

 private:
  void plan_band(int64_t rows) {
    const int64_t stride = p_.stride[1], dilation = p_.dilation[1];
    if (product_taps_ == taps_ && stride % dilation == 0 && stride / dilation < p_.kernel[1]) {
      band_rows_ = ceil_div(p_.dst_size[1], ceil_div(p_.dst_size[1], rows));
      band_step_ = stride / dilation;
    }
    band_lines_ = (band_rows_ - 1) * band_step_ + p_.kernel[1];
  }

  int64_t copies_of_line() const {
    return p_.kernel[2] / copied_taps_;
  }

  int64_t copies_in(int64_t taps) const {
    return taps < taps_ ? taps / copied_taps_ : p_.kernel[0] * band_lines_ * copies_of_line();
  }

  // Pixels of a row of the image from x on, and of its pads.
  void copy_row(const T* row, int64_t x, C* to) const {
    const int64_t step = copied_step_ * phases_, from_step = step * p_.src_stride[4];
    for (int64_t phase = 0; phase < phases_; phase++, x += copied_step_, to += run_) {
      const Range inside = within(x, step, p_.src_size[2], run_);
      const int64_t begin = std::min(inside.begin, run_), end = std::max(inside.end, begin);
      const T* from = row + (x + begin * step) * p_.src_stride[4];
      if (pixel_step_ == p_.ic && from_step == p_.ic) { // and so channels are
        copy_run(from, 1, begin * p_.ic, end * p_.ic, run_ * p_.ic, to, 1);
        continue;
      }
      if (pixel_step_ == p_.ic) {
        std::fill(to, to + begin * p_.ic, C(0));
        std::fill(to + end * p_.ic, to + run_ * p_.ic, C(0));
        for (int64_t i = begin; i < end; i++, from += from_step)
          widen(from, p_.ic, to + i * p_.ic);
        continue;
      }
      for (int64_t c = 0; c < p_.ic; c++) {
        const T* line = from + c * p_.src_stride[1];
        copy_run(line, from_step, begin, end, run_, to + c * channel_step_, pixel_step_);
      }
    }
  }

  // Zeros, but in [begin, end), `step` apart.
  static void copy_run(
      const T* from,
      int64_t from_step,
      int64_t begin,
      int64_t end,
      int64_t count,
      C* to,
      int64_t step) {
    for (int64_t i = 0; i < begin; i++)
      to[i * step] = 0;
    for (int64_t i = end; i < count; i++)
      to[i * step] = 0;
    int64_t i = begin;
    if (step == 1 && from_step == 1) {
      widen(from, end - begin, to + begin);
      return;
    }
    if constexpr (std::is_same_v<T, C>) {
      constexpr int64_t n = kLanes<C>;
      if (step == 1 && from_step == 2) {
        for (; i + n < end; i += n, from += 2 * n) {
          const auto pixels =
              at::vec::deinterleave2(Lanes<C>::loadu(from), Lanes<C>::loadu(from + n));
          pixels.first.store(to + i);
        }
      }
    }
    for (; i < end; i++, from += from_step)
      to[i * step] = static_cast<C>(*from);
  }

  const ConvProblem& p_;
  const int64_t taps_;
  int64_t product_taps_ = 1, copied_taps_ = 1; // taps of a product, and of a copy
  int64_t copied_step_ = 1; // from a pixel of the image that is copied to the next
  int64_t row_step_ = 1;    // from the input of a pixel to that of the next, in a copy
  int64_t phases_ = 1, run_ = 1, pixel_step_ = 1, channel_step_ = 1, copy_size_ = 0; // of a copy
  // Of a band: rows of the result, lines that these are of, and those from one to the next.
  int64_t band_rows_ = 1, band_lines_ = 1, band_step_ = 0;
  std::vector<int64_t> terms_;
};

} // namespace torch_dnnl
