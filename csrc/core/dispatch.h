// The switches from a run-time type to a compile-time type outside kernels.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace torch_dnnl {

template <class... T>
struct TypeList {};

using FloatingTypes = TypeList<double, float, c10::BFloat16, c10::Half>;
using ImageTypes =
    TypeList<double, float, c10::BFloat16, c10::Half, uint8_t, int8_t, int16_t, int32_t>;

template <class... T>
bool contains(TypeList<T...>, c10::ScalarType type) {
  return ((type == c10::CppTypeToScalarType<T>::value) || ...);
}

// f(std::type_identity<T>) for the T of the list that `type` names. The
// validators have refused every other type before.
template <class... T, class F>
void dispatch(TypeList<T...>, c10::ScalarType type, F&& f) {
  const bool found =
      ((type == c10::CppTypeToScalarType<T>::value && (f(std::type_identity<T>{}), true)) || ...);
  TORCH_INTERNAL_ASSERT(found, "no kernel for ", type);
}

// f(std::type_identity<E>) for the unsigned integer E of so many bytes: what moves elements does
// not ask for their type.
template <class F>
void dispatch_bytes(size_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(std::type_identity<uint8_t>{});
    case 2:
      return f(std::type_identity<uint16_t>{});
    case 4:
      return f(std::type_identity<uint32_t>{});
    default:
      return f(std::type_identity<uint64_t>{});
  }
}

} // namespace torch_dnnl
