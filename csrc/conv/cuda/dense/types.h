// The dense kernels by type: each is compiled in a file of its own.
#pragma once

#include "conv/cuda/dense/problem.h"

namespace torch_dnnl::cuda {

constexpr int64_t kMaxGridX = std::numeric_limits<int32_t>::max(), kMaxGridZ = 65535;

// Runs a problem whose weights are placed. On tensor cores, float32 is rounded to TF32. `vectors`:
// the images that are read have channels in chunks of 16 bytes.
template <class T, bool tensor_cores>
void run_dense_product(const DenseProblem& p, bool vectors);

template <>
void run_dense_product<c10::BFloat16, true>(const DenseProblem& p, bool vectors);
template <>
void run_dense_product<c10::Half, true>(const DenseProblem& p, bool vectors);
template <>
void run_dense_product<float, true>(const DenseProblem& p, bool vectors);
template <>
void run_dense_product<float, false>(const DenseProblem& p, bool vectors);
template <>
void run_dense_product<double, false>(const DenseProblem& p, bool vectors);

} // namespace torch_dnnl::cuda
