// Products of bfloat16 and float16, and whether those of float32 are torch's.
#include <ATen/Context.h>

#include <algorithm>

#include "conv/cpu/shared/products/products.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {
namespace {

// Whether the CPU has an instruction for products of pairs. (torch's brgemm takes bfloat16 on every
// CPU with AVX-512, and takes it apart where there is no such instruction; float16 is widened by
// all but the matrix units, for which alone torch packs.)
template <class T>
bool has_instruction() {
  if (at::native::cpublas::could_pack(c10::CppTypeToScalarType<T>::value))
    return true;
#if defined(__x86_64__)
  return std::is_same_v<T, c10::BFloat16> && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// By widening, a vector of columns at a time.
template <class T>
void multiply_widened(const Product<T, T, float>& p) {
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t i = 0; i < p.m; i++) {
    for (int64_t j = 0; j < p.n; j += lanes) {
      float* const to = p.c + i * p.c_row + j;
      Vector<float> sums = p.adds ? load_vector(to) : Vector<float>{};
      for (int64_t k = 0; k < p.k; k++) {
        float column[lanes];
        for (int64_t l = 0; l < lanes; l++)
          column[l] = static_cast<float>(p.b[(k / 2 * p.n + j + l) * 2 + k % 2]);
        const auto a = static_cast<float>(p.a[i * p.a_row + k]);
        sums = multiply_add<float>(broadcast(a), load_vector(column), sums);
      }
      store_vector(to, sums);
    }
  }
}

// Sums of small integers, which are exact, of a size with a rest in all directions.
template <class T>
bool try_products() {
  constexpr int64_t m = 5, n = 16, k = 14;
  T a[m * k], b[k * n];
  float c[m * n], expected[m * n] = {};
  for (int64_t i = 0; i < m * k; i++)
    a[i] = static_cast<float>(i * 37 % 15 - 7);
  for (int64_t r = 0; r < k; r++) {
    for (int64_t j = 0; j < n; j++) {
      const auto value = static_cast<float>((29 * r + 53 * j) % 13 - 6);
      b[(r / 2 * n + j) * 2 + r % 2] = value;
      for (int64_t i = 0; i < m; i++)
        expected[i * n + j] += static_cast<float>(a[i * k + r]) * value;
    }
  }
  const bool can = can_do([&] { // not without oneDNN
    at::native::cpublas::brgemm(m, n, k, k, n, n, /*add_C=*/false, a, b, c, /*is_vnni=*/true);
    at::native::cpublas::brgemm_release();
  });
  return can && std::equal(c, c + m * n, expected);
}

} // namespace

template <class T>
bool HalfProducts<T>::are_native() {
  if (!at::globalContext().userEnabledMkldnn())
    return false;
  static const bool are = has_instruction<T>() && try_products<T>();
  return are;
}

template <class T>
bool HalfProducts<T>::are_fast() {
#if defined(__x86_64__)
  // On Sapphire Rapids vdpbf16ps makes twice as many products as an instruction of float32 in four
  // times the time (1.35e9 a second beside 5.5e9): systems may hide the matrix unit that bfloat16
  // is for there. Intel's other CPUs are taken to be like it. On Zen 4 it takes as long as the
  // other.
  if (__builtin_cpu_is("intel") && !have_tiles())
    return false;
#endif
  return are_native();
}

template <class T>
bool HalfProducts<T>::have_tiles() {
  return are_native() && at::native::cpublas::could_pack(c10::CppTypeToScalarType<T>::value);
}

template <class T>
void HalfProducts<T>::multiply(const Product<T, T, float>& p) {
  if (!are_native())
    return multiply_widened(p);
  at::native::cpublas::brgemm(
      p.m, p.n, p.k, p.brgemm_row(), p.n, p.c_row, p.adds, p.a, p.b, p.c, /*is_vnni=*/true);
}

template <class T>
void HalfProducts<T>::release() {
  if (are_native())
    at::native::cpublas::brgemm_release();
}

bool FloatProducts::are_fast() {
#if defined(CPU_CAPABILITY_AVX2)
  const auto can_multiply = [] {
    constexpr int64_t n = 16;
    const float a = 2, b[n] = {3};
    float c[n] = {};
    return can_do([&] { multiply({1, n, 1, 1, n, &a, b, c, /*adds=*/false}); }) && c[0] == a * b[0];
  };
  static const bool can = can_multiply();
  return can && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

template struct HalfProducts<c10::BFloat16>;
template struct HalfProducts<c10::Half>;

} // namespace torch_dnnl
