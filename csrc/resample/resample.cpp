// Registration of resample and resample_backward: shapes, derivatives, batching.
// Each is linear in its image and is the other's adjoint.
#include "resample/resample.h"

#include "core/torch/autograd.h"
#include "core/torch/vmap.h"

namespace torch_dnnl {
namespace {

using at::Tensor;
using c10::IValue;
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

// The arguments of resample_rows before those that resample has, too.
namespace rows_arg {
enum { begin, end, of_source, src_size, dst_size, axis, is_double, scales };
}

void resample_rows(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const char* const name = "resample_rows";
  const size_t count = op.schema().arguments().size();
  const auto args = torch::jit::last(*stack, count);
  const auto argument = [&](resample_arg::Name of_resample) -> const IValue& {
    return args[of_resample + (int{rows_arg::scales} - int{resample_arg::scales})];
  };
  const auto sizes = args[rows_arg::src_size].toIntVector();
  const auto resized = args[rows_arg::dst_size].toIntVector();
  const auto factors = args[rows_arg::scales].toDoubleVector();
  const auto regions = argument(roi).toDoubleVector();
  check_length(name, "dst_size", c10::IntArrayRef(resized), sizes.size());
  for (const auto& [list, list_name] : {std::pair(&sizes, "src_size"), {&resized, "dst_size"}}) {
    const bool are_positive =
        std::all_of(list->begin(), list->end(), [](int64_t n) { return n >= 1; });
    TORCH_CHECK_VALUE(
        are_positive,
        Expected(name) << "every entry of " << list_name << " to be at least 1, got " << *list);
  }
  const int64_t spatial = sizes.size(), d = args[rows_arg::axis].toInt();
  TORCH_CHECK_VALUE(
      d >= 0 && d < spatial,
      Expected(name) << "axis to be from 0 to " << spatial - 1 << ", got " << d);
  AxisSpec a = resample_detail::check_options(name, argument, factors, regions, spatial);
  resample_detail::check_factors(
      name, a, factors, c10::fromIntArrayRefSlow(sizes), c10::fromIntArrayRefSlow(resized));
  a.float64_index = args[rows_arg::is_double].toBool();
  a.in = sizes[d], a.out = resized[d];
  if (!factors.empty())
    a.factor = factors[d];
  if (a.coordinates == Coordinates::tf_crop_and_resize)
    a.roi_begin = regions[d], a.roi_end = regions[spatial + d];
  const bool of_source = args[rows_arg::of_source].toBool();
  const Range rows{args[rows_arg::begin].toInt(), args[rows_arg::end].toInt()};
  TORCH_CHECK_VALUE(
      0 <= rows.begin && rows.begin <= rows.end && rows.end <= (of_source ? a.in : a.out),
      Expected(name) << "begin and end to be rows of " << (of_source ? a.in : a.out) << ", got "
                     << rows.begin << " and " << rows.end);
  const Range result = of_source ? rows_made(a, rows) : rows_read(a, rows);
  torch::jit::drop(*stack, count);
  stack->emplace_back(result.begin);
  stack->emplace_back(result.end);
}

TORCH_LIBRARY_IMPL(torch_dnnl, CompositeImplicitAutograd, m) {
  m.impl("resample_rows", boxed(resample_rows));
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
