// Outputs without any product.
#pragma once

#include <ATen/Parallel.h>

#include <cstring>

#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// Makes the gradient of data 0 everywhere.
inline void clear_images(const ConvProblem& p) {
  const int64_t bytes =
      p.n * p.groups * p.ic * product(p.src_size) * int64_t(c10::elementSize(p.dtype));
  at::parallel_for(0, bytes, int64_t(1) << 18, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(p.out) + begin, 0, end - begin);
  });
}

} // namespace torch_dnnl
