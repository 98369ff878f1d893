// Products on a matrix unit (AMX), whose sums stay in its tiles until all taps have been added:
// brgemm would store them for each row of the kernel, and load them for the next. A tile has 16
// rows of 64 bytes.
#pragma once

#include <algorithm>

#include "conv/cpu/shared/products/register_tiles.h"

namespace torch_dnnl {

inline constexpr int64_t kTileRows = 16, kTileRowBytes = 64;
// Pixels whose sums of a panel are computed at once, and columns that are multiplied at once.
inline constexpr int64_t kTilePixels = 128, kTileColumns = 2 * kProductLanes;
// Terms of a sum that are in a row of a tile.
template <class Products>
inline constexpr int64_t kTileTerms = kTileRowBytes / sizeof(typename Products::Left);
// Terms whose weights, of two tiles of columns, stay in the first-level cache.
template <class Products>
inline constexpr int64_t kCachedTerms = 12 * kTileTerms<Products>;

// Whether this library has instructions for these products.
#if defined(CPU_CAPABILITY_AVX512)
template <class Products>
inline constexpr bool kHasTileProducts =
    std::is_same_v<Products, ByteProducts> || std::is_same_v<Products, HalfProducts<c10::BFloat16>>;
#else
template <class Products>
inline constexpr bool kHasTileProducts = false;
#endif

// Whether the machine has a matrix unit, torch uses it, and the system lets it be used.
bool has_matrix_unit();

template <class Products>
bool has_matrix_tiles() {
  if constexpr (kHasTileProducts<Products>)
    return has_matrix_unit();
  return false;
}

// The matrix unit of the thread. While it is in use, brgemm must not be.
class MatrixUnit {
 public:
  MatrixUnit() = default;
  ~MatrixUnit();
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;

  // Tiles of inputs and sums have so many rows, up to kTileRows.
  void use_rows(int64_t rows);

 private:
  int64_t rows_ = 0;
};

// Tiles 0 to 3 are of sums; then come those of a and of b, two each.
inline constexpr int kFirstLeft = 4, kFirstRight = 6, kTiles = 8;

#if defined(CPU_CAPABILITY_AVX512)
namespace matrix_tiles_detail {

// The flags of the library do not include the instructions.
template <int tile>
inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
template <int tile>
inline void load_tile(const void* from, int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(tile));
}
template <int tile>
inline void store_tile(void* to, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(tile) : "memory");
}
template <class Products, int sums, int a, int b>
inline void add_products() {
  if constexpr (std::is_same_v<Products, ByteProducts>)
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
  else
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
}

// f(i) for i = 0 ... n - 1, as constants.
template <int n, class F>
inline void for_each_tile(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, n>());
}

// Terms of a product: of blocks of inputs, each from term `begin` to `end`.
struct Terms {
  Range blocks;
  int64_t begin, end;
};

// Where tiles of 16 rows begin, in a and in the sums.
struct TileRow {
  int64_t a, c;
};

// The products of two tiles of rows, or of one, with `vectors` tiles of columns from `column` on.
// Each row begins with `first`, with 0 if that is null, or with the sums there are. Rows of a that
// are `fetched` rows further on are prefetched, unless that is 0.
template <class Products, int rows, int vectors, class Sum>
void multiply_block(
    const TileProduct<Products>& p,
    const Terms& terms,
    const TileRow (&at)[2],
    int64_t column,
    const Sum* first,
    bool adds,
    int64_t fetched,
    Sum* c) {
  static_assert(rows <= 2 && vectors <= 2);
  constexpr int64_t sums_row = kProductColumns * sizeof(Sum);
  constexpr int64_t of_column = Products::kPack * sizeof(typename Products::Right);
  const int64_t a_row = p.a_row * sizeof(typename Products::Left);
  constexpr int64_t b_row = vectors * kProductLanes * of_column;
  Sum* const sums[] = {
      c + at[0].c * kProductColumns + column, c + at[1].c * kProductColumns + column};
  const int64_t to_second = (at[1].a - at[0].a) * a_row;
  asm volatile("" : : : "memory"); // what tiles are loaded from has been written
  for_each_tile<rows * vectors>([&](auto tile) {
    constexpr int r = tile / vectors, v = tile % vectors;
    if (adds)
      load_tile<tile>(sums[r] + v * kProductLanes, sums_row);
    else if (first != nullptr)
      load_tile<tile>(first + column + v * kProductLanes, /*row_bytes=*/0);
    else
      clear_tile<tile>();
  });
  for (int64_t i = terms.blocks.begin; i < terms.blocks.end; i++) {
    const auto* a = reinterpret_cast<const char*>(p.a[i] + terms.begin) + at[0].a * a_row;
    const auto* b = reinterpret_cast<const char*>(p.b[i] + column * p.depth) +
        terms.begin / Products::kPack * b_row;
    for (int64_t k = terms.begin; k < terms.end; k += kTileTerms<Products>) {
      if (fetched != 0)
        for (const char *next = a + fetched * a_row, *end = next + rows * kTileRows * a_row;
             next != end;
             next += a_row)
          __builtin_prefetch(next);
      load_tile<kFirstLeft>(a, a_row);
      load_tile<kFirstRight>(b, b_row);
      add_products<Products, 0, kFirstLeft, kFirstRight>();
      if constexpr (vectors == 2) {
        load_tile<kFirstRight + 1>(b + kTileRowBytes, b_row);
        add_products<Products, 1, kFirstLeft, kFirstRight + 1>();
      }
      if constexpr (rows == 2) {
        load_tile<kFirstLeft + 1>(a + to_second, a_row);
        add_products<Products, vectors, kFirstLeft + 1, kFirstRight>();
      }
      if constexpr (rows == 2 && vectors == 2)
        add_products<Products, 3, kFirstLeft + 1, kFirstRight + 1>();
      a += kTileRowBytes;
      b += kTileRows * b_row;
    }
  }
  for_each_tile<rows * vectors>([&](auto tile) {
    constexpr int r = tile / vectors, v = tile % vectors;
    store_tile<tile>(sums[r] + v * kProductLanes, sums_row);
  });
}

// f(terms) for parts of all terms, in order, whose weights stay in the first-level cache while
// tiles of rows are multiplied with them.
template <class Products, class F>
void for_each_part_of_terms(int64_t blocks, int64_t depth, const F& f) {
  constexpr int64_t most = kCachedTerms<Products>;
  const int64_t chunk = round_up(ceil_div(depth, ceil_div(depth, most)), kTileTerms<Products>);
  const int64_t at_once = std::max<int64_t>(most / depth, 1);
  for (int64_t block = 0; block < blocks; block += at_once)
    for (int64_t k = 0; k < depth; k += chunk)
      f(Terms{{block, std::min(block + at_once, blocks)}, k, std::min(k + chunk, depth)});
}

} // namespace matrix_tiles_detail

// c[m x columns] = the sum of all products, rows of c kProductColumns apart; there is memory for
// whole tiles of them. Each row of sums begins with `first`, or 0 if that is null. The depth is a
// multiple of kTileTerms, and b has as many rows, of kTileColumns that are together.
template <class Products, class Sum>
void multiply_in_tiles(
    const TileProduct<Products>& p,
    const Sum* first,
    int64_t fetched,
    Sum* c,
    MatrixUnit& unit) {
  using namespace matrix_tiles_detail;
  constexpr int64_t lanes = kProductLanes;
  const int64_t tiles = ceil_div(p.m, kTileRows);
  // The last tile ends with the last row: rows that the tile before has are computed again.
  const int64_t again = p.m < kTileRows ? 0 : tiles * kTileRows - p.m;
  const auto tile_row = [&](int64_t tile) {
    return TileRow{tile * kTileRows - (tile + 1 == tiles ? again : 0), tile * kTileRows};
  };
  unit.use_rows(std::min(p.m, kTileRows));
  for (int64_t column = 0; column < p.columns; column += kTileColumns) {
    const bool is_pair = column + lanes < p.columns;
    const auto multiply = [&](const Terms& terms) {
      const bool adds = terms.blocks.begin > 0 || terms.begin > 0;
      for (int64_t tile = 0; tile < tiles; tile += 2) {
        const TileRow at[] = {tile_row(tile), tile_row(std::min(tile + 1, tiles - 1))};
        const bool are_two = tile + 1 < tiles;
        const auto block = are_two
            ? (is_pair ? multiply_block<Products, 2, 2, Sum> : multiply_block<Products, 2, 1, Sum>)
            : (is_pair ? multiply_block<Products, 1, 2, Sum> : multiply_block<Products, 1, 1, Sum>);
        block(p, terms, at, column, first, adds, column == 0 ? fetched : 0, c);
      }
    };
    if (tiles <= 2 || p.count == 0)
      multiply({{0, p.count}, 0, p.depth});
    else
      for_each_part_of_terms<Products>(p.count, p.depth, multiply);
  }
  if (again > 0) {
    Sum* const last = c + (tiles - 1) * kTileRows * kProductColumns;
    std::copy_n(last + again * kProductColumns, (kTileRows - again) * kProductColumns, last);
  }
}
#endif

} // namespace torch_dnnl
