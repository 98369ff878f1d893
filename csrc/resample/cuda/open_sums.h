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

template <class W>
bool can_sum_rows(const Plan<W>& plan, const HostTable<W>& readers);

template <class W>
void sum_rows(const Plan<W>& plan, const SharedTable<W>& readers);

} // namespace torch_dnnl::cuda
