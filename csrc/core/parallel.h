// A loop over independent elements on the CPU's threads.
#pragma once

#include <ATen/Parallel.h>

namespace torch_dnnl {

// f(i) for i in [0, n); `cost`: roughly how many operations one call takes.
template <class F>
void for_each_element(int64_t n, int64_t cost, const F& f) {
  const int64_t grain = 32768 / (cost < 1 ? 1 : cost) + 1;
  at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      f(i);
  });
}

} // namespace torch_dnnl
