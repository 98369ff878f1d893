// Resample with few taps: each thread takes a column of neighbouring outputs and walks down the
// rows of dst, with the rows of src that an output reads, weighed along D and W, in registers.
//
// A row of src that the next row of dst reads again is neither loaded nor weighed again: enlarging
// by 2 loads half a row for each row it writes. What a thread reads in every row of src, and with
// which weights, stays in registers too. Any layout; parallel over vectors of a row, strips of
// rows and planes.
#pragma once

#include "resample/cuda/plan.h"

namespace torch_dnnl::cuda {

constexpr int64_t kMostWindowTaps = 4; // along H and W; any number along D

template <class W>
bool can_slide_window(const ResamplePlan<W>& plan) {
  return plan.tables[1]->width <= kMostWindowTaps && plan.tables[2]->width <= kMostWindowTaps;
}

template <class W>
void slide_window(const ResamplePlan<W>& plan);

// Whether every output is one element of src, or none: then elements are copied, of any type.
inline bool can_copy(const ResamplePlan<float>& plan) {
  return plan.tables[0]->copies && plan.tables[1]->copies && plan.tables[2]->copies;
}

void copy_elements(const ResamplePlan<float>& plan);

} // namespace torch_dnnl::cuda
