// Sums that were computed in chunks become whole. What is added to each other, and in which order,
// depends on the chunks alone and not on the number of threads.
#pragma once

#include <algorithm>

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

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
  parallel_ranges(o.outputs * o.size, o.chunks, [&](int64_t begin, int64_t end) {
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

// Outputs of `size` sums each, which take `operations` multiply-adds.
struct ChunkedOutputs {
  int64_t outputs, chunks, size, operations;
};

// Inputs come in waves. After prepare(wave), a task computes a chunk of an output:
// accumulate(workspace, output, chunk, sums), with a workspace() for each thread; its sums are
// those of the wave before, or not initialised. Then store(output, sums), once for each output.
template <class C, class Prepare, class Workspace, class Accumulate, class Store>
void sum_in_waves(
    int64_t waves,
    const Prepare& prepare,
    const ChunkedOutputs& o,
    const Workspace& workspace,
    const Accumulate& accumulate,
    const Store& store) {
  const auto [outputs, chunks, size, operations] = o;
  const bool is_whole = chunks * waves == 1;                        // what a task computes
  const Scratch<C> partial(is_whole ? 0 : outputs * chunks * size); // [output][chunk]
  const int64_t of_task = operations / (chunks * waves);
  for (int64_t wave = 0; wave < waves; wave++) {
    prepare(wave);
    parallel_tasks(outputs * chunks, of_task, [&](SharedTasks::OfThread mine) {
      const Scratch<C> own(is_whole ? size : 0);
      auto memory = workspace();
      for (const int64_t task : mine) {
        // Outputs of one chunk follow each other: they may be of unequal size.
        const int64_t output = task % outputs, chunk = task / outputs;
        C* sums = is_whole ? own.data() : partial.data() + (output * chunks + chunk) * size;
        accumulate(memory, output, chunk, sums);
        if (is_whole)
          store(output, sums);
      }
    });
  }
  if (is_whole)
    return;
  add_chunks<C>({partial.data(), outputs, chunks * size, size, chunks, size});
  parallel_tasks(outputs, size, [&](SharedTasks::OfThread mine) {
    for (const int64_t output : mine)
      store(output, partial.data() + output * chunks * size);
  });
}

// The same in one wave.
template <class C, class Workspace, class Accumulate, class Store>
void sum_in_chunks(
    const ChunkedOutputs& o,
    const Workspace& workspace,
    const Accumulate& accumulate,
    const Store& store) {
  sum_in_waves<C>(1, [](int64_t) {}, o, workspace, accumulate, store);
}

} // namespace torch_dnnl
