// What the operators and the tables of kernels include of torch. With GCC, setup.py compiles it
// once for them and has it included first; each file still includes what it needs. (It has no
// include guard, which GCC takes amiss here.)
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>
