// Convolution by cuDNN, which every torch for CUDA has, through ATen's operators: the one kernel
// here that meets tensors. Only algorithms that give the same bits each time are asked for; which
// one that is, and so the last bits, depends on cuDNN's version and on the GPU.
#include "conv/cuda/kernels.h"
#include "core/math.h"

#ifndef TORCH_DNNL_CUDA_ON_HOST
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/cudnn_convolution.h>
#include <ATen/ops/cudnn_convolution_transpose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <vector>
#endif

#include <algorithm>
#include <limits>

namespace torch_dnnl::cuda {

#ifdef TORCH_DNNL_CUDA_ON_HOST

namespace {

// In the place of cuDNN, so that what is around it is tested.
void compute_sums(ConvProblem& p) {
  run_reference(p);
}

} // namespace

bool has_cudnn() {
  return false;
}

#else
namespace {

using Sizes = std::vector<int64_t>;

// ATen's operators have two or three axes.
int skipped_axes(const ConvProblem& p) {
  return p.src_size[0] == 1 && p.dst_size[0] == 1 && p.kernel[0] == 1 ? 1 : 0;
}

Sizes axes_of(const ConvProblem& p, const int64_t* values) {
  return Sizes(values + skipped_axes(p), values + 3);
}

// A tensor of two leading dimensions, whose strides come first among `strides`.
at::Tensor view(
    const ConvProblem& p,
    const void* data,
    int64_t first,
    int64_t second,
    const int64_t* axes,
    const int64_t* strides) {
  Sizes sizes{first, second}, steps{strides[0], strides[1]};
  for (int a = skipped_axes(p); a < 3; a++) {
    sizes.push_back(axes[a]);
    steps.push_back(strides[2 + a]);
  }
  const c10::Device device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  return at::for_blob(const_cast<void*>(data), sizes)
      .strides(steps)
      .target_device(device)
      .options(at::TensorOptions(p.dtype).device(device))
      .make_tensor();
}

at::Tensor src_of(const ConvProblem& p) {
  const void* data = p.pass == ConvPass::backward_data ? p.out : p.src;
  return view(p, data, p.n, p.groups * p.ic, p.src_size, p.src_stride);
}

at::Tensor dst_of(const ConvProblem& p) {
  const void* data = p.pass == ConvPass::forward ? p.out : p.dst;
  return view(p, data, p.n, p.groups * p.oc, p.dst_size, p.dst_stride);
}

at::Tensor weights_of(const ConvProblem& p) {
  const void* data = p.pass == ConvPass::backward_weights ? p.out : p.weights;
  return view(p, data, p.groups * p.oc, p.ic, p.kernel, p.weights_stride);
}

// Whether the elements of two tensors of a shape lie in the same places.
bool have_one_layout(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim(); d++)
    if (a.size(d) > 1 && a.stride(d) != b.stride(d))
      return false;
  return true;
}

// ATen has no operator that writes a gradient to a given place. So the memory that it gives becomes
// that of the tensor which was allocated for it; where the layouts differ, it is copied.
void give(const at::Tensor& result, at::Tensor out, ConvProblem& p) {
  if (!have_one_layout(result, out)) {
    out.copy_(result);
    return;
  }
  p.out_tensor->set_storage_keep_dtype(result.storage());
  p.out_tensor->set_storage_offset(result.storage_offset());
  p.out = result.mutable_data_ptr();
}

void run_forward(const ConvProblem& p) {
  at::Tensor dst = dst_of(p);
  const auto convolve = [&](at::Tensor& out) {
    at::cudnn_convolution_out(
        out,
        src_of(p),
        weights_of(p),
        axes_of(p, p.pad),
        axes_of(p, p.stride),
        axes_of(p, p.dilation),
        p.groups,
        /*benchmark=*/false,
        /*deterministic=*/true,
        allows_tf32());
  };
  const at::MemoryFormat format = dst.suggest_memory_format();
  if (dst.is_contiguous(format)) {
    convolve(dst);
  } else {
    at::Tensor dense = at::empty(dst.sizes(), dst.options(), format);
    convolve(dense);
    dst.copy_(dense);
  }
}

void run_data(ConvProblem& p) {
  const at::Tensor src = src_of(p);
  // What the smallest image that gives these outputs lacks.
  int64_t more[3];
  for (int a = 0; a < 3; a++)
    more[a] = p.src_size[a] + 2 * p.pad[a] - (p.dst_size[a] - 1) * p.stride[a] -
        (p.kernel[a] - 1) * p.dilation[a] - 1;
  // The operands' format is that of the result.
  const at::MemoryFormat format = src.suggest_memory_format();
  give(
      at::cudnn_convolution_transpose(
          dst_of(p).contiguous(format),
          weights_of(p).contiguous(format),
          axes_of(p, p.pad),
          axes_of(p, more),
          axes_of(p, p.stride),
          axes_of(p, p.dilation),
          p.groups,
          /*benchmark=*/false,
          /*deterministic=*/true,
          allows_tf32()),
      src,
      p);
}

// The only way to a gradient of weights is told by torch's settings what it may choose from: they
// are changed for the length of the call.
class DeterministicCuDNN {
 public:
  DeterministicCuDNN() : lock_(mutex()) {
    context_.setDeterministicCuDNN(true);
    context_.setBenchmarkCuDNN(false);
  }
  ~DeterministicCuDNN() {
    context_.setDeterministicCuDNN(deterministic_);
    context_.setBenchmarkCuDNN(benchmark_);
  }
  DeterministicCuDNN(const DeterministicCuDNN&) = delete;
  DeterministicCuDNN& operator=(const DeterministicCuDNN&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex of_all;
    return of_all;
  }

  const std::lock_guard<std::mutex> lock_; // first: what others set is not what was
  at::Context& context_ = at::globalContext();
  const bool deterministic_ = context_.deterministicCuDNN(), benchmark_ = context_.benchmarkCuDNN();
};

void run_weights(ConvProblem& p) {
  const at::Tensor weights = weights_of(p);
  const at::Tensor src = src_of(p);
  const at::MemoryFormat format = src.suggest_memory_format();
  // Of the weights only the sizes are read; strides of their own could mean another format.
  const at::Tensor of_sizes = at::empty({1}, weights.options()).expand(weights.sizes());
  const Sizes zeros(axes_of(p, p.pad).size());
  const DeterministicCuDNN guard;
  const auto gradients = at::convolution_backward(
      dst_of(p).contiguous(format),
      src.contiguous(format),
      of_sizes,
      /*bias_sizes=*/std::nullopt,
      axes_of(p, p.stride),
      axes_of(p, p.pad),
      axes_of(p, p.dilation),
      /*transposed=*/false,
      /*output_padding=*/zeros,
      p.groups,
      {false, true, false});
  give(std::get<1>(gradients), weights, p);
}

void compute_sums(ConvProblem& p) {
  // The operators called here are below autograd and autocast, as the one that calls is.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::DispatchKey::AutocastCUDA);
  switch (p.pass) {
    case ConvPass::forward:
      return run_forward(p);
    case ConvPass::backward_data:
      return run_data(p);
    case ConvPass::backward_weights:
      return run_weights(p);
  }
}

} // namespace

bool has_cudnn() {
  return at::globalContext().userEnabledCuDNN() && at::detail::getCUDAHooks().hasCuDNN();
}

#endif

bool supports_cudnn(const ConvProblem& p) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max(); // what cuDNN counts to
  const int64_t src = p.n * p.groups * p.ic * product(p.src_size);
  const int64_t dst = p.n * p.groups * p.oc * product(p.dst_size);
  if (src == 0 || dst == 0 || std::max(src, dst) > kMost || !can_complete(p))
    return false;
  for (int a = 0; a < 3; a++) {
    const int64_t reach = (p.kernel[a] - 1) * p.dilation[a] + 1;
    const int64_t padded = p.src_size[a] + 2 * p.pad[a];
    // Padding at both ends alike, and no output of padding alone.
    if (p.pad[a] < 0 || p.pad[a] >= reach || padded < reach ||
        (padded - reach) / p.stride[a] + 1 != p.dst_size[a])
      return false;
  }
  return true;
}

void run_cudnn(const ConvProblem& p) {
  ConvProblem sums = p;
  sums.bias = sums.residual = nullptr;
  sums.preactivation = nullptr;
  sums.activation = Activation::none;
  compute_sums(sums);
  ConvProblem rest = p;
  rest.out = sums.out;
  complete(rest);
}

} // namespace torch_dnnl::cuda
