// The vocabulary of every validator. Sizes are SymInt, so that one check serves
// eager, meta and traced calls: a check on a symbolic size becomes a guard, one
// on an unbacked size a run-time assertion of the traced program.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/expected.h"

namespace torch_dnnl {

inline bool holds(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

// "float32", as Python names it; an operator may be given None for a tensor.
inline std::string dtype_name(c10::ScalarType type) {
  return type == c10::ScalarType::Undefined ? "no tensor"
                                            : std::string(c10::getDtypeNames(type).first);
}

// ValueError unless both tensors live on one device.
inline void check_same_device(
    const char* op,
    const char* argument,
    const at::Tensor& tensor,
    const char* like_name,
    const at::Tensor& like) {
  TORCH_CHECK_VALUE(
      tensor.device() == like.device(),
      Expected(op) << argument << " on the device of " << like_name << " (" << like.device()
                   << "), got " << tensor.device());
}

inline void check_finite(const char* op, const char* argument, double value) {
  TORCH_CHECK_VALUE(
      std::isfinite(value), Expected(op) << argument << " to be finite, got " << value);
}

// ValueError unless `list` has one entry per spatial dimension.
template <class List>
void check_length(const char* op, const char* argument, const List& list, size_t spatial) {
  TORCH_CHECK_VALUE(
      list.size() == spatial,
      Expected(op) << argument << " to have one entry per spatial dimension (" << spatial
                   << "), got " << list.size() << ": " << list);
}

// ValueError unless every entry is in [least, most]. `what` and `argument` name the list: "the
// spatial sizes of " "src", or "" "strides".
inline void check_within(
    const char* op,
    const char* what,
    const char* argument,
    c10::SymIntArrayRef list,
    int64_t least,
    std::optional<int64_t> most = std::nullopt) {
  for (const auto& value : list) {
    // That a size stays below the most is no condition on a program for all sizes: its calls check.
    const bool is_small = !most || value.maybe_as_int().value_or(*most) <= *most;
    TORCH_CHECK_VALUE(
        holds(value.sym_ge(least)) && is_small,
        Expected(op) << "every entry of " << what << argument << " to be "
                     << (most ? "from " : "at least ") << least
                     << (most ? " to " + std::to_string(*most) : "") << ", got " << list);
  }
}

// ValueError if the storage was made smaller than what the tensor has of it. Of a tensor that
// stands for others, what kernels are given is checked.
inline void check_storage(const char* op, const char* argument, const at::Tensor& tensor) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet others{
      c10::DispatchKey::Python,
      c10::DispatchKey::Functionalize,
      c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::FuncTorchGradWrapper,
      c10::DispatchKey::ZeroTensor};
  const bool is_real = impl.has_storage() && !impl.has_symbolic_sizes_strides() &&
      !impl.key_set().has_any(others) && !tensor.is_nested() && (impl.is_cpu() || impl.is_cuda());
  if (!is_real || impl.numel() == 0)
    return;
  const c10::IntArrayRef sizes = impl.sizes(), strides = impl.strides();
  int64_t last = impl.storage_offset();
  for (size_t i = 0; i < sizes.size(); i++)
    last += (sizes[i] - 1) * strides[i];
  const int64_t needed = (last + 1) * int64_t(impl.itemsize());
  const int64_t bytes = int64_t(impl.unsafe_storage().nbytes());
  TORCH_CHECK_VALUE(
      needed <= bytes,
      Expected(op) << argument << " to have a storage of at least " << needed << " bytes, got "
                   << bytes);
}

// TypeError unless the tensor is dense; and check_storage.
inline void check_strided(const char* op, const char* argument, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(
      tensor.layout() == c10::kStrided,
      Expected(op) << argument << " to be a dense (strided) tensor, got layout "
                   << tensor.layout());
  check_storage(op, argument, tensor);
}

// Expanded tensors may have any number of elements. Kernels multiply it by a few small factors. A
// product of symbols would be a condition on one of them, with a fraction that export cannot state:
// the call with numbers checks.
inline void check_numel(const char* op, const char* argument, const at::Tensor& tensor) {
  const auto numel = tensor.sym_numel().maybe_as_int();
  TORCH_CHECK_VALUE(
      !numel.has_value() || *numel <= int64_t(1) << 48,
      Expected(op) << argument << " to have at most 2^48 elements, got sizes "
                   << tensor.sym_sizes());
}

// True for "NXC", false for "NCX"; ValueError for anything else.
inline bool is_channels_innermost(const char* op, std::string_view data_format) {
  TORCH_CHECK_VALUE(
      data_format == "NCX" || data_format == "NXC",
      Expected(op) << "data_format to be \"NCX\" or \"NXC\", got \"" << data_format << "\"");
  return data_format == "NXC";
}

// ValueError unless `name` is one of the names of a primitive's kernels and families of kernels.
template <size_t n>
void check_algorithm(const char* op, std::string_view name, const std::string_view (&known)[n]) {
  TORCH_CHECK_VALUE(
      std::find(known, known + n, name) != known + n,
      Expected(op) << "algorithm to be one of " << listed(known, std::identity()) << ", got \""
                   << name << "\"");
}

} // namespace torch_dnnl
