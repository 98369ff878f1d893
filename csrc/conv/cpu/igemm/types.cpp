// The portable GEMMs, and what torch and the CPU support.
#include "conv/cpu/igemm/types.h"

#include <ATen/Context.h>
#include <ATen/cpu/Utils.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/cpu/dot2.h"
#include "core/cpu/vectors.h"

namespace torch_dnnl {
namespace {

// The register tile of Int16Gemm: kMr x kVectors accumulators, kVectors of b and one of a.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif
constexpr int kMr = 6;

template <int rows, int vectors>
void multiply_int16_tile(const Int16Gemm::Call& g, const int16_t* a, const int16_t* b, int32_t* c) {
  constexpr int64_t nr = Int16Gemm::kNr;
  const int64_t vector_step = kInt32Lanes < nr ? 2 * kInt32Lanes : nr * round_up(g.k, 2);
  Int32Lanes acc[rows][vectors] = {};
  for (int64_t k = 0; k < g.k; k += 2, a += 2, b += 2 * nr) {
    Int32Lanes columns[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      columns[v] = load_int32(b + v * vector_step);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      int32_t pair;
      std::memcpy(&pair, a + r * g.lda, sizeof(pair));
      const Int32Lanes row = broadcast_int32(pair);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        acc[r][v] = dot2(acc[r][v], row, columns[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      int32_t* const to = c + r * g.ldc + v * kInt32Lanes;
#if defined(__SSE2__)
      // The compiler's operator adds lanes of Ints, and lanes of 64 bits of an Int32Lanes.
      typedef int32_t Ints __attribute__((vector_size(sizeof(Int32Lanes))));
      const Int32Lanes sum =
          g.accumulates ? Int32Lanes(Ints(acc[r][v]) + Ints(load_int32(to))) : acc[r][v];
#else
      const Int32Lanes sum = g.accumulates ? acc[r][v] + load_int32(to) : acc[r][v];
#endif
      store_int32(to, sum);
    }
  }
}

constexpr auto int16_tiles = table_of<kMr>([](auto rows) {
  return table_of<kVectors>([](auto vectors) {
    return &multiply_int16_tile<decltype(rows)::value, decltype(vectors)::value>;
  });
});

template <class T>
void multiply_widened(const GemmCall<T, T, float>& g) {
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t i = 0; i < g.m; i++) {
    for (int64_t j = 0; j < g.n; j += lanes) {
      float* const to = g.c + i * g.ldc + j;
      Vector<float> acc = g.accumulates ? load_vector(to) : Vector<float>{};
      for (int64_t k = 0; k < g.k; k++) {
        float column[lanes];
        for (int64_t l = 0; l < lanes; l++)
          column[l] = static_cast<float>(g.b[(k / 2 * g.n + j + l) * 2 + k % 2]);
        const auto a = static_cast<float>(g.a[i * g.lda + k]);
        acc = multiply_add(broadcast(a), load_vector(column), acc);
      }
      store_vector(to, acc);
    }
  }
}

// Whether brgemm multiplies matrices correctly: small integers, whose sums are exact in every type,
// and sizes with a remainder in all directions.
template <class Gemm, int64_t k, class AValue, class BValue>
bool try_brgemm(const AValue& a_value, const BValue& b_value) {
  using C = typename Gemm::C;
  constexpr int64_t m = 5, n = 16, vnni = Gemm::kVnni;
  typename Gemm::A a[m * k + 64] = {};
  typename Gemm::B b[round_up(k, vnni) * n] = {};
  C c[m * n], expected[m * n] = {};
  for (int64_t i = 0; i < m * k; i++)
    a[i] = a_value(i);
  for (int64_t r = 0; r < k; r++) {
    for (int64_t j = 0; j < n; j++) {
      const auto value = b_value(r, j);
      b[(r / vnni * n + j) * vnni + r % vnni] = value;
      for (int64_t i = 0; i < m; i++)
        expected[i * n + j] += static_cast<C>(a[i * k + r]) * static_cast<C>(value);
    }
  }
  const typename Gemm::Call call{m, n, round_up(k, vnni), k, n, a, b, c, /*accumulates=*/false};
  const bool can = can_run([&] { // not without oneDNN or the instructions
    call.brgemm(/*is_vnni=*/true);
    at::native::cpublas::brgemm_release();
  });
  return can && std::equal(c, c + m * n, expected);
}

bool try_int8() {
  return try_brgemm<Int8Gemm, /*k=*/13>(
      [](int64_t i) { return static_cast<uint8_t>(255 - 37 * i); },
      [](int64_t r, int64_t j) { return static_cast<int8_t>(29 * r + 53 * j - 128); });
}

template <class T>
bool try_float16() {
  return try_brgemm<Float16Gemm<T>, /*k=*/14>(
      [](int64_t i) { return static_cast<float>(i * 37 % 15 - 7); },
      [](int64_t r, int64_t j) { return static_cast<float>((29 * r + 53 * j) % 13 - 6); });
}

// Whether the CPU has a dot product of T pairs. (Without one, torch's brgemm takes bfloat16 on
// every CPU with AVX-512 and emulates it. It widens float16 everywhere except on AMX, and
// could_pack is true only there.)
template <class T>
bool has_dot2() {
  if (at::native::cpublas::could_pack(c10::CppTypeToScalarType<T>::value))
    return true;
#if defined(__x86_64__)
  return std::is_same_v<T, c10::BFloat16> && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

bool is_onednn_enabled() {
  return at::globalContext().userEnabledMkldnn();
}

} // namespace

bool Int8Gemm::is_supported() {
  if (!is_onednn_enabled())
    return false;
  static const bool is = try_int8();
  return is;
}

void Int16Gemm::multiply(const Call& g) {
  constexpr int64_t columns = kVectors * kInt32Lanes;
  static_assert(columns % kNr == 0 || kNr % columns == 0);
  for (int64_t j = 0; j < g.n; j += columns) {
    const int64_t vectors = std::min(g.n - j, columns) / kInt32Lanes;
    const int16_t* const b = g.b + j / kNr * kNr * round_up(g.k, 2) + j % kNr * 2;
    for (int64_t rows, i = 0; i < g.m; i += rows) {
      rows = ceil_div(g.m - i, ceil_div(g.m - i, kMr));
      int16_tiles[rows - 1][vectors - 1](g, g.a + i * g.lda, b, g.c + i * g.ldc + j);
    }
  }
}

template <class T>
bool Float16Gemm<T>::is_native() {
  if (!is_onednn_enabled())
    return false;
  static const bool is = has_dot2<T>() && try_float16<T>();
  return is;
}

template <class T>
bool Float16Gemm<T>::is_fast() {
#if defined(__x86_64__)
  // On Sapphire Rapids vdpbf16ps does twice the multiply-adds of a float32 FMA in four times the
  // time (1.35e9 instructions a second against 5.5e9). Systems may hide the AMX that bfloat16 is
  // for there. Other Intel CPUs are assumed to be alike. On Zen 4 both take the same time.
  if (__builtin_cpu_is("intel") && !has_amx())
    return false;
#endif
  return is_native();
}

template <class T>
bool Float16Gemm<T>::has_amx() {
  return is_native() && at::native::cpublas::could_pack(c10::CppTypeToScalarType<T>::value);
}

template <class T>
void Float16Gemm<T>::multiply(const GemmCall<T, T, float>& g) {
  if (!is_native())
    return multiply_widened(g);
  g.brgemm(/*is_vnni=*/true);
}

template <class T>
void Float16Gemm<T>::release() {
  if (is_native())
    at::native::cpublas::brgemm_release();
}

bool Float32Gemm::is_fast() {
#if defined(CPU_CAPABILITY_AVX2)
  const auto try_float32 = [] {
    constexpr int64_t n = 16;
    const float a = 2, b[n] = {3};
    float c[n] = {};
    const Call call{1, n, 1, 1, n, &a, b, c, /*accumulates=*/false};
    return can_run([&] { multiply(call); }) && c[0] == a * b[0];
  };
  static const bool can = try_float32();
  return can && is_onednn_enabled();
#else
  return false;
#endif
}

template struct Float16Gemm<c10::BFloat16>;
template struct Float16Gemm<c10::Half>;

bool is_amx_enabled() {
#if defined(CPU_CAPABILITY_AVX512)
  // torch checks its own settings and oneDNN's.
  if (!Float16Gemm<c10::BFloat16>::has_amx())
    return false;
  // Linux grants the tile registers to a process that asks for them: init_amx asks.
  static const bool is_granted = __builtin_cpu_supports("amx-tile") &&
      __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16") &&
      at::cpu::init_amx();
  return is_granted;
#else
  return false;
#endif
}

} // namespace torch_dnnl
