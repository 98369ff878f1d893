// How numbers are loaded, converted, rounded and saturated: one definition for
// every operator, on the CPU and on the GPU.
//
// Conversions to an integer round to nearest, ties to even, saturate to the
// range of the destination (infinities included) and turn NaN into 0. float8
// rounds once, from float32, and saturates; NaN stays NaN. float64, float32,
// bfloat16 and float16 convert as IEEE 754 does: one rounding, overflow to
// infinity.
#pragma once

#include <c10/core/ScalarType.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/host_device.h"

namespace torch_dnnl {

// The type in which values of type T are accumulated. int32 needs float64 to
// come back unchanged.
template <class T>
using compute_t =
    std::conditional_t<std::is_same_v<T, double> || std::is_same_v<T, int32_t>, double, float>;

// A product that is rounded before anything is added to it, whatever nvcc's -fmad says.
template <class C>
TORCH_DNNL_HD inline C mul(C a, C b) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<C, float>)
    return __fmul_rn(a, b);
  if constexpr (std::is_same_v<C, double>)
    return __dmul_rn(a, b);
#endif
  return a * b;
}

// The float32 that rounds on to a narrower type as the float64 itself would:
// truncated, with the last bit set when anything was cut off ("round to odd").
// Without branches, so that compilers make vector code of loops; NaN stays.
TORCH_DNNL_HD inline float narrow_to_odd(double value) {
  float result = static_cast<float>(value);
  const double nearest = result;
  uint32_t bits;
  std::memcpy(&bits, &result, sizeof(bits));
  bits -= std::fabs(nearest) > std::fabs(value) ? 1 : 0;
  bits |= nearest < value || nearest > value ? 1 : 0;
  std::memcpy(&result, &bits, sizeof(bits));
  return result;
}

template <class T>
inline constexpr bool is_float8_v =
    std::is_same_v<T, c10::Float8_e4m3fn> || std::is_same_v<T, c10::Float8_e5m2>;

// GPUs from compute capability 8.9 on have instructions for float8, of the same results.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define TORCH_DNNL_HAS_FLOAT8 1
#else
#define TORCH_DNNL_HAS_FLOAT8 0
#endif

// To the float8 type Dst: rounded once and saturated.
template <class Dst>
TORCH_DNNL_HD inline Dst to_float8(float value) {
#if TORCH_DNNL_HAS_FLOAT8
  uint16_t pair;
  if constexpr (std::is_same_v<Dst, c10::Float8_e4m3fn>)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return Dst(static_cast<uint8_t>(pair), Dst::from_bits());
#else
  constexpr float max = std::is_same_v<Dst, c10::Float8_e4m3fn> ? 448.0f : 57344.0f;
  return static_cast<Dst>(value > max ? max : value < -max ? -max : value);
#endif
}

// A value in the type that is computed with, which holds every one of T.
template <class C, class T>
TORCH_DNNL_HD inline C widened(T value) {
#if TORCH_DNNL_HAS_FLOAT8
  if constexpr (is_float8_v<T>) { // by way of float16, which has them all
    uint32_t pair;
    if constexpr (std::is_same_v<T, c10::Float8_e4m3fn>)
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(value.x)));
    else
      asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(value.x)));
    return static_cast<C>(c10::Half(static_cast<uint16_t>(pair), c10::Half::from_bits()));
  }
#endif
  return static_cast<C>(value);
}

// Dst from a floating or (exact path) int64 value; see the head of this file.
template <class Dst, class Src>
TORCH_DNNL_HD inline Dst convert(Src value) {
  if constexpr (!std::is_integral_v<Dst> && !std::is_same_v<Dst, Src>) {
    // Processors differ in the NaN that they convert to.
    if (value != value)
      return std::numeric_limits<Dst>::quiet_NaN();
  }
  if constexpr (std::is_same_v<Dst, Src>) {
    return value;
  } else if constexpr (std::is_integral_v<Dst> && std::is_integral_v<Src>) {
    using Wide = std::common_type_t<Src, Dst, int32_t>;
    constexpr Wide low = std::numeric_limits<Dst>::min(), high = std::numeric_limits<Dst>::max();
    const Wide wide = value;
    return static_cast<Dst>(wide < low ? low : wide > high ? high : wide);
  } else if constexpr (std::is_integral_v<Dst>) {
#ifdef __CUDA_ARCH__
    // The instruction saturates, and makes 0 of NaN.
    if constexpr (std::is_same_v<Src, float> && sizeof(Dst) <= sizeof(int32_t))
      return convert<Dst>(static_cast<int32_t>(__float2int_rn(value)));
#endif
#ifndef __CUDA_ARCH__
    if constexpr (std::is_same_v<Src, double> && sizeof(Dst) <= sizeof(int32_t)) {
      // Without branches too: the addition rounds, and leaves the integer in the lowest bits.
      constexpr double low = std::numeric_limits<Dst>::min();
      constexpr double high = std::numeric_limits<Dst>::max();
      double limited = value > high ? high : value;
      limited = limited < low ? low : limited;
      limited = (value == value ? limited : 0) + 0x1.8p52;
      uint64_t bits;
      std::memcpy(&bits, &limited, sizeof(bits));
      return static_cast<Dst>(bits);
    }
#endif
    // -min is a power of two and so exact in Src, where max itself may not be.
    constexpr Src low = static_cast<Src>(std::numeric_limits<Dst>::min());
    constexpr Src above = static_cast<Src>(std::numeric_limits<Dst>::max() / 2 + 1) * 2;
    if (value != value)
      return 0;
    const Src rounded = std::nearbyint(value);
    if (rounded < low)
      return std::numeric_limits<Dst>::min();
    if (rounded >= above)
      return std::numeric_limits<Dst>::max();
    return static_cast<Dst>(rounded);
  } else if constexpr (is_float8_v<Dst>) {
    return to_float8<Dst>(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<Dst>) {
    return static_cast<Dst>(value);
  } else if constexpr (std::is_same_v<Src, double>) {
    return static_cast<Dst>(narrow_to_odd(value));
  } else {
    return static_cast<Dst>(static_cast<float>(value));
  }
}

// The type that names a c10::ScalarType, passed to a function object. This is
// the only switch over types inside kernels; dispatch.h has the one outside.
template <class F>
TORCH_DNNL_HD inline auto with_type(c10::ScalarType type, F&& f) {
  switch (type) {
    case c10::ScalarType::Double:
      return f(double{});
    case c10::ScalarType::BFloat16:
      return f(c10::BFloat16{});
    case c10::ScalarType::Half:
      return f(c10::Half{});
    case c10::ScalarType::Float8_e4m3fn:
      return f(c10::Float8_e4m3fn{});
    case c10::ScalarType::Float8_e5m2:
      return f(c10::Float8_e5m2{});
    case c10::ScalarType::Long:
      return f(int64_t{});
    case c10::ScalarType::Int:
      return f(int32_t{});
    case c10::ScalarType::Short:
      return f(int16_t{});
    case c10::ScalarType::Char:
      return f(int8_t{});
    case c10::ScalarType::Byte:
      return f(uint8_t{});
    default:
      return f(float{});
  }
}

// Element `index` of an array whose type is known at run time only.
template <class C>
TORCH_DNNL_HD inline C load(const void* data, c10::ScalarType type, int64_t index) {
  return with_type(
      type, [&](auto tag) { return widened<C>(static_cast<const decltype(tag)*>(data)[index]); });
}

template <class C>
TORCH_DNNL_HD inline void store(void* data, c10::ScalarType type, int64_t index, C value) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    static_cast<T*>(data)[index] = convert<T>(value);
  });
}

} // namespace torch_dnnl
