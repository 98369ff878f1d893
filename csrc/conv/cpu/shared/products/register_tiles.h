// Products whose sums stay in registers until they are results: of machines that add up products of
// four bytes, or of two of bfloat16, in one instruction. brgemm leaves sums in memory, where
// another pass finds them; here that pass is saved, and results are stored while the next ones are
// computed.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "conv/cpu/shared/products/products.h"
#include "core/cpu/simd.h"

namespace torch_dnnl {

// Whether the machine has such instructions, and no matrix unit, which brgemm uses.
template <class Products>
bool has_register_tiles() {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<Products, ByteProducts>)
    return __builtin_cpu_supports("avx512vnni") && !__builtin_cpu_supports("amx-int8");
  if constexpr (std::is_same_v<Products, HalfProducts<c10::BFloat16>>)
    return __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_supports("amx-bf16");
#endif
  return false;
}

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kTileVectors = 4; // of the columns of a whole panel
using TileSums = __m512i;

namespace register_tiles_detail {

// Each 4 bytes of a by those of b. (The flags of the library do not include the instructions.)
template <class Products>
inline TileSums add_products(TileSums sums, TileSums a, TileSums b) {
  if constexpr (std::is_same_v<Products, ByteProducts>)
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  else
    asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  return sums;
}

// Rows from `row` on. End: what sums begin with, first(vector), and what becomes of them,
// store(sums, row).
template <class Products, int rows, class End>
void compute_tile(const typename Products::Arguments& p, int64_t row, const End& end) {
  const auto* a = reinterpret_cast<const char*>(p.a + row * p.a_row);
  const auto* b = reinterpret_cast<const char*>(p.b);
  const int64_t a_row = p.a_row * sizeof(*p.a);
  TileSums sums[rows][kTileVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; v++) {
    sums[0][v] = end.first(v);
#pragma GCC unroll 6
    for (int r = 1; r < rows; r++)
      sums[r][v] = sums[0][v];
  }
  for (int64_t k = 0; k < p.k; k += Products::kPack, a += 4, b += kTileVectors * 64) {
    TileSums right[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; v++)
      right[v] = _mm512_loadu_si512(b + v * 64);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
      int32_t four;
      std::memcpy(&four, a + r * a_row, sizeof(four));
      const TileSums left = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; v++)
        sums[r][v] = add_products<Products>(sums[r][v], left, right[v]);
    }
  }
  end.store(sums, row);
}

} // namespace register_tiles_detail

// All rows of a product with a whole panel, in tiles of as many rows as leave the fewest to compute
// twice: the last tile ends with the last row.
template <class Products, class End>
void multiply_in_registers(const typename Products::Arguments& p, const End& end) {
  using register_tiles_detail::compute_tile;
  constexpr int64_t most = 6, least = 4;
  const auto multiply = [&]<int rows>(std::integral_constant<int, rows>) {
    for (int64_t i = 0; i < p.m; i += rows)
      compute_tile<Products, rows>(p, std::min(i, p.m - rows), end);
  };
  const auto computed = [&](int64_t rows) { return round_up(p.m, rows); };
  if (p.m < least)
    return multiply(std::integral_constant<int, 1>());
  int64_t rows = most;
  while (rows > p.m)
    rows--;
  for (int64_t fewer = rows - 1; fewer >= least; fewer--)
    if (computed(fewer) < computed(rows))
      rows = fewer;
  if (rows == 6)
    multiply(std::integral_constant<int, 6>());
  else if (rows == 5)
    multiply(std::integral_constant<int, 5>());
  else
    multiply(std::integral_constant<int, 4>());
}
#endif

} // namespace torch_dnnl
