#pragma once

#include "core/cpu/simd.h"
#include "core/cpu/windows.h"

namespace torch_dnnl {
inline void end_of_stream() {
  finish_streaming();
}
} // namespace torch_dnnl
