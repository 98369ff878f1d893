// The switches from a run-time type or value to one of compile time, outside loops.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/macros/Macros.h>
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

// f(std::type_identity<E>) for the unsigned integer E of so many bytes, at least kLeast: what moves
// elements does not ask for their type.
template <size_t kLeast = 1, class F>
void dispatch_bytes(size_t bytes, F&& f) {
  if constexpr (kLeast == 1)
    if (bytes == 1)
      return f(std::type_identity<uint8_t>{});
  bytes == 2       ? f(std::type_identity<uint16_t>{})
      : bytes == 4 ? f(std::type_identity<uint32_t>{})
                   : f(std::type_identity<uint64_t>{});
}

// f(std::integral_constant of that one of kValues that equals `value`, or of kOther)
template <auto kOther, auto... kValues, class F>
C10_ALWAYS_INLINE void with_constant(decltype(kOther) value, const F& f) {
  const auto is_taken = [&](auto constant) { return value == constant && (f(constant), true); };
  if (!(is_taken(std::integral_constant<decltype(kValues), kValues>{}) || ...))
    f(std::integral_constant<decltype(kOther), kOther>{});
}

} // namespace torch_dnnl
