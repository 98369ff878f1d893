// What the argument `algorithm` of resample may be.
#pragma once

#include <string_view>

namespace torch_dnnl {

inline constexpr std::string_view kResampleAlgorithms[] = {
    "auto", // the device's own choice
    // The kernels of all devices.
    "reference",
    "rows",
    "copy",
    "sliding_window",
    "sum_rows",
    "sum_pixels",
};

} // namespace torch_dnnl
