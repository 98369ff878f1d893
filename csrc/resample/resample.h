// What is made of the parsed arguments of a call: the output and the problem.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/torch/boxed.h"
#include "core/torch/empty.h"
#include "core/torch/format.h"
#include "resample/arguments.h"
#include "resample/problem.h"
#include "resample/window.h"

namespace torch_dnnl {

// A tensor like `image` with other spatial sizes and type. channels_last stays so.
inline at::Tensor resample_output(const at::Tensor& image, const ResampleArguments& call) {
  c10::SmallVector<c10::SymInt, 5> sizes(image.sym_sizes().begin(), image.sym_sizes().end());
  std::copy(
      call.size.begin(), call.size.end(), sizes.begin() + resample_detail::first_spatial(call.nxc));
  const auto format = call.nxc ? at::MemoryFormat::Contiguous : memory_format(image);
  return empty(sizes, image.options().dtype(call.dtype).memory_format(format));
}

// Whether this is a pass of interpolate over bytes, which takes the axes of antialiased filters
// that overshoot one by one, as Pillow does.
inline bool is_pass_over_bytes(const AxisSpec& a, c10::ScalarType src, c10::ScalarType dst) {
  return a.antialias && a.filter != Filter::linear && src == c10::ScalarType::Byte && dst == src &&
      (a.coordinates == Coordinates::torch_linear ||
       a.coordinates == Coordinates::torch_antialias_corners);
}

// dst is the output. Axes always lead from the source image to the resized image.
inline ResampleProblem
resample_problem(const at::Tensor& src, const at::Tensor& dst, const ResampleArguments& call) {
  const int64_t spatial = src.dim() - 2;
  const int64_t channel = call.nxc ? src.dim() - 1 : 1;
  const int64_t first = resample_detail::first_spatial(call.nxc);

  ResampleProblem p{};
  p.n = src.size(0);
  p.c = src.size(channel);
  p.src_dtype = src.scalar_type();
  p.dst_dtype = dst.scalar_type();
  p.src = src.const_data_ptr();
  p.dst = dst.mutable_data_ptr();
  p.transposed = call.transposed;
  p.extrapolation_value = call.extrapolation_value;
  p.channels_innermost = p.c > 1 && dst.stride(channel) == 1;
  p.src_stride[0] = src.stride(0), p.dst_stride[0] = dst.stride(0);
  p.src_stride[1] = src.stride(channel), p.dst_stride[1] = dst.stride(channel);
  AxisSpec axis = call.axis;
  axis.float64_index = p.src_dtype == c10::ScalarType::Double;
  axis.fixed_point = is_pass_over_bytes(axis, p.src_dtype, p.dst_dtype);
  for (int64_t a = 0; a < 3; a++) {
    const int64_t d = a - (3 - spatial);
    p.src_size[a] = p.dst_size[a] = 1;
    if (d < 0)
      continue;
    p.src_size[a] = src.size(first + d), p.dst_size[a] = dst.size(first + d);
    p.src_stride[2 + a] = src.stride(first + d), p.dst_stride[2 + a] = dst.stride(first + d);
    p.axes[a] = axis;
    p.axes[a].in = call.transposed ? p.dst_size[a] : p.src_size[a];
    p.axes[a].out = call.transposed ? p.src_size[a] : p.dst_size[a];
    if (!call.factors.empty())
      p.axes[a].factor = call.factors[d];
    if (axis.coordinates == Coordinates::tf_crop_and_resize) {
      p.axes[a].roi_begin = call.roi[d];
      p.axes[a].roi_end = call.roi[spatial + d];
    }
    if (!call.window.empty())
      set_window(p.axes[a], call, d);
  }
  return p;
}

// Registers both operators, which parse their arguments and return run(image, parsed arguments).
template <auto run>
void register_resample(torch::Library& m) {
  const auto kernel = [](bool transposed) {
    return boxed([transposed](const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
      const size_t count = resample_arg::position(resample_arg::count, transposed);
      const auto args = torch::jit::last(*stack, count);
      at::Tensor result =
          run(args[resample_arg::image].toTensor(), parse_resample(args, transposed));
      torch::jit::drop(*stack, count);
      stack->emplace_back(std::move(result));
    });
  };
  m.impl("resample", kernel(false));
  m.impl("resample_backward", kernel(true));
}

} // namespace torch_dnnl
