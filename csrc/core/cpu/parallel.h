// Loops over independent work on the CPU's threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace torch_dnnl {

// A multiply-add takes a core about 10 ps: tasks of fewer are not worth a thread.
inline constexpr int64_t kTaskOperations = 500000;

// f(begin, end) over parts of [0, tasks), where one task takes about `operations` multiply-adds.
template <class F>
void parallel_tasks(int64_t tasks, int64_t operations, const F& f) {
  at::parallel_for(0, tasks, kTaskOperations / std::max<int64_t>(operations, 1) + 1, f);
}

// f(i) for i in [0, n), where one call takes roughly `cost` operations of any kind.
template <class F>
void for_each_element(int64_t n, int64_t cost, const F& f) {
  const int64_t grain = 32768 / (cost < 1 ? 1 : cost) + 1;
  at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      f(i);
  });
}

} // namespace torch_dnnl
