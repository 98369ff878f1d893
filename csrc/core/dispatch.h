// The one switch from a run-time type to a compile-time type outside kernels.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

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

} // namespace torch_dnnl
