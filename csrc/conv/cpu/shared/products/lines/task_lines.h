// The tasks of products, and the input lines that they take.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <vector>

#include "conv/cpu/shared/products/lines/image_lines.h"
#include "conv/cpu/shared/products/plan.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// Bytes that the copies of a pixel's taps may write at once, and inputs that may be read beyond the
// last line.
inline constexpr int64_t kOvercopy = 64;
// Pixels of lines that are rather copied than products of their own.
inline constexpr int64_t kShortLine = 32;

// What a task computes.
struct RowTask {
  int64_t n, group, d;
  Range rows, pixels, panels;
};

inline RowTask row_task(const ProductPlan& plan, const ConvProblem& p, int64_t index) {
  Digits digits{index};
  RowTask task{};
  task.panels = nth_range(digits.next(plan.panel_blocks), plan.panels_of_task, plan.panels);
  task.pixels = nth_range(digits.next(plan.widths), plan.width, p.dst_size[2]);
  task.rows = nth_part(digits.next(plan.row_blocks), plan.row_blocks, p.dst_size[1]);
  task.d = digits.next(p.dst_size[0]);
  task.group = digits.next(plan.groups);
  task.n = digits.rest;
  return task;
}

// The taps of a block: those of row (kd, kh) of the kernel, from kw on.
struct BlockTaps {
  int64_t kd, kh, kw;
};

// The inputs of a row of outputs.
template <class T>
struct InputLine {
  const T* data;   // null: pads
  int64_t missing; // pixels in front of it from what the first output would meet on
  int64_t step;    // values from the inputs of an output to those of the next
};

// The input lines of a task. They are read where they lie if they can be, and else copied when they
// are first asked for.
template <class Products, class Lines>
class TaskLines {
  using Left = typename Products::Left;
  using Element = typename Lines::Element;

 public:
  TaskLines(const ConvProblem& p, const ProductPlan& plan, const Lines& lines)
      : p_(p), plan_(plan), copy_(lines) {
    std::fill_n(pads_.data(), size_ + kOvercopy, lines.pad());
  }

  void begin(const RowTask& task) {
    task_ = task;
    std::fill(is_copied_.begin(), is_copied_.end(), false);
  }

  // The inputs that the outputs (h, task.pixels) meet at taps. For tiles, lines above and below the
  // image are pads as well, unless lines are read where they lie.
  InputLine<Left> line(int64_t h, const BlockTaps& taps) {
    const auto [kd, kh, kw] = taps;
    const int64_t step = plan_.input_pixels * plan_.ic;
    const int64_t d = task_.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
    const int64_t below = (h - task_.rows.begin) * p_.stride[1] + kh * p_.dilation[1];
    const int64_t row = task_.rows.begin * p_.stride[1] - p_.pad[1] + below;
    const bool is_inside = row >= 0 && row < p_.src_size[1];
    if (d < 0 || d >= p_.src_size[0] || !(is_inside || plan_.in_tiles))
      return {nullptr, 0, step};
    const LineOfImage line = line_of_image(d, row, are_apart_ ? kw : 0);
    const int64_t missing = line.first - first_pixel() - kw * p_.dilation[2];
    if constexpr (std::is_same_v<Element, Left>) {
      if (can_stay_ && line.first >= 0 && line.first + (line.pixels - 1) * line.step < line.size) {
        const auto* data = static_cast<const Left*>(line.data) + line.first * line.pixel_stride;
        return {is_inside ? data : nullptr, missing, p_.stride[2] * line.pixel_stride};
      }
    }
    const int64_t row_index = rows_follow_ ? below : kh * plan_.rows + h - task_.rows.begin;
    const int64_t index = (are_apart_ ? kw * p_.kernel[0] + kd : kd) * rows_ + row_index;
    Left* const to = lines_.data() + index * size_;
    if (!is_copied_[index]) {
      is_copied_[index] = true;
      if (is_inside)
        copy_.copy(line, plan_.ic, elements_.data(), to);
      else
        std::fill_n(to, size_, copy_.pad());
    }
    return {to, missing, step};
  }
  // Whether the inputs of row h + after follow those of the rows from h on, of which `first` is the
  // line: all of them are one line.
  bool follows(const InputLine<Left>& first, int64_t after, int64_t h, const BlockTaps& taps) {
    const InputLine<Left> next = line(h + after, taps);
    return next.data == first.data + after * task_.pixels.count() * first.step &&
        next.missing == first.missing;
  }
  // Which outputs of a row meet no pad at a tap that is so many pixels from the first one.
  Range inside_image(int64_t shift) const {
    return within(first_pixel() + shift, p_.stride[2], p_.src_size[2], task_.pixels.count());
  }
  // The inputs of all taps of the outputs (rows, task.pixels), pixel by pixel, with zeros up to a
  // multiple of kPixelPack. Some bytes more may be copied at a time; what belongs there is written
  // over them.
  void copy_taps(Range rows, Left* to) {
    constexpr int64_t few = kOvercopy / sizeof(Left);
    const int64_t kernel_rows = p_.kernel[0] * p_.kernel[1], size = plan_.depth / kernel_rows;
    const int64_t zeros = plan_.copy_pitch - plan_.depth;
    const int64_t step = plan_.input_pixels * plan_.ic, pixels = task_.pixels.count();
    std::vector<const Left*> lines(kernel_rows);
    for (int64_t h = rows.begin; h < rows.end; h++) {
      for (int64_t i = 0; i < kernel_rows; i++) {
        const Left* const from = line(h, {i / p_.kernel[1], i % p_.kernel[1], 0}).data;
        lines[i] = from == nullptr ? pads_.data() : from;
      }
      const auto copy = [&](auto count) {
        for (int64_t x = 0; x < pixels; x++) {
          for (int64_t i = 0; i < kernel_rows; i++, to += size)
            std::memcpy(to, lines[i] + x * step, count * sizeof(Left));
          to = std::fill_n(to, zeros, Left(0));
        }
      };
      if (size <= few / 4)
        copy(std::integral_constant<int64_t, few / 4>());
      else if (size <= few / 2)
        copy(std::integral_constant<int64_t, few / 2>());
      else if (size <= few)
        copy(std::integral_constant<int64_t, few>());
      else
        copy(size);
    }
  }

 private:
  // From what the first output meets at tap kw of a row on.
  LineOfImage line_of_image(int64_t d, int64_t row, int64_t kw) const {
    const int64_t *xs = p_.src_stride, step = p_.kernel[2] == 1 ? p_.stride[2] : 1;
    const int64_t channels = p_.ic * plan_.merged;
    const auto* image = static_cast<const Element*>(p_.src) + task_.n * xs[0] +
        task_.group * channels * xs[1] + d * xs[2] + row * xs[3];
    const int64_t first = first_pixel() + kw * p_.dilation[2];
    Range pixels{first, first + window(task_.pixels.count()) * step};
    if (has_no_pads()) {
      pixels.begin = std::clamp<int64_t>(pixels.begin, 0, p_.src_size[2] - 1);
      pixels.end = std::clamp(pixels.end, pixels.begin + 1, p_.src_size[2]);
    }
    return {
        image, channels, xs[1], pixels.begin, pixels.count() / step, step, p_.src_size[2], xs[4]};
  }
  // That the first output of the task meets at the first tap.
  int64_t first_pixel() const {
    return task_.pixels.begin * p_.stride[2] - p_.pad[2];
  }
  // Products of single taps leave pads out, of which there may be many between distant taps.
  bool has_no_pads() const {
    return plan_.block == ProductPlan::of_tap && p_.kernel[2] > 1 && !plan_.in_tiles;
  }
  // Pixels of a line that outputs meet.
  int64_t window(int64_t outputs) const {
    const int64_t taps = are_apart_ ? 0 : (p_.kernel[2] - 1) * p_.dilation[2]; // from the first one
    return (outputs - 1) * plan_.input_pixels + taps + 1;
  }
  // Whether a line without pads is one of products where it lies. Copies of short lines follow one
  // another, and become one product.
  bool is_line_of_products() const {
    if (product(p_.kernel) == 1 && plan_.width < kShortLine && plan_.rows > 1 &&
        p_.src_stride[3] * p_.stride[1] != plan_.width * p_.stride[2] * p_.src_stride[4])
      return false;
    const bool are_pixels = p_.src_stride[1] == 1 && plan_.ic == p_.ic * plan_.merged;
    return copy_.are_same() && are_pixels && plan_.block != ProductPlan::of_pixel &&
        plan_.depth % plan_.terms == 0 && (p_.kernel[2] == 1 || p_.src_stride[4] == plan_.ic);
  }

  const ConvProblem& p_;
  const ProductPlan& plan_;
  const Lines& copy_;
  const bool can_stay_ = is_line_of_products();
  // Taps of a row that are farther apart than outputs have lines of their own.
  const bool are_apart_ =
      plan_.block == ProductPlan::of_tap && p_.dilation[2] > plan_.width* plan_.input_pixels;
  RowTask task_{};
  const int64_t size_ = plan_.ic *
      (has_no_pads() ? std::min(window(plan_.width), p_.src_size[2]) : window(plan_.width));
  // Input rows that a task's rows meet: all from the first to the last, or those of each tap.
  const int64_t following_rows_ =
      (plan_.rows - 1) * p_.stride[1] + (p_.kernel[1] - 1) * p_.dilation[1] + 1;
  const bool rows_follow_ = following_rows_ <= p_.kernel[1] * plan_.rows;
  const int64_t rows_ = rows_follow_ ? following_rows_ : p_.kernel[1] * plan_.rows;
  const int64_t count_ = (are_apart_ ? p_.kernel[2] : 1) * p_.kernel[0] * rows_; // of lines
  const Scratch<Left> lines_{count_ * size_ + kOvercopy}, pads_{size_ + kOvercopy};
  const Scratch<Element> elements_{size_};
  std::vector<char> is_copied_ = std::vector<char>(count_);
};

} // namespace torch_dnnl
