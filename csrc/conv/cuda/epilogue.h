// The end of a forward convolution in a CUDA kernel: neighbouring outputs, whose sums are in
// registers, get the residual and the activation, and are rounded and stored.
#pragma once

#include "conv/problem.h"
#include "core/cuda/convert.h"

namespace torch_dnnl::cuda {

// A call and not inlined: every activation for every output of a thread would be a hundred times
// the code of the kernel around it.
template <class C>
__device__ __attribute__((noinline)) C activated(Activation activation, C x, C alpha, C beta) {
  return with_activation(
      activation, [&](auto tag) { return activate<decltype(tag)::value>(x, alpha, beta); });
}

// Whether runs of `n` elements along an axis that begin at multiples of its other strides can be
// moved as one.
template <class T>
bool can_move_runs(const void* data, const int64_t* stride, int n, int axis) {
  for (int a = 0; a < 5; a++)
    if (a == axis ? stride[a] != 1 : stride[a] % n != 0)
      return false;
  return is_aligned(data, n * sizeof(T));
}

// What outputs consist of beside sums; all tensors have the type of the kernel.
struct Epilogue {
  void *out, *preactivation;
  const void* residual;
  Activation activation; // not prelu
  ActivationParameters parameters;

  TORCH_DNNL_HD static Epilogue of(const ConvProblem& p) {
    return {p.out, p.preactivation, p.residual, p.activation, p.parameters};
  }

  // See can_move_runs.
  template <class T>
  bool can_move(int n, const int64_t* stride, const int64_t* residual_stride, int axis) const {
    const auto fits = [&](const void* data, const int64_t* strides) {
      return data == nullptr || can_move_runs<T>(data, strides, n, axis);
    };
    return fits(out, stride) && fits(preactivation, stride) && fits(residual, residual_stride);
  }

  // Completes `count` of n outputs, `step` elements apart, from `offset` on; `vectors`: as one.
  // is_whole_kernel: a kernel does nothing else, so that activations are part of its code.
  template <class T, int n, bool is_whole_kernel = false>
  __device__ __forceinline__ void complete(
      compute_t<T> (&sums)[n],
      int count,
      int64_t offset,
      int64_t step,
      int64_t residual_offset,
      int64_t residual_step,
      bool vectors) const {
    vectors = vectors && count == n;
    if (is_whole_kernel || has_more()) {
      if (residual != nullptr) {
        const T* from = static_cast<const T*>(residual) + residual_offset;
        add_residual<T>(sums, from, count, residual_step, vectors);
      }
      if (preactivation != nullptr)
        store<T>(static_cast<T*>(preactivation) + offset, sums, count, step, vectors);
      activate_all<is_whole_kernel>(sums);
    }
    store<T>(static_cast<T*>(out) + offset, sums, count, step, vectors);
  }

 private:
  __device__ __forceinline__ bool has_more() const {
    return residual != nullptr || preactivation != nullptr || activation != Activation::none;
  }

  template <class T, int n>
  __device__ __forceinline__ static void
  add_residual(compute_t<T> (&sums)[n], const T* from, int count, int64_t step, bool vectors) {
    if (vectors) {
      const auto values = load_vector<n>(from);
#pragma unroll
      for (int i = 0; i < n; i++)
        sums[i] += static_cast<compute_t<T>>(values.at[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < n; i++)
      if (i < count)
        sums[i] += static_cast<compute_t<T>>(from[i * step]);
  }

  template <bool is_whole_kernel, class C, int n>
  __device__ __forceinline__ void activate_all(C (&sums)[n]) const {
    const C alpha = static_cast<C>(parameters.alpha), beta = static_cast<C>(parameters.beta);
    if constexpr (is_whole_kernel) {
      with_activation(activation, [&](auto tag) {
#pragma unroll
        for (int i = 0; i < n; i++)
          sums[i] = activate<decltype(tag)::value>(sums[i], alpha, beta);
      });
    } else if (activation == Activation::relu) { // one instruction, without a call
#pragma unroll
      for (int i = 0; i < n; i++)
        sums[i] = activate<Activation::relu>(sums[i], alpha, beta);
    } else if (activation != Activation::none) {
#pragma unroll
      for (int i = 0; i < n; i++)
        sums[i] = activated(activation, sums[i], alpha, beta);
    }
  }

  template <class T, int n>
  __device__ __forceinline__ static void
  store(T* to, const compute_t<T> (&sums)[n], int count, int64_t step, bool vectors) {
    if (vectors) {
      narrowed<T, /*kCanonical=*/true>(sums).store(to);
      return;
    }
#pragma unroll
    for (int i = 0; i < n; i++)
      if (i < count)
        to[i * step] = convert<T>(sums[i]);
  }
};

} // namespace torch_dnnl::cuda
