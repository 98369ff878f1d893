// Registration of resample and resample_backward: shapes, derivatives, batching.
// Each is linear in its image and is the other's adjoint.
#include "resample/resample.h"

#include "core/torch/autograd.h"
#include "core/torch/vmap.h"

namespace torch_dnnl {
namespace {

using at::Tensor;
using namespace resample_arg;

template <bool transposed>
Tensor call_with_image(const Tensor& new_image, const Stack& saved) {
  Stack args = saved;
  args[image] = new_image;
  if constexpr (transposed)
    return call<"torch_dnnl::resample_backward">(std::move(args));
  return call<"torch_dnnl::resample">(std::move(args));
}

// The gradient: a call of the adjoint, whose image will be the gradient of the output.
template <bool transposed>
Pullback adjoint(size_t, const Stack& args) {
  const Tensor& src = args[image].toTensor();
  const bool nxc = args[position(data_format, transposed)].toStringView() == "NXC";
  Stack saved = args;
  saved[image] = c10::IValue();
  saved[size] =
      c10::IValue(src.sym_sizes().slice(resample_detail::first_spatial(nxc), src.dim() - 2));
  saved[position(dtype, transposed)] = static_cast<int64_t>(src.scalar_type());
  if (transposed)
    saved.insert(saved.begin() + extrapolation_value, c10::IValue(0.0));
  else
    saved.erase(saved.begin() + extrapolation_value);
  return {call_with_image<!transposed>, std::move(saved)};
}

template <bool transposed>
Tensor pushforward(size_t, const Tensor& tangent, const Stack& args) {
  Stack linear = args;
  if (!transposed)
    linear[extrapolation_value] = 0.0;
  return call_with_image<transposed>(tangent, linear);
}

// The batch is folded into N, which leads in both data formats.
template <bool transposed>
Tensor fold_into_n(const BatchedCall& call) {
  const Tensor result = call_with_image<transposed>(call.folded_into(image, 0), call.args);
  return unfolded_from(result, 0, call.batch);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Meta, m) {
  register_resample<resample_output>(m);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Autograd, m) {
  m.impl("resample", differentiable({adjoint<false>, pushforward<false>}));
  m.impl("resample_backward", differentiable({adjoint<true>, pushforward<true>}));
}

TORCH_LIBRARY_IMPL(torch_dnnl, FuncTorchBatched, m) {
  m.impl("resample", batched<fold_into_n<false>>());
  m.impl("resample_backward", batched<fold_into_n<true>>());
}

} // namespace
} // namespace torch_dnnl
