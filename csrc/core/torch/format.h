// Where the channels of an image lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace torch_dnnl {

// What Tensor::suggest_memory_format says, but for a batch of one image of several pixels, whose
// stride says nothing: compiled graphs have a 0 there.
inline at::MemoryFormat memory_format(const at::Tensor& image) {
  const auto format = image.suggest_memory_format();
  const bool is_open = format == at::MemoryFormat::Contiguous && image.dim() >= 4 &&
      !image.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  if (!is_open || image.size(0) != 1 || image.size(1) == 1 || image.stride(1) != 1 ||
      image.numel() == image.size(1))
    return format;
  const at::IntArrayRef sizes = image.sizes();
  at::DimVector strides(image.strides());
  strides[0] = image.numel(); // as far as anything may lie behind the first image
  for (int64_t i = 1; i < image.dim(); i++)
    strides[0] = std::max(strides[0], sizes[i] * strides[i]);
  if (c10::is_channels_last_strides_2d(sizes, strides))
    return at::MemoryFormat::ChannelsLast;
  return c10::is_channels_last_strides_3d(sizes, strides) ? at::MemoryFormat::ChannelsLast3d
                                                          : format;
}

} // namespace torch_dnnl
