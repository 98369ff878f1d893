// The gradients of a fused activation are computed for some images, rows or groups of the result at
// a time, so that h is in memory as a whole only if it is small or a result itself. Here is how
// large a part is, and which rows of src belong to it; all of this is integers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"

namespace torch_dnnl {

// Rows run along the first spatial dimension that has several in the result.
struct FusedBackwardSizes {
  int64_t images, rows, groups;
  int64_t halo;        // rows before a part that meet the same rows of src; 0 without its gradient
  int64_t h_bytes;     // of all images
  int64_t image_bytes; // of h of one image, and of what is widened with it
  int64_t weights_bytes; // of the sums that are the gradient of weights; 0 without it
  int64_t products;      // multiply-adds with each element of h
  bool is_widened;       // whether parts are widened to float32 for the gradient of weights
  bool keeps_h;          // h is a result itself
};

// Of each part but the last ones.
struct FusedBackwardSchedule {
  int64_t images, rows, groups;
};

inline FusedBackwardSchedule fused_backward_schedule(const FusedBackwardSizes& s) {
  constexpr int64_t MB = 1 << 20;
  // A part of h and what is made of it stay in the second- and third-level cache. Where products
  // take most of the time, what is done once for a part, such as Winograd's transforms of weights,
  // weighs more. Each part has a gradient of weights to add to their sum: then as much of h is in
  // memory as of that gradient.
  const int64_t part_bytes = std::max((s.products < 64 ? 4 : 6) * MB, s.weights_bytes);
  // What is widened takes time and memory, which less of h is not worth.
  const bool is_small = s.h_bytes <= (s.is_widened ? 2 : 1) * part_bytes;
  if (is_small || (s.keeps_h && s.weights_bytes > 4 * MB))
    return {s.images, s.rows, s.groups};

  const auto fitting = [part_bytes](int64_t bytes) {
    return std::max<int64_t>(part_bytes / bytes, 1);
  };
  const auto evenly = [](int64_t count, int64_t most) {
    return ceil_div(count, ceil_div(count, most));
  };
  const int64_t images = evenly(s.images, fitting(s.image_bytes));
  if (images > 1)
    return {images, s.rows, s.groups};
  const int64_t rows = evenly(s.rows, fitting(s.image_bytes / s.rows));
  if (rows >= std::min(s.halo, s.rows))
    return {1, rows, s.groups};

  // The halo would be computed again for each part: rather whole images, of some groups.
  if (s.keeps_h)
    return {1, s.rows, s.groups};
  constexpr int64_t vector = 16; // groups of one channel
  const int64_t most = std::min(part_bytes * s.groups / s.image_bytes, s.groups);
  const int64_t groups = most <= 1 ? 1 : std::min(most, round_up(evenly(s.groups, most), vector));
  return {evenly(s.images, fitting(s.image_bytes * groups / s.groups)), s.rows, groups};
}

// How rows of the result meet rows of src.
struct RowsOfSrc {
  int64_t rows, src_rows;
  int64_t stride, pad;
  int64_t reach; // from the first to the last row of src that a row meets

  // The rows of src that these rows meet.
  Range met_by(Range r) const {
    return {
        std::max<int64_t>(r.begin * stride - pad, 0),
        std::min((r.end - 1) * stride - pad + reach + 1, src_rows)};
  }
  // Those that no later row meets, and that no earlier rows complete.
  Range completed_by(Range r) const {
    return {boundary(r.begin), boundary(r.end)};
  }

 private:
  int64_t boundary(int64_t row) const {
    return row == 0   ? 0
        : row == rows ? src_rows
                      : std::clamp<int64_t>(row * stride - pad, 0, src_rows);
  }
};

} // namespace torch_dnnl
