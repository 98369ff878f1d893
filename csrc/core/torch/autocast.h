// What torch.autocast does with an operator.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "core/torch/boxed.h"

namespace torch_dnnl {

// The kernel for AutocastCPU or AutocastCUDA of an operator that runs in the lower precision:
// floating arguments other than float64 are cast to it (once per autocast region for parameters),
// as at::autocast does for matrix products and convolutions.
inline torch::CppFunction lower_precision(c10::DeviceType device) {
  return boxed([device](const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(
        at::autocast::get_autocast_dispatch_key_from_device_type(device));
    const auto dtype = at::autocast::get_autocast_dtype(device);
    const auto arguments = op.schema().arguments().size();
    for (auto value = stack->end() - arguments; value != stack->end(); ++value)
      if (value->isTensor())
        *value = at::autocast::cached_cast(dtype, value->toTensor(), device);
    op.callBoxed(stack);
  });
}

} // namespace torch_dnnl
