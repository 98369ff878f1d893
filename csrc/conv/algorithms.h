// What the argument `algorithm` of convolution may be.
#pragma once

#include <string_view>

namespace torch_dnnl {

inline constexpr std::string_view kConvAlgorithms[] = {
    // Families: the device's own choice; without Winograd; Winograd wherever that is possible.
    "auto",
    "direct",
    "winograd",
    // The kernels of all devices.
    "reference",
    "pixel_lanes",
    "channel_lanes",
    "gemm",
    "few_outputs",
    "winograd_2x2",
    "winograd_4x4",
    "few_inputs",
    "blocked",
    "depthwise",
    "dense",
};

} // namespace torch_dnnl
