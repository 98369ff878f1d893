// The memory format of an image, from which every operator takes the strides of its result.
//
// A fake tensor goes through the comparisons of the real one: a graph whose result has other
// strides than the compiler was told computes wrong values without an error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymBool.h>

namespace torch_dnnl {

namespace format_detail {

inline bool holds_or_false(const c10::SymBool& condition) {
  return TORCH_GUARD_OR_FALSE(condition);
}

// Whether a step reaches past `extent`, the memory of the dimensions further in. Where unbacked
// symbols leave that open, a step larger than the next one inside is enough.
inline bool
is_beyond(const c10::SymInt& step, const c10::SymInt& extent, const c10::SymInt& inner_step) {
  const c10::SymBool condition = step.sym_ge(extent);
  return holds_or_false(condition) ||
      (TORCH_GUARD_OR_TRUE(condition) && holds_or_false(step.sym_gt(inner_step)));
}

// Whether channels lie innermost, then W, H, D and N: torch's rule for 4-D and 5-D tensors
// (c10/core/MemoryFormat.h), except that the stride of a batch of one does not count. Compiled
// graphs have any number there. For one channel or one pixel torch's rule holds: it tells the
// formats apart by that stride.
inline bool is_channels_last(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  if (holds_or_false(strides[1].sym_eq(0)))
    return false;
  for (const c10::SymInt& size : sizes)
    if (holds_or_false(size.sym_eq(0)))
      return false;
  c10::SymInt step = strides[1], extent = step * sizes[1];
  bool is_pixel = true;
  for (size_t d = sizes.size() - 1; d >= 2; d--) {
    if (!is_beyond(strides[d], extent, step))
      return false;
    step = strides[d], extent = step * sizes[d];
    is_pixel &= holds_or_false(sizes[d].sym_eq(1));
  }
  const bool is_ambiguous = is_pixel || holds_or_false(sizes[1].sym_eq(1));
  if (holds_or_false(sizes[0].sym_eq(1)) && !is_ambiguous)
    return true;
  return is_beyond(strides[0], extent, step) && !holds_or_false(extent.sym_eq(strides[1]));
}

} // namespace format_detail

inline at::MemoryFormat memory_format(const at::Tensor& image) {
  const int64_t rank = image.dim();
  if (rank != 4 && rank != 5)
    return at::MemoryFormat::Contiguous;
  const auto channels_last =
      rank == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  const at::TensorImpl& impl = *image.unsafeGetTensorImpl();
  // For most real tensors torch has the same answer at hand.
  if (!impl.has_symbolic_sizes_strides()) {
    const auto format = image.suggest_memory_format();
    if (format == channels_last || image.size(0) != 1 || image.size(1) == 1)
      return format;
  }
  return format_detail::is_channels_last(image.sym_sizes(), image.sym_strides())
      ? channels_last
      : at::MemoryFormat::Contiguous;
}

} // namespace torch_dnnl
