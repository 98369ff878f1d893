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

// Whether the machine has such instructions, and no matrix unit, which is faster.
template <class Products>
bool has_register_tiles() {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<Products, ByteProducts>)
    return __builtin_cpu_supports("avx512vnni") && !HalfProducts<c10::BFloat16>::have_tiles();
  if constexpr (std::is_same_v<Products, HalfProducts<c10::BFloat16>>)
    return Products::are_native() && !Products::have_tiles();
#endif
  return false;
}

// Tiles have 4 to 6 rows, as many as leave the fewest to compute twice; or 1.
inline int64_t rows_of_tiles(int64_t m) {
  int64_t rows = 1;
  for (const int64_t more : {4, 5, 6})
    if (more <= m && (rows == 1 || round_up(m, more) <= round_up(m, rows)))
      rows = more;
  return rows;
}

// Sums of several products of equal depths: of m rows of each a with a panel b of so many columns.
template <class Products>
struct TileProduct {
  int64_t m, columns, depth, a_row, count;
  const typename Products::Left* const* a;
  const typename Products::Right* const* b;
};

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kTileVectors = 4; // of the columns of a panel, at most
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
template <class Products, int rows, int vectors, class End>
void compute_tile(const TileProduct<Products>& p, int64_t row, const End& end) {
  TileSums sums[rows][vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) {
    sums[0][v] = end.first(v);
#pragma GCC unroll 6
    for (int r = 1; r < rows; r++)
      sums[r][v] = sums[0][v];
  }
  const int64_t a_row = p.a_row * sizeof(typename Products::Left);
  for (int64_t i = 0; i < p.count; i++) {
    const auto* a = reinterpret_cast<const char*>(p.a[i]) + row * a_row;
    const auto* b = reinterpret_cast<const char*>(p.b[i]);
    for (int64_t k = 0; k < p.depth; k += Products::kPack, a += 4, b += vectors * 64) {
      TileSums right[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++)
        right[v] = _mm512_loadu_si512(b + v * 64);
#pragma GCC unroll 6
      for (int r = 0; r < rows; r++) {
        int32_t four;
        std::memcpy(&four, a + r * a_row, sizeof(four));
        const TileSums left = _mm512_set1_epi32(four);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
          sums[r][v] = add_products<Products>(sums[r][v], left, right[v]);
      }
    }
  }
  end.store(sums, row);
}

} // namespace register_tiles_detail

// All rows of a product, in tiles: the last one ends with the last row.
template <class Products, class End>
void multiply_in_registers(const TileProduct<Products>& p, const End& end) {
  const auto multiply = [&]<int rows, int vectors>() {
    for (int64_t i = 0; i < p.m; i += rows)
      register_tiles_detail::compute_tile<Products, rows, vectors>(p, std::min(i, p.m - rows), end);
  };
  const auto multiply_part = [&]<int vectors>() {
    if (p.m >= 6)
      multiply.template operator()<6, vectors>();
    else
      multiply.template operator()<1, vectors>();
  };
  switch (p.columns / kProductLanes) {
    case 1:
      return multiply_part.template operator()<1>();
    case 2:
      return multiply_part.template operator()<2>();
    case 3:
      return multiply_part.template operator()<3>();
    default:
      break;
  }
  switch (rows_of_tiles(p.m)) {
    case 6:
      return multiply.template operator()<6, kTileVectors>();
    case 5:
      return multiply.template operator()<5, kTileVectors>();
    case 4:
      return multiply.template operator()<4, kTileVectors>();
    default:
      return multiply.template operator()<1, kTileVectors>();
  }
}
#endif

} // namespace torch_dnnl
