// A primitive's kernels on one device: a table, which can be listed, asked and forced by name.
//
// What a kernel can compute (`supports`) is apart from when it is the best choice (`prefers`): the
// first row of the table for which both hold runs a problem, and a caller may name any row that
// supports it. The last row is the reference, for which both always hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "core/expected.h"

namespace torch_dnnl {

template <class Problem>
struct Kernel {
  const char* name;
  bool (*supports)(const Problem&); // what the kernel can compute, and nothing else
  bool (*prefers)(const Problem&);  // whether to take it before the rows below
  void (*run)(const Problem&);
};

template <class Problem>
bool always(const Problem&) {
  return true;
}

// The first row that supports a problem and that `prefers(row, problem)` accepts; else the last
// one.
template <class Row, class Problem, size_t n, class Prefers>
const Row& choose(const Row (&kernels)[n], const Problem& p, const Prefers& prefers) {
  size_t row = 0;
  while (row + 1 < n && !(kernels[row].supports(p) && prefers(kernels[row], p)))
    row++;
  return kernels[row];
}

// The row of a name that a caller asks for; for "auto" the one that the rows' own rules choose.
// `op` is the operator, for messages.
template <class Row, class Problem, size_t n>
const Row&
kernel_named(const Row (&kernels)[n], std::string_view name, const char* op, const Problem& p) {
  if (name == "auto")
    return choose(
        kernels, p, [](const Row& kernel, const Problem& q) { return kernel.prefers(q); });
  const auto found =
      std::find_if(kernels, kernels + n, [&](const Row& kernel) { return name == kernel.name; });
  TORCH_CHECK_VALUE(
      found != kernels + n,
      Expected(op) << "algorithm to be a kernel of this device, one of "
                   << listed(kernels, [](const Row& kernel) { return kernel.name; }) << ", got \""
                   << name << "\"");
  TORCH_CHECK_NOT_IMPLEMENTED(
      found->supports(p),
      Expected(op) << "algorithm to be a kernel that supports this call, one of "
                   << listed(
                          kernels,
                          [&](const Row& kernel) { return kernel.supports(p) ? kernel.name : ""; })
                   << ", got \"" << name << "\"");
  return *found;
}

} // namespace torch_dnnl
