// Calls of convolutions that are prepared: checked, and known by their kernel and its problem.
#pragma once

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <utility>

#include "conv/problem.h"
#include "core/prepared.h"
#include "core/torch/empty.h"

namespace torch_dnnl {

// While it lives, the convolution of `src` that this thread calls is prepared and not computed.
struct Preparing {
  explicit Preparing(const at::Tensor& image) : src(image.const_data_ptr()) {
    current = this;
  }
  ~Preparing() {
    current = nullptr;
  }

  const void* const src;
  std::unique_ptr<PreparedCall> call;
  static inline thread_local Preparing* current = nullptr;
};

template <class Problem>
auto& conv_of(Problem& problem) {
  if constexpr (requires { problem.conv; })
    return problem.conv;
  else
    return problem;
}

// Run is a function void(const Problem&). The object keeps a copy of the function.
template <class Problem, class Run>
class PreparedConvolution final : public PreparedCall {
 public:
  PreparedConvolution(const Problem& problem, const Run& run) : problem_(problem), run_(run) {
    const c10::TensorImpl& dst = *conv_of(problem_).out_tensor;
    sizes_ = dst.sizes();
    strides_ = dst.strides();
    dtype_ = c10::typeMetaToScalarType(dst.dtype());
  }

  at::Tensor run(const at::Tensor& src, const at::Tensor& residual) const override {
    at::Tensor dst = in_huge_pages(at::detail::empty_strided_cpu(sizes_, strides_, dtype_));
    Problem problem = problem_;
    ConvProblem& p = conv_of(problem);
    p.src = src.const_data_ptr();
    p.out = dst.mutable_data_ptr();
    p.out_tensor = dst.unsafeGetTensorImpl();
    if (residual.defined())
      p.residual = residual.const_data_ptr();
    run_(problem);
    return dst;
  }

 private:
  const Problem problem_;
  const Run run_;
  c10::SmallVector<int64_t, 5> sizes_, strides_;
  c10::ScalarType dtype_;
};

template <class Problem, class Run>
void run_or_prepare(const Problem& problem, const Run& run) {
  Preparing* const preparing = Preparing::current;
  if (preparing == nullptr)
    return run(problem);
  // A call with another image than the caller's, a second result, or slopes of its own does more.
  const ConvProblem& p = conv_of(problem);
  if (p.src == preparing->src && p.preactivation == nullptr && p.slopes == nullptr)
    preparing->call = std::make_unique<PreparedConvolution<Problem, Run>>(problem, run);
}

namespace preparing_detail {

template <auto call, class R, class... Args>
constexpr auto prepare(R (* /*call*/)(const at::Tensor&, Args...)) {
  return +[](const at::Tensor& src, Args... args) {
    Preparing preparing(src);
    call(src, std::forward<Args>(args)...);
    return reinterpret_cast<int64_t>(preparing.call.release());
  };
}

} // namespace preparing_detail

// Takes what an operator takes. Returns the address of a PreparedCall, which the caller owns; 0 if
// a call does more than to run a kernel.
template <auto call>
constexpr auto prepare = preparing_detail::prepare<call>(call);

} // namespace torch_dnnl
