// Resample with many taps along H that few outputs share: reducing an image, with or without
// antialias, and the gradient of enlarging one.
//
// A worker walks down the rows of src, weighs each along D once, and adds it to the sums of the
// rows of dst that read it, which are open at that time: few, however many rows each of them
// reads. They stay in registers; a sum that has seen its last row is complete.
//
// Two kernels. `sum_pixels` applies the W axis to each row of src as it comes, from vectors of
// channels; it takes any layout. `sum_rows` is for rows whose neighbours along W are neighbours in
// memory: each thread of a block sums a vector of neighbouring columns of src, and the block
// applies the W axis in shared memory, to complete rows only.
#pragma once

#include "resample/cuda/plan.h"

namespace torch_dnnl::cuda {

constexpr int64_t kMostRunningSums = 16;

// Of each row of src, the rows of dst that read it.
template <class W>
SharedTable<W> readers_of(const ResamplePlan<W>& plan) {
  return cached_table<W>(plan.problem.axes[1], !plan.problem.transposed);
}

template <class W>
bool can_sum_pixels(const ResamplePlan<W>& plan) {
  return readers_of(plan)->width <= kMostRunningSums;
}

template <class W>
void sum_pixels(const ResamplePlan<W>& plan);

template <class W>
bool can_sum_rows(const ResamplePlan<W>& plan);

template <class W>
void sum_rows(const ResamplePlan<W>& plan);

// The tables of both kernels, see make_tables. `open`: sums that are open at once; `w_slots`: taps
// that a record of the W axis has room for.
template <class W>
std::optional<Scratch> make_sum_tables(
    const ResamplePlan<W>& plan,
    KernelArguments<W>& args,
    int64_t open,
    int64_t w_slots) {
  TapTables<W>& tables = args.tables;
  const bool transposed = plan.problem.transposed;
  return make_tables<W>(
      plan,
      args,
      {{&tables.d, 0, plan.tables[0]->width, plan.tables[0], transposed},
       {&tables.h, 1, plan.tables[1]->width, plan.tables[1], transposed},
       {&tables.w, 2, w_slots, plan.tables[2], transposed},
       {&tables.h_transpose, 1, open, readers_of(plan), !transposed}});
}

} // namespace torch_dnnl::cuda
