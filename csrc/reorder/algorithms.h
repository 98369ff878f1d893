// What the argument `algorithm` of reorder and of fake quantization may be.
#pragma once

#include <string_view>

namespace torch_dnnl {

inline constexpr std::string_view kReorderAlgorithms[] = {
    "auto", // the device's own choice
    // The kernels of all devices.
    "boxes",
    "reference",
};

} // namespace torch_dnnl
