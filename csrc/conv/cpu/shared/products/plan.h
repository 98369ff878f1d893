// How a convolution becomes matrix products: of pixels, that is rows of inputs, with weights. Input
// lines are brought to a form in which the inputs of a pixel follow each other, with what stands
// for 0 where pads are: [pixel][input channel].
#pragma once

#include <algorithm>

#include "conv/cpu/shared/products/matrix_tiles.h"
#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// Terms of a sum are in the order [kd][kh][kw][channel]; a block of them is what the inputs of a
// pixel are multiplied with at once.
struct ProductPlan {
  // Groups that have few channels are computed several at a time, with weights of 0 between them.
  int64_t merged;
  int64_t groups, ic, oc; // then; ic: as many as a pixel has in a line, some of which may be 0
  // The inputs of a block: those of a tap; of the taps of a row, where these follow each other; or
  // of all taps, which are copied to one place for each pixel.
  enum { of_tap, of_row, of_pixel } block;
  int64_t blocks, depth; // of an output; terms of each
  bool in_tiles;         // of a matrix unit
  int64_t terms;         // of which weights of a block have a multiple; what is missing is 0
  int64_t together;      // columns of a panel that are interleaved
  int64_t copy_pitch;    // from a pixel's copied taps to those of the next; 0: there are no copies
  int64_t chunks, chunk; // of the depth; all but the last have `chunk` terms
  int64_t panels;        // of output channels, of a group
  int64_t input_pixels;  // from the inputs of an output to those of the next, in a line
  // A task computes some rows of an image, of some panels: tiles of `width` pixels.
  int64_t width, widths, rows, row_blocks, panels_of_task, panel_blocks;
  // Each thread packs the weights of one block of panels, and computes all tasks with these.
  bool threads_pack;

  Range chunk_range(int64_t i) const {
    return {i * chunk, std::min((i + 1) * chunk, depth)};
  }
  int64_t columns(int64_t panel) const {
    return std::min(kProductColumns, round_up(oc - panel * kProductColumns, kProductLanes));
  }
  int64_t tasks(const ConvProblem& p) const {
    return p.n * groups * p.dst_size[0] * row_blocks * widths * panel_blocks;
  }
};

namespace plan_detail {

// Groups that fill a vector of columns together.
inline int64_t groups_to_merge(const ConvProblem& p) {
  int64_t merged = 1;
  while (2 * merged * p.oc <= kProductLanes && p.groups % (2 * merged) == 0)
    merged *= 2;
  return merged;
}

// Of what a row of the kernel takes for each pixel: products of its own, or copies to where the
// other rows are, which serve all panels.
struct RowCosts {
  static constexpr double call = 100;   // ns, of a product, whatever its size
  static constexpr double sums = 1;     // ns, of a pixel's sums of a panel that are read again
  static constexpr double copy = 1;     // ns
  static constexpr double bytes = 32;   // that are copied in a ns
  static constexpr int64_t most = 2048; // bytes of a pixel, for copies have to stay in a cache
};

// The same in registers, where tiles of short rows compute some pixels twice, and every row of the
// kernel is filled up to whole packs.
template <class Products>
bool should_copy_for_tiles(const ConvProblem& p, int64_t row_terms, int64_t width, int64_t oc) {
  constexpr double terms = 232 / sizeof(typename Products::Left); // that are multiplied in a ns
  const int64_t rows = p.kernel[0] * p.kernel[1];
  const double lines = 1.0 * round_up(width, rows_of_tiles(width)) / width * rows *
      round_up(row_terms, Products::kPack);
  const double bytes = rows * row_terms * sizeof(typename Products::Left);
  const double copies = rows * row_terms + (RowCosts::copy + bytes / RowCosts::bytes) * terms / oc;
  return rows > 1 && copies < lines;
}

inline bool should_copy(const ConvProblem& p, int64_t row_bytes, int64_t width, int64_t panels) {
  const int64_t rows = p.kernel[0] * p.kernel[1];
  const double products = panels * (RowCosts::call / width + RowCosts::sums);
  return rows > 1 && rows * row_bytes <= RowCosts::most &&
      RowCosts::copy + row_bytes / RowCosts::bytes < products;
}

// The part of the products of a tap's lines and pixels that meet data.
inline double part_inside(const ConvProblem& p) {
  double part = 1;
  for (int axis = 1; axis < 3; axis++) {
    int64_t inside = 0;
    for (int64_t tap = 0; tap < p.kernel[axis]; tap++)
      inside += std::max<int64_t>(
          0,
          within(
              tap * p.dilation[axis] - p.pad[axis],
              p.stride[axis],
              p.src_size[axis],
              p.dst_size[axis])
              .count());
    part *= 1.0 * inside / (p.kernel[axis] * p.dst_size[axis]);
  }
  return part;
}

// The blocks of tiles: channels are filled up with zeros, unless the taps of a row need none or
// most would be zeros. False: taps are apart, and have few channels, or many meet pads, which are
// multiplied like data.
template <class Products>
bool set_blocks_of_tiles(const ConvProblem& p, bool are_together, int64_t ic, ProductPlan& plan) {
  constexpr int64_t terms = kTileTerms<Products>;
  const int64_t filled = round_up(ic, terms);
  const bool needs_none = are_together && p.kernel[2] * ic % terms == 0;
  const bool is_filled = needs_none || filled <= 2 * ic;
  plan.block = !is_filled ? ProductPlan::of_pixel
      : are_together      ? ProductPlan::of_row
                          : ProductPlan::of_tap;
  plan.ic = is_filled && !needs_none ? filled : ic;
  plan.terms = terms;
  plan.together = kTileColumns;
  constexpr double most_data = 0.8;
  return are_together || (is_filled && part_inside(p) > most_data);
}

// Whether weights are so many that threads had better share them than pixels: what a thread packs
// it reads from its own cache, and no thread waits in between; but each prepares all inputs.
inline bool should_threads_pack(const ConvProblem& p, const ProductPlan& plan, int64_t threads) {
  const int64_t weights = plan.oc * plan.blocks * plan.depth;
  int64_t inputs = p.n * plan.ic;
  for (int axis = 0; axis < 3; axis++)
    inputs *= p.kernel[axis] == 1 ? p.dst_size[axis] : p.src_size[axis];
  const bool are_even = 16 * round_up(plan.panels, threads) <= 17 * plan.panels;
  return threads > 1 && p.packed == nullptr && plan.groups == 1 && !plan.in_tiles && are_even &&
      weights > threads * inputs;
}

} // namespace plan_detail

template <class Products>
ProductPlan plan_products(const ConvProblem& p, int64_t threads) {
  constexpr int64_t task_pixels = 384;
  constexpr int64_t pack = Products::kPack, term_bytes = sizeof(typename Products::Left);
  ProductPlan plan{};
  plan.merged = plan_detail::groups_to_merge(p);
  plan.groups = p.groups / plan.merged;
  plan.oc = p.oc * plan.merged;
  plan.panels = ceil_div(plan.oc, kProductColumns);
  const int64_t pixels = p.dst_size[2], taps = product(p.kernel), ic = p.ic * plan.merged;
  const bool are_together = p.kernel[2] == 1 || p.dilation[2] == 1;
  plan.in_tiles = has_matrix_tiles<Products>() &&
      plan_detail::set_blocks_of_tiles<Products>(p, are_together, ic, plan);
  const int64_t most_width = plan.in_tiles ? kTilePixels : 64;
  plan.width = ceil_div(pixels, ceil_div(pixels, most_width));
  plan.widths = ceil_div(pixels, plan.width);
  const int64_t row_terms = p.kernel[2] * ic;
  if (!plan.in_tiles) {
    const bool should_copy = has_register_tiles<Products>()
        ? plan_detail::should_copy_for_tiles<Products>(p, row_terms, plan.width, plan.oc)
        : plan_detail::should_copy(p, row_terms * term_bytes, plan.width, plan.panels);
    plan.block = !are_together ? ProductPlan::of_tap
        : should_copy          ? ProductPlan::of_pixel
                               : ProductPlan::of_row;
    plan.ic = plan.block == ProductPlan::of_pixel ? ic : round_up(ic, Products::kPixelPack);
    plan.terms = pack;
    plan.together = Products::kTogether;
  }
  plan.blocks = plan.block == ProductPlan::of_tap ? taps
      : plan.block == ProductPlan::of_row         ? p.kernel[0] * p.kernel[1]
                                                  : 1;
  plan.depth = taps * plan.ic / plan.blocks;
  if (plan.block == ProductPlan::of_pixel)
    plan.copy_pitch = round_up(plan.depth, plan.in_tiles ? plan.terms : Products::kPixelPack);
  const int64_t most_depth = plan.in_tiles ? plan.depth : Products::kDepth;
  plan.chunk = round_up(ceil_div(plan.depth, ceil_div(plan.depth, most_depth)), plan.terms);
  plan.chunks = ceil_div(plan.depth, plan.chunk);
  plan.input_pixels = p.kernel[2] == 1 ? 1 : p.stride[2]; // others are left out
  plan.panels_of_task = plan.panels;
  plan.panel_blocks = 1;
  const auto set_row_blocks = [&](int64_t blocks) {
    plan.row_blocks = blocks;
    plan.rows = ceil_div(p.dst_size[1], blocks);
  };
  const auto has_rows = [&] { return plan.rows > 1 && plan.rows * plan.width > most_width; };
  set_row_blocks(
      ceil_div(p.dst_size[1], std::clamp<int64_t>(task_pixels / plan.width, 1, p.dst_size[1])));
  const int64_t enough = threads == 1 ? 1 : 3 * threads;
  if (plan_detail::should_threads_pack(p, plan, threads)) {
    plan.threads_pack = true;
    plan.panels_of_task = ceil_div(plan.panels, threads);
    plan.panel_blocks = ceil_div(plan.panels, plan.panels_of_task);
    return plan;
  }
  while (plan.tasks(p) < enough && has_rows())
    set_row_blocks(ceil_div(p.dst_size[1], plan.rows / 2));
  while (plan.tasks(p) < enough && plan.panels_of_task > 1) {
    plan.panels_of_task = ceil_div(plan.panels_of_task, 2);
    plan.panel_blocks = ceil_div(plan.panels, plan.panels_of_task);
  }
  // Each thread has the same number of tasks, but for those that are left over.
  const auto is_uneven = [&] {
    const int64_t tasks = plan.tasks(p);
    return 16 * round_up(tasks, threads) > 17 * tasks;
  };
  for (const int64_t blocks = plan.row_blocks; is_uneven() && has_rows();) {
    set_row_blocks(plan.row_blocks + 1);
    if (plan.row_blocks > blocks + threads)
      break;
  }
  return plan;
}

} // namespace torch_dnnl
