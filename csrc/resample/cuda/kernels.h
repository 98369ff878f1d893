// The kernels of Resample on CUDA.
#pragma once

#include "resample/cuda/plan.h"

namespace torch_dnnl::cuda {

// ---- Every output is one element of src, or none: elements are copied, of any type ----

inline bool can_copy(const ResamplePlan<float>& plan) {
  return plan.tables[0]->copies && plan.tables[1]->copies && plan.tables[2]->copies;
}

void copy_elements(const ResamplePlan<float>& plan);

// ---- Few taps ----
//
// Each thread takes a column of neighbouring outputs and walks down the rows of dst, with the rows
// of src that an output reads, weighed along D and W, in registers.
//
// A row of src that the next row of dst reads again is neither loaded nor weighed again: enlarging
// by 2 loads half a row for each row it writes. What a thread reads in every row of src, and with
// which weights, stays in registers too. Any layout; parallel over vectors of a row, strips of
// rows and planes.

constexpr int64_t kMostWindowTaps = 4; // along H and W; any number along D

template <class W>
bool can_slide_window(const ResamplePlan<W>& plan) {
  return plan.tables[1]->width <= kMostWindowTaps && plan.tables[2]->width <= kMostWindowTaps;
}

template <class W>
void slide_window(const ResamplePlan<W>& plan);

// ---- Many taps along H that few outputs share ----
//
// That is reducing an image, with or without antialias, and the gradient of enlarging one.
//
// A worker walks down the rows of src, weighs each along D once, and adds it to the sums of the
// rows of dst that read it, which are open at that time: few, however many rows each of them
// reads. They stay in registers; a sum that has seen its last row is complete.
//
// Three kernels. `sum_pixels` applies the W axis to each row of src as it comes, from vectors of
// channels; it takes any layout. The others are for rows whose neighbours along W are neighbours in
// memory. `sum_windows` takes those that become a half or a quarter as long: a vector of outputs
// reads vectors of src. In `sum_rows` each thread of a block sums a vector of neighbouring columns
// of src, and the block applies the W axis in shared memory, to complete rows only.

constexpr int64_t kMostRunningSums = 16;

template <class W>
bool can_sum_pixels(const ResamplePlan<W>& plan) {
  return readers_of(plan)->width <= kMostRunningSums;
}

template <class W>
void sum_pixels(const ResamplePlan<W>& plan);

template <class W>
bool can_sum_windows(const ResamplePlan<W>& plan);

template <class W>
void sum_windows(const ResamplePlan<W>& plan);

template <class W>
bool can_sum_rows(const ResamplePlan<W>& plan);

template <class W>
void sum_rows(const ResamplePlan<W>& plan);

// ---- The reference: one thread per element, every type and stride ----

void run_reference(const ResampleProblem& problem);

} // namespace torch_dnnl::cuda
