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

constexpr int64_t kMostOpenSums = 16;

// `readers`: of each row of src, the rows of dst that read it.
template <class W>
bool can_sum_pixels(const HostTable<W>& readers) {
  return readers.width <= kMostOpenSums;
}

template <class W>
void sum_pixels(const Plan<W>& plan, const SharedTable<W>& readers);

// The tables of both kernels, see make_tables. `open`: sums that are open at once; `w_slots`: taps
// that a record of the W axis has room for.
template <class W>
std::optional<Scratch> make_sum_tables(
    const Plan<W>& plan,
    Job<W>& job,
    const SharedTable<W>& readers,
    int64_t open,
    int64_t w_slots) {
  TapTables<W>& tables = job.tables;
  return make_tables<W>(
      plan,
      job,
      {{&tables.d, 0, plan.tables[0]->width, plan.tables[0], plan.transposed},
       {&tables.h, 1, plan.tables[1]->width, plan.tables[1], plan.transposed},
       {&tables.w, 2, w_slots, plan.tables[2], plan.transposed},
       {&tables.h_transpose, 1, open, readers, !plan.transposed}});
}

template <class W>
bool can_sum_rows(const Plan<W>& plan, const HostTable<W>& readers);

template <class W>
void sum_rows(const Plan<W>& plan, const SharedTable<W>& readers);

} // namespace torch_dnnl::cuda
