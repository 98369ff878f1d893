#include "core/torch/autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

namespace torch_dnnl {
namespace {

struct LowerPrecisionKernel : c10::OperatorKernel {
  explicit LowerPrecisionKernel(c10::DeviceType device) : device(device) {}
  c10::DeviceType device;

  void
  operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(
        at::autocast::get_autocast_dispatch_key_from_device_type(device));
    const auto dtype = at::autocast::get_autocast_dtype(device);
    const auto arguments = op.schema().arguments().size();
    for (auto value = stack->end() - arguments; value != stack->end(); ++value) {
      if (value->isTensor())
        *value = at::autocast::cached_cast(dtype, value->toTensor(), device);
    }
    op.callBoxed(stack);
  }
};

} // namespace

torch::CppFunction lower_precision(c10::DeviceType device) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<LowerPrecisionKernel>(device));
}

} // namespace torch_dnnl
