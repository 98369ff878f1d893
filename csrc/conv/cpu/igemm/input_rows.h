// Input rows as the GEMMs read them: [pixel][channel], in the type of a, with padding inserted.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "conv/cpu/igemm/plan.h"
#include "conv/cpu/shared/image_rows.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// Shorter rows of 1x1 kernels are copied: the copies are contiguous, and so one GEMM.
inline constexpr int64_t kShortRow = 32;

// How the input rows of a task lie in memory.
struct InputRowLayout {
  bool stays_in_image; // a row without padding is read in the image, if a copy would equal it
  bool omits_padding;  // GEMMs of single taps skip padding, because distant taps meet much of it
  bool has_tap_rows;   // each kw has rows of its own, because taps are farther apart than outputs
  bool shares_rows;    // all kh share the rows from the first to the last; else each has its own
  int64_t pixel_step, reach; // in pixels: from output to output; from the first tap to the last
  int64_t size;              // elements of a row, at most
  int64_t rows, count;       // rows of one kd (and kw); of all

  int64_t pixels(int64_t outputs) const {
    return (outputs - 1) * pixel_step + reach + 1;
  }
};

inline InputRowLayout input_row_layout(const ConvProblem& p, const IgemmPlan& plan) {
  InputRowLayout layout{};
  const int64_t* xs = p.src_stride;
  const bool are_short = product(p.kernel) == 1 && plan.width < kShortRow && plan.rows > 1 &&
      xs[3] * p.stride[1] != plan.width * p.stride[2] * xs[4];
  layout.stays_in_image = !are_short && xs[1] == 1 && plan.ic == p.ic * plan.merged &&
      plan.block != KBlock::im2col && plan.k % plan.kr == 0 &&
      (p.kernel[2] == 1 || xs[4] == plan.ic);
  layout.omits_padding = plan.block == KBlock::tap && !plan.uses_amx;
  layout.has_tap_rows = plan.block == KBlock::tap && p.dilation[2] > plan.width * plan.pixel_step;
  layout.pixel_step = plan.pixel_step;
  layout.reach = layout.has_tap_rows ? 0 : (p.kernel[2] - 1) * p.dilation[2];
  const int64_t pixels = layout.pixels(plan.width);
  layout.size = plan.ic * (layout.omits_padding ? std::min(pixels, p.src_size[2]) : pixels);
  const int64_t shared = (plan.rows - 1) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + 1;
  layout.shares_rows = shared <= p.kernel[1] * plan.rows;
  layout.rows = std::min(shared, p.kernel[1] * plan.rows);
  layout.count = (layout.has_tap_rows ? p.kernel[2] : 1) * p.kernel[0] * layout.rows;
  return layout;
}

struct KernelTap {
  int64_t kd, kh, kw;
};

// The first tap of a block of k.
inline KernelTap first_tap(const ConvProblem& p, const IgemmPlan& plan, int64_t block) {
  Digits digits{block};
  const int64_t kw = digits.next(plan.block == KBlock::tap ? p.kernel[2] : 1);
  const int64_t kh = digits.next(p.kernel[1]);
  return {digits.rest, kh, kw};
}

// The inputs of a row of outputs, for one block of k.
template <class A>
struct InputRow {
  // The inputs of the first output. If the output meets padding, `data` lies in front of the row;
  // inside_image() says which outputs meet data. Null: no output meets data.
  const A* data;
  int64_t step; // from the inputs of an output to those of the next
};

// Rows of outputs that one GEMM computes, and their inputs.
template <class A>
struct RowGroup {
  Range rows;
  int64_t pitch; // pixels from a row to the next
  int64_t lda;
  std::vector<const A*> a;              // of the first row, for the blocks of k that meet data
  std::vector<int64_t> blocks, skipped; // that meet data; that meet only padding
};

// The input rows of a task. A row stays in the image if it can, and else is copied when it is first
// read. Rows: IntegerRows or FloatRows.
template <class Gemm, class Rows>
class InputRows {
  using A = typename Gemm::A;
  using Element = typename Rows::Element;

 public:
  InputRows(const ConvProblem& p, const IgemmPlan& plan, const Rows& rows)
      : p_(p), plan_(plan), copy_(rows) {
    std::fill_n(padding_.data(), layout_.size + kOvercopy, rows.padding());
  }

  void begin(const IgemmTask& task) {
    task_ = task;
    std::fill(is_copied_.begin(), is_copied_.end(), false);
  }

  // The inputs that the outputs (h, task.pixels) meet from `tap` on. For AMX, copies of rows above
  // and below the image are padding.
  InputRow<A> row(int64_t h, const KernelTap& tap) {
    const auto [kd, kh, kw] = tap;
    const int64_t d = task_.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
    const int64_t below = (h - task_.rows.begin) * p_.stride[1] + kh * p_.dilation[1];
    const int64_t image_h = task_.rows.begin * p_.stride[1] - p_.pad[1] + below;
    const bool is_inside = image_h >= 0 && image_h < p_.src_size[1];
    if (d < 0 || d >= p_.src_size[0] || !(is_inside || plan_.uses_amx))
      return {nullptr, plan_.pixel_step * plan_.ic};
    const ImageRow row = image_row(d, image_h, layout_.has_tap_rows ? kw : 0);
    // Pixels from what the first output meets at `tap` to the first of the row.
    const int64_t omitted = row.first - first_pixel() - kw * p_.dilation[2];
    if constexpr (std::is_same_v<Element, A>) {
      const int64_t last = row.first + (row.pixels - 1) * row.step;
      if (stays_in_image_ && row.first >= 0 && last < row.size) {
        const auto* data = static_cast<const A*>(row.data) + row.first * row.pixel_stride;
        return {is_inside ? data - omitted * plan_.ic : nullptr, p_.stride[2] * row.pixel_stride};
      }
    }
    const int64_t row_index = layout_.shares_rows ? below : kh * plan_.rows + h - task_.rows.begin;
    const int64_t index =
        (layout_.has_tap_rows ? kw * p_.kernel[0] + kd : kd) * layout_.rows + row_index;
    A* const to = copies_.data() + index * layout_.size;
    if (!is_copied_[index]) {
      is_copied_[index] = true;
      if (is_inside)
        copy_.copy(row, plan_.ic, elements_.data(), to);
      else
        std::fill_n(to, layout_.size, copy_.padding());
    }
    return {to - omitted * plan_.ic, plan_.pixel_step * plan_.ic};
  }

  // Whether row h + after has its inputs at the pitch of the rows from h on. `first` is row h.
  bool follows(const InputRow<A>& first, int64_t after, int64_t h, const KernelTap& tap) {
    return row(h + after, tap).data == first.data + after * task_.pixels.count() * first.step;
  }

  // Row h as a group of one row. The vectors of the group are reused.
  void read(int64_t h, RowGroup<A>& group) {
    group.rows = {h, h + 1};
    group.pitch = task_.pixels.count();
    group.lda = 0;
    group.a.clear();
    group.blocks.clear();
    group.skipped.clear();
    for (int64_t block = 0; block < plan_.blocks; block++) {
      const auto [data, step] = row(h, first_tap(p_, plan_, block));
      if (data == nullptr) {
        group.skipped.push_back(block);
        continue;
      }
      group.a.push_back(data);
      group.blocks.push_back(block);
      group.lda = step;
    }
  }

  // The outputs of a row that meet no padding at a tap, if padding is omitted.
  Range inside_image(const KernelTap& tap) const {
    if (!layout_.omits_padding)
      return {0, task_.pixels.count()};
    const int64_t first = first_pixel() + tap.kw * p_.dilation[2];
    return within(first, p_.stride[2], p_.src_size[2], task_.pixels.count());
  }

  // im2col: the inputs of all taps of the outputs (rows, task.pixels), padded to plan.im2col_pitch.
  // Each copy has a constant size and may write beyond its end; the next copy overwrites that.
  void im2col(Range rows, A* to) {
    constexpr int64_t few = kOvercopy / sizeof(A);
    const int64_t kernel_rows = p_.kernel[0] * p_.kernel[1], size = plan_.k / kernel_rows;
    const int64_t zeros = plan_.im2col_pitch - plan_.k;
    const int64_t step = plan_.pixel_step * plan_.ic, pixels = task_.pixels.count();
    std::vector<const A*> taps(kernel_rows);
    for (int64_t h = rows.begin; h < rows.end; h++) {
      for (int64_t i = 0; i < kernel_rows; i++) {
        const A* const data = row(h, {i / p_.kernel[1], i % p_.kernel[1], 0}).data;
        taps[i] = data == nullptr ? padding_.data() : data;
      }
      const auto copy = [&](auto count) {
        for (int64_t x = 0; x < pixels; x++) {
          for (int64_t i = 0; i < kernel_rows; i++, to += size)
            std::memcpy(to, taps[i] + x * step, count * sizeof(A));
          to = std::fill_n(to, zeros, A(0));
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
  // From what the first output meets at tap kw on.
  ImageRow image_row(int64_t d, int64_t h, int64_t kw) const {
    const int64_t *xs = p_.src_stride, step = p_.kernel[2] == 1 ? p_.stride[2] : 1;
    const int64_t channels = p_.ic * plan_.merged;
    const auto* image = static_cast<const Element*>(p_.src) + task_.n * xs[0] +
        task_.group * channels * xs[1] + d * xs[2] + h * xs[3];
    const int64_t first = first_pixel() + kw * p_.dilation[2];
    Range pixels{first, first + layout_.pixels(task_.pixels.count()) * step};
    if (layout_.omits_padding) {
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

  const ConvProblem& p_;
  const IgemmPlan& plan_;
  const Rows& copy_;
  const InputRowLayout layout_ = input_row_layout(p_, plan_);
  const bool stays_in_image_ = layout_.stays_in_image && copy_.is_identity();
  IgemmTask task_{};
  const Scratch<A> copies_{layout_.count * layout_.size + kOvercopy};
  const Scratch<A> padding_{layout_.size + kOvercopy};
  const Scratch<Element> elements_{layout_.size};
  std::vector<char> is_copied_ = std::vector<char>(layout_.count);
};

} // namespace torch_dnnl
