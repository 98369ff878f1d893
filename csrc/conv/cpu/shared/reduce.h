// Sums that were computed in chunks become whole. What is added to each other, and in which order,
// depends on the chunks alone and not on the number of threads.
#pragma once

#include <algorithm>

#include "core/cpu/parallel.h"

namespace torch_dnnl {

// Partial sums: of each output, `size` numbers for each chunk; steps are in numbers.
template <class C>
struct PartialSums {
  C* data;
  int64_t outputs, output_step, size, chunks, chunk_step;
};

// Adds the chunks to the first one, one after the other. Threads share single numbers, for there
// may be but one output.
template <class C>
void add_chunks(const PartialSums<C>& o) {
  if (o.chunks <= 1)
    return;
  parallel_tasks(o.outputs * o.size, o.chunks, [&](int64_t begin, int64_t end) {
    for (int64_t n, at = begin; at < end; at += n) {
      const int64_t first = at % o.size;
      n = std::min(end - at, o.size - first);
      C* const sums = o.data + at / o.size * o.output_step + first;
      for (int64_t chunk = 1; chunk < o.chunks; chunk++) {
        const C* more = sums + chunk * o.chunk_step;
        for (int64_t i = 0; i < n; i++)
          sums[i] += more[i];
      }
    }
  });
}

} // namespace torch_dnnl
