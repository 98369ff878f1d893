// What the CPU kernels include of torch and of the standard library, which takes longer to read
// than most of them. With GCC, setup.py compiles it once for each library and has it included
// first; each file still includes what it needs. (It has no include guard, which GCC takes amiss
// here.)
#include "core/cpu/stream.h" // first, as in vectors.h

#include <ATen/Parallel.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>
