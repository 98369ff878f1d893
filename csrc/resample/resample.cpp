// Registration of resample and resample_backward: shapes, derivatives, batching.
// Each is linear in its image and is the other's adjoint.
#include "resample/resample.h"

#include <torch/library.h>

#include "core/torch/autograd.h"
#include "core/torch/vmap.h"

namespace torch_dnnl {
namespace {

using at::Tensor;

// Positions of the arguments in the schemas.
namespace forward_arg {
enum {
  src,
  size,
  scales,
  mode,
  coordinates,
  nearest_mode,
  antialias,
  cubic_coeff_a,
  exclude_outside,
  roi,
  extrapolation_value,
  data_format,
  dtype,
  algorithm
};
}
namespace backward_arg {
enum {
  grad,
  src_size,
  scales,
  mode,
  coordinates,
  nearest_mode,
  antialias,
  cubic_coeff_a,
  exclude_outside,
  roi,
  data_format,
  dtype,
  algorithm
};
}

Tensor call_resample(Stack args) {
  static const Operator op("torch_dnnl::resample");
  return op(std::move(args));
}

Tensor call_resample_backward(Stack args) {
  static const Operator op("torch_dnnl::resample_backward");
  return op(std::move(args));
}

// The spatial sizes and the type of an image, as the other operator takes them.
c10::IValue spatial_sizes(const Tensor& image, const c10::IValue& data_format) {
  const bool nxc = data_format.toStringRef() == "NXC";
  return c10::IValue(image.sym_sizes().slice(resample_detail::first_spatial(nxc), image.dim() - 2));
}

c10::IValue dtype_of(const Tensor& image) {
  return static_cast<int64_t>(image.scalar_type());
}

// resample's call with the arguments of its adjoint, and the other way round.
Stack adjoint_of_forward(const Stack& args) {
  Stack result(args.begin() + 1, args.end());
  const Tensor& src = args[forward_arg::src].toTensor();
  result[forward_arg::size - 1] = spatial_sizes(src, args[forward_arg::data_format]);
  result[forward_arg::dtype - 1] = dtype_of(src);
  result.erase(result.begin() + forward_arg::extrapolation_value - 1);
  return result;
}

Stack adjoint_of_backward(const Stack& args) {
  Stack result(args.begin() + 1, args.end());
  const Tensor& grad = args[backward_arg::grad].toTensor();
  result[backward_arg::src_size - 1] = spatial_sizes(grad, args[backward_arg::data_format]);
  result[backward_arg::dtype - 1] = dtype_of(grad);
  result.insert(result.begin() + forward_arg::extrapolation_value - 1, c10::IValue(0.0));
  return result;
}

Stack with_first(const Tensor& image, const Stack& rest) {
  Stack args;
  args.reserve(rest.size() + 1);
  args.emplace_back(image);
  args.insert(args.end(), rest.begin(), rest.end());
  return args;
}

const Derivatives forward_derivatives{
    [](size_t, const Stack& args) {
      return Pullback{
          [](const Tensor& grad, const Stack& saved) {
            return call_resample_backward(with_first(grad, saved));
          },
          adjoint_of_forward(args)};
    },
    [](size_t, const Tensor& tangent, const Stack& args) {
      Stack linear = args;
      linear[forward_arg::src] = tangent;
      linear[forward_arg::extrapolation_value] = 0.0;
      return call_resample(std::move(linear));
    }};

const Derivatives backward_derivatives{
    [](size_t, const Stack& args) {
      return Pullback{
          [](const Tensor& grad, const Stack& saved) {
            return call_resample(with_first(grad, saved));
          },
          adjoint_of_backward(args)};
    },
    [](size_t, const Tensor& tangent, const Stack& args) {
      Stack linear = args;
      linear[backward_arg::grad] = tangent;
      return call_resample_backward(std::move(linear));
    }};

// The batch is folded into N, which leads in both data formats.
template <Tensor (*call)(Stack)>
Tensor fold_into_n(const BatchedCall& batched_call) {
  Stack args = batched_call.args;
  args[0] = batched_call.folded_into(0, 0);
  return unfolded_from(call(std::move(args)), 0, batched_call.batch);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Meta, m) {
  m.impl("resample", resample_kernel<resample_output>);
  m.impl("resample_backward", resample_backward_kernel<resample_output>);
}

TORCH_LIBRARY_IMPL(torch_dnnl, Autograd, m) {
  m.impl("resample", differentiable(forward_derivatives));
  m.impl("resample_backward", differentiable(backward_derivatives));
}

TORCH_LIBRARY_IMPL(torch_dnnl, FuncTorchBatched, m) {
  m.impl("resample", batched<fold_into_n<call_resample>>());
  m.impl("resample_backward", batched<fold_into_n<call_resample_backward>>());
}

} // namespace
} // namespace torch_dnnl
