// Products of integers: by torch's brgemm, and of pairs of 16-bit numbers.
#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "conv/cpu/shared/products/products.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {
namespace {

// A register of int32 sums, and products of pairs of 16-bit numbers that are added up in it.
#if defined(CPU_CAPABILITY_AVX512)
using Sums = __m512i;
Sums load_sums(const void* from) {
  return _mm512_loadu_si512(from);
}
void store_sums(void* to, Sums sums) {
  _mm512_storeu_si512(to, sums);
}
Sums repeated(int32_t pair) {
  return _mm512_set1_epi32(pair);
}
Sums add_pairs(Sums sums, Sums a, Sums b) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}
constexpr int kVectors = 4;
#elif defined(CPU_CAPABILITY_AVX2)
using Sums = __m256i;
Sums load_sums(const void* from) {
  return _mm256_loadu_si256(static_cast<const Sums*>(from));
}
void store_sums(void* to, Sums sums) {
  _mm256_storeu_si256(static_cast<Sums*>(to), sums);
}
Sums repeated(int32_t pair) {
  return _mm256_set1_epi32(pair);
}
Sums add_pairs(Sums sums, Sums a, Sums b) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}
constexpr int kVectors = 2;
#elif defined(__SSE2__)
using Sums = __m128i;
Sums load_sums(const void* from) {
  return _mm_loadu_si128(static_cast<const Sums*>(from));
}
void store_sums(void* to, Sums sums) {
  _mm_storeu_si128(static_cast<Sums*>(to), sums);
}
Sums repeated(int32_t pair) {
  return _mm_set1_epi32(pair);
}
Sums add_pairs(Sums sums, Sums a, Sums b) {
  return _mm_add_epi32(sums, _mm_madd_epi16(a, b));
}
constexpr int kVectors = 2;
#else
typedef int32_t Sums __attribute__((vector_size(16)));
typedef int16_t Halves __attribute__((vector_size(16)));
Sums load_sums(const void* from) {
  Sums sums;
  std::memcpy(&sums, from, sizeof(sums));
  return sums;
}
void store_sums(void* to, Sums sums) {
  std::memcpy(to, &sums, sizeof(sums));
}
Sums repeated(int32_t pair) {
  return Sums{} + pair;
}
Sums add_pairs(Sums sums, Sums a, Sums b) {
  for (int i = 0; i < 4; i++)
    sums[i] += Halves(a)[2 * i] * Halves(b)[2 * i] + Halves(a)[2 * i + 1] * Halves(b)[2 * i + 1];
  return sums;
}
constexpr int kVectors = 2;
#endif

constexpr int64_t kSums = sizeof(Sums) / sizeof(int32_t);
constexpr int kRows = 6; // kRows * kVectors sums, kVectors of b and one of a are in registers

using PairProduct = PairProducts::Arguments;

// A tile of rows and vectors of columns, from a, b and c on.
template <int rows, int vectors>
void multiply_tile(const PairProduct& p, const int16_t* a, const int16_t* b, int32_t* c) {
  constexpr int64_t together = PairProducts::kTogether;
  const int64_t vector_step = kSums < together ? 2 * kSums : together * round_up(p.k, 2);
  Sums sums[rows][vectors] = {};
  for (int64_t k = 0; k < p.k; k += 2, a += 2, b += 2 * together) {
    Sums right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      right[v] = load_sums(b + v * vector_step);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      int32_t pair;
      std::memcpy(&pair, a + r * p.a_row, sizeof(pair));
      const Sums left = repeated(pair);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        sums[r][v] = add_pairs(sums[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      int32_t* const to = c + r * p.c_row + v * kSums;
#if defined(__SSE2__)
      // The sum of the lanes of two registers, by the compiler's own operator.
      typedef int32_t Ints __attribute__((vector_size(sizeof(Sums))));
      const Sums all = p.adds ? Sums(Ints(sums[r][v]) + Ints(load_sums(to))) : sums[r][v];
#else
      const Sums all = p.adds ? sums[r][v] + load_sums(to) : sums[r][v];
#endif
      store_sums(to, all);
    }
  }
}

constexpr auto tiles = table_of<kRows>([](auto rows) {
  return table_of<kVectors>(
      [](auto vectors) { return &multiply_tile<decltype(rows)::value, decltype(vectors)::value>; });
});

// Sums of products of bytes that are known, of a size with a rest in all directions.
bool try_byte_products() {
  constexpr int64_t m = 5, n = 16, k = 13, rows = 16;
  uint8_t a[m * k + 64] = {};
  int8_t b[rows * n] = {};
  int32_t c[m * n], expected[m * n] = {};
  for (int64_t i = 0; i < m * k; i++)
    a[i] = static_cast<uint8_t>(255 - 37 * i);
  for (int64_t r = 0; r < k; r++)
    for (int64_t j = 0; j < n; j++) {
      const auto value = static_cast<int8_t>(29 * r + 53 * j - 128);
      b[(r / 4 * n + j) * 4 + r % 4] = value;
      for (int64_t i = 0; i < m; i++)
        expected[i * n + j] += a[i * k + r] * value;
    }
  try {
    ByteProducts::multiply({m, n, k, k, n, a, b, c, /*adds=*/false});
    ByteProducts::release();
  } catch (const std::exception&) {
    return false; // torch was built without oneDNN, or the machine has no such instructions
  }
  return std::equal(c, c + m * n, expected);
}

} // namespace

bool ByteProducts::are_supported() {
  if (!at::globalContext().userEnabledMkldnn())
    return false;
  static const bool are = try_byte_products();
  return are;
}

void PairProducts::multiply(const PairProduct& p) {
  constexpr int64_t most = kVectors * kSums, together = kTogether;
  static_assert(most % together == 0 || together % most == 0);
  for (int64_t j = 0; j < p.n; j += most) {
    const int64_t vectors = std::min(p.n - j, most) / kSums;
    const int16_t* const b = p.b + j / together * together * round_up(p.k, 2) + j % together * 2;
    for (int64_t rows, i = 0; i < p.m; i += rows) {
      rows = ceil_div(p.m - i, ceil_div(p.m - i, kRows));
      tiles[rows - 1][vectors - 1](p, p.a + i * p.a_row, b, p.c + i * p.c_row + j);
    }
  }
}

} // namespace torch_dnnl
