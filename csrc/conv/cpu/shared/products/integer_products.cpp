// Products of integers: by torch's brgemm, and of pairs of 16-bit numbers.
#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "conv/cpu/shared/products/pair_sums.h"
#include "conv/cpu/shared/products/products.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {
namespace {

#if defined(CPU_CAPABILITY_AVX512)
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif
constexpr int kRows = 6; // kRows * kVectors sums, kVectors of b and one of a are in registers

using PairProduct = PairProducts::Arguments;

// A tile of rows and vectors of columns, from a, b and c on.
template <int rows, int vectors>
void multiply_tile(const PairProduct& p, const int16_t* a, const int16_t* b, int32_t* c) {
  constexpr int64_t together = PairProducts::kTogether;
  const int64_t vector_step = kIntSums < together ? 2 * kIntSums : together * round_up(p.k, 2);
  IntSums sums[rows][vectors] = {};
  for (int64_t k = 0; k < p.k; k += 2, a += 2, b += 2 * together) {
    IntSums right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      right[v] = load_sums(b + v * vector_step);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      int32_t pair;
      std::memcpy(&pair, a + r * p.a_row, sizeof(pair));
      const IntSums left = repeated(pair);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        sums[r][v] = add_pairs(sums[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      int32_t* const to = c + r * p.c_row + v * kIntSums;
#if defined(__SSE2__)
      // The sum of the lanes of two registers, by the compiler's own operator.
      typedef int32_t Ints __attribute__((vector_size(sizeof(IntSums))));
      const IntSums all = p.adds ? IntSums(Ints(sums[r][v]) + Ints(load_sums(to))) : sums[r][v];
#else
      const IntSums all = p.adds ? sums[r][v] + load_sums(to) : sums[r][v];
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
  const bool can = can_do([&] { // not without oneDNN, or on a machine without such instructions
    ByteProducts::multiply({m, n, k, k, n, a, b, c, /*adds=*/false});
    ByteProducts::release();
  });
  return can && std::equal(c, c + m * n, expected);
}

} // namespace

bool ByteProducts::are_supported() {
  if (!at::globalContext().userEnabledMkldnn())
    return false;
  static const bool are = try_byte_products();
  return are;
}

void PairProducts::multiply(const PairProduct& p) {
  constexpr int64_t most = kVectors * kIntSums, together = kTogether;
  static_assert(most % together == 0 || together % most == 0);
  for (int64_t j = 0; j < p.n; j += most) {
    const int64_t vectors = std::min(p.n - j, most) / kIntSums;
    const int16_t* const b = p.b + j / together * together * round_up(p.k, 2) + j % together * 2;
    for (int64_t rows, i = 0; i < p.m; i += rows) {
      rows = ceil_div(p.m - i, ceil_div(p.m - i, kRows));
      tiles[rows - 1][vectors - 1](p, p.a + i * p.a_row, b, p.c + i * p.c_row + j);
    }
  }
}

} // namespace torch_dnnl
