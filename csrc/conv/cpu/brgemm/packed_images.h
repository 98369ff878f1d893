// Images as operands of the GEMMs of a gradient of weights, packed once for all tasks.
#pragma once

#include <algorithm>

#include "conv/cpu/brgemm/channel_rows.h"
#include "conv/cpu/brgemm/weights_plan.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

namespace packed_images_detail {

template <class T>
void clear_rows(T* channel, int64_t pitch, Range rows, int64_t pixels) {
  for (int64_t row = rows.begin; row < rows.end; row++)
    std::fill_n(channel + row * pitch, pixels, T(0));
}

// Some rows of an image.
struct RowsOfImage {
  ImageRow first;
  int64_t count, stride;
};

// To [channel][row][pixel]: channel by channel, unless the channels of a pixel lie together.
template <class T>
void copy_rows(const RowsOfImage& rows, int64_t plane, int64_t pitch, T* to) {
  ImageRow line = rows.first;
  const auto* image = static_cast<const T*>(line.data);
  if (line.pixel_stride != 1) {
    for (int64_t i = 0; i < rows.count; i++, image += rows.stride, to += pitch) {
      line.data = image;
      copy_channel_rows<T>(line, plane, to);
    }
    return;
  }
  line.channels = rows.count;
  line.channel_stride = rows.stride;
  for (int64_t c = 0; c < rows.first.channels; c++, to += plane) {
    line.data = image + c * rows.first.channel_stride;
    copy_channel_rows<T>(line, pitch, to);
  }
}

} // namespace packed_images_detail

template <class T>
class PackedImages {
  using Gemm = GemmOf<T>;

 public:
  PackedImages(const ConvProblem& p, const BrgemmWeightsPlan& plan) : p_(p), plan_(plan) {}

  // In place of those that were packed before.
  void pack(Range images) {
    images_ = images;
    if (!plan_.reads_src)
      pack_all_src();
    pack_all_dst();
  }
  Range images() const {
    return images_;
  }

  // What pixel 0 of row 0 of dst would meet at the first tap, in plane d of src.
  const T* src(int64_t n, int64_t d, int64_t group, int64_t channel) const {
    const int64_t* xs = p_.src_stride;
    if (plan_.reads_src)
      return static_cast<const T*>(p_.src) + n * xs[0] + (group * p_.ic + channel) * xs[1] +
          d * xs[2];
    return src_at(n, d, group, channel);
  }
  // Rows of a panel: pixels of row h of dst, from w on, which is even.
  const T* panel(int64_t n, int64_t d, int64_t group, int64_t panel, int64_t h, int64_t w) const {
    return panel_at(n, d, group, panel) + (h * plan_.pitch + w) * plan_.columns_of(panel);
  }

 private:
  // Tasks of elements that are copied; a copy takes about as long as so many multiply-adds.
  static constexpr int64_t kCopy = 32;

  void pack_all_src() const {
    const int64_t depth = p_.src_size[0], blocks = ceil_div(p_.ic, plan_.block);
    const int64_t tasks = images_.count() * depth * p_.groups * blocks, parts = plan_.parts();
    const int64_t of_task = plan_.block * plan_.plane / parts * kCopy;
    parallel_tasks(tasks * parts, of_task, [&](SharedTasks::OfThread mine) {
      for (const int64_t i : mine) {
        Digits digits{i};
        const int64_t part = digits.next(parts);
        const Range channels = nth_range(digits.next(blocks), plan_.block, p_.ic);
        const int64_t group = digits.next(p_.groups), d = digits.next(depth);
        pack_src(images_.begin + digits.rest, d, group, channels, part);
      }
    });
    // The last line is read beyond its end.
    std::fill_n(src_at(images_.end, 0, 0, 0), reach_, T(0));
  }
  void pack_all_dst() const {
    const int64_t depth = p_.dst_size[0], panels = plan_.panels, parts = plan_.parts();
    const int64_t elements =
        kPanelColumns * plan_.tile_rows * round_up(plan_.tile_width + plan_.pixels.reach, 2);
    const int64_t tasks = images_.count() * depth * p_.groups * panels;
    parallel_tasks(tasks * parts, elements * kCopy, [&](SharedTasks::OfThread mine) {
      const Scratch<T> lines(elements);
      for (const int64_t i : mine) {
        Digits digits{i};
        const int64_t panel = digits.next(panels); // those of a pixel may lie together
        const int64_t part = digits.next(parts), group = digits.next(p_.groups);
        const int64_t d = digits.next(depth);
        pack_panel(images_.begin + digits.rest, d, group, panel, part, lines.data());
      }
    });
  }

  T* src_at(int64_t n, int64_t d, int64_t group, int64_t channel) const {
    const int64_t plane = ((n - images_.begin) * p_.src_size[0] + d) * p_.groups + group;
    return src_.data() + (plane * p_.ic + channel) * plan_.plane;
  }
  T* panel_at(int64_t n, int64_t d, int64_t group, int64_t panel) const {
    const int64_t plane = ((n - images_.begin) * p_.dst_size[0] + d) * p_.groups + group;
    return dst_.data() +
        (plane * plan_.columns + panel * kPanelColumns) * p_.dst_size[1] * plan_.pitch;
  }

  // A part of the rows, or of a row, of some channels; and with the last one what lies between
  // channels, which has to be finite.
  void pack_src(int64_t n, int64_t d, int64_t group, Range channels, int64_t part) const {
    using namespace packed_images_detail;
    const int64_t* xs = p_.src_stride;
    const T* const image = static_cast<const T*>(p_.src) + n * xs[0] +
        (group * p_.ic + channels.begin) * xs[1] + d * xs[2];
    T* const to = src_at(n, d, group, channels.begin);
    const int64_t all = p_.dst_size[1] + plan_.rows.reach; // rows
    const int64_t row_part = part / plan_.width_tiles, pixel_part = part % plan_.width_tiles;
    const Range rows = nth_part(row_part, plan_.row_tiles, all);
    const Range pixels = nth_part(pixel_part, plan_.width_tiles, plan_.pitch);
    for (int64_t h = 0; h < plan_.rows.phases; h++) {
      const int64_t first_row = plan_.rows.first(h) - p_.pad[1];
      const Range inside = rows_inside(p_, first_row, rows);
      for (int64_t w = 0; w < plan_.pixels.phases; w++) {
        T* const of_phase = to + plan_.phase_at(p_, h, w) + pixels.begin;
        for (int64_t c = 0; c < channels.count(); c++) {
          T* const channel = of_phase + c * plan_.plane;
          clear_rows(channel, plan_.pitch, {rows.begin, inside.begin}, pixels.count());
          clear_rows(channel, plan_.pitch, {inside.end, rows.end}, pixels.count());
        }
        const ImageRow line{
            image + (inside.begin * p_.stride[1] + first_row) * xs[3],
            channels.count(),
            xs[1],
            pixels.begin * p_.stride[2] + plan_.pixels.first(w) - p_.pad[2],
            pixels.count(),
            p_.stride[2],
            p_.src_size[2],
            xs[4]};
        copy_rows<T>(
            {line, inside.count(), p_.stride[1] * xs[3]},
            plan_.plane,
            plan_.pitch,
            of_phase + inside.begin * plan_.pitch);
      }
    }
    const int64_t end = plan_.phase_at(p_, plan_.rows.phases, 0);
    if (part == plan_.parts() - 1)
      for (int64_t c = 0; c < channels.count(); c++)
        std::fill(to + c * plan_.plane + end, to + (c + 1) * plan_.plane, T(0));
  }

  // The lines of gradients of a tile, with zeros behind each. `lines`: memory for as many elements.
  void
  pack_panel(int64_t n, int64_t d, int64_t group, int64_t panel, int64_t part, T* lines) const {
    const int64_t *ys = p_.dst_stride, pitch = plan_.pitch;
    const int64_t first = panel * kPanelColumns, columns = plan_.columns_of(panel);
    const GradientTile tile = tile_of(p_, plan_, part);
    const bool is_last = tile.pixels.end == p_.dst_size[2];
    const ImageRow line{
        static_cast<const T*>(p_.dst) + n * ys[0] + (group * p_.oc + first) * ys[1] + d * ys[2] +
            tile.rows.begin * ys[3],
        std::min(columns, p_.oc - first),
        ys[1],
        tile.pixels.begin,
        (is_last ? pitch : tile.pixels.end) - tile.pixels.begin,
        /*step=*/1,
        p_.dst_size[2],
        ys[4]};
    T* const to =
        panel_at(n, d, group, panel) + (tile.rows.begin * pitch + tile.pixels.begin) * columns;
    interleave_rows<Gemm::kVnni>(line, tile.rows.count(), ys[3], columns, lines, to);
  }

  const ConvProblem& p_;
  const BrgemmWeightsPlan& plan_;
  const int64_t reach_ = round_up(plan_.pixels.reach, 2);
  const Scratch<T> src_{plan_.reads_src ? 0 : plan_.wave_images * plan_.src_elements(p_) + reach_};
  const Scratch<T> dst_{plan_.wave_images * plan_.dst_elements(p_)};
  Range images_{0, 0};
};

} // namespace torch_dnnl
