// A reorder as nested loops. The digits of both sides, and the groups of scales and zero points,
// are refined until each is one stride in every array; what is not padding then falls into a few
// boxes, whose loops only add strides: nothing is divided per element.
//
// Example: abcd of [2, 20, 5, 7] to aBcd16b is two boxes, of 16 and of 4 channels, and a box of
// padding.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>

#include "reorder/problem.h"

namespace torch_dnnl::boxes {

using namespace reorder_arrays; // what the loops step through

using Offsets = std::array<int64_t, kArrays>; // in elements

struct Axis {
  int64_t extent;
  Offsets stride;
};

using Axes = c10::SmallVector<Axis, 8>;

struct Box {
  Axes axes; // outermost first
  Offsets offset{};
  bool is_padding = false; // of dst, which becomes zeros

  int64_t elements() const {
    int64_t product = 1;
    for (const Axis& axis : axes)
      product *= axis.extent;
    return product;
  }
};

using Boxes = c10::SmallVector<Box, 1>;

// Joins neighbouring axes that are one in every array; there is at least one axis afterwards.
inline void merge(Axes& axes) {
  if (axes.empty())
    axes.push_back({1, {}});
  size_t last = axes.size() - 1; // of what is merged so far, from the innermost axis outwards
  for (size_t i = last; i-- > 0;) {
    bool same = true;
    for (int a = 0; a < kArrays; a++)
      same &= axes[i].stride[a] == axes[last].extent * axes[last].stride[a];
    if (same)
      axes[last].extent *= axes[i].extent;
    else
      axes[--last] = axes[i];
  }
  axes.erase(axes.begin(), axes.begin() + last);
}

inline void advance(Offsets& offset, const Offsets& stride, int64_t count) {
  for (int a = 0; a < kArrays; a++)
    offset[a] += stride[a] * count;
}

// f(offset) for each position of the axes.
template <class F>
void for_each_position(c10::ArrayRef<Axis> axes, Offsets offset, const F& f) {
  if (axes.empty()) {
    f(offset);
    return;
  }
  for (int64_t i = 0; i < axes[0].extent; i++) {
    for_each_position(axes.slice(1), offset, f);
    advance(offset, axes[0].stride, 1);
  }
}

} // namespace torch_dnnl::boxes
