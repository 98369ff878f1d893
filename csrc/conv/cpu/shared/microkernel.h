// The matrix product that the CPU kernels of convolution are made of, in float32 or float64:
// c = start + a b, where start may be c, for a narrow b; c is held in registers while it runs.
#pragma once

#include <cstdint>
#include <limits>

#include "core/cpu/vectors.h"
#include "core/math.h"

namespace torch_dnnl {

inline constexpr int kGemmRows = 6;
// The accumulators, kGemmRows * kGemmVectors, one row of b and one value of a are in registers.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kGemmVectors = 4;
#else
inline constexpr int kGemmVectors = 2;
#endif
// The most columns that b may have.
template <class C>
inline constexpr int64_t kPanel = kGemmVectors * kLanes<C>;

// Where the rows or columns of a matrix begin: at any stride, or at offsets in a list.
struct Strided {
  int64_t step;
  int64_t operator[](int64_t i) const {
    return i * step;
  }
};
using Listed = const int64_t*;

// The bounds of a clamp. NaN stays NaN.
template <class C>
struct Bounds {
  C low = -std::numeric_limits<C>::infinity(), high = std::numeric_limits<C>::infinity();
  bool are_set = false;

  [[gnu::always_inline]] Vector<C> clamp(const Vector<C>& x) const {
    return torch_dnnl::clamp(x, broadcast(low), broadcast(high));
  }
};

// c = clamp(start + a b). Rows of b, c and start are whole vectors; those of a and c are at any
// stride, and start may have rows, or vectors of a row, that are one and the same.
template <class C, class ARows = Strided, class AColumns = Strided, class BRows = Strided>
struct GemmProduct {
  struct {
    const C* data;
    ARows rows;
    AColumns columns;
  } a;
  struct {
    const C* data;
    BRows rows;
  } b;
  struct {
    const C* data;
    int64_t row, vector; // steps
  } start;
  struct {
    C* data;
    int64_t row;
  } c;
  Bounds<C> bounds{};
};

namespace gemm_detail {

// A tile has rows from `first` on, which begin at start and c. These are arguments, not a copy of
// the product for each tile: to read a copy in vectors may wait until all stores before it have
// reached the cache.
template <int rows, int vectors, class C, class... Steps>
void multiply_tile(
    int64_t k,
    int64_t first,
    const C* start,
    C* c,
    const GemmProduct<C, Steps...>& o) {
  const C* a[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
    a[r] = o.a.data + o.a.rows[first + r];
  // Lines of c, far from each other, come while the products are made: the processor does not
  // foresee the stores.
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
    for (int64_t i = 0; i < vectors * kLanes<C>; i += kCacheLine / sizeof(C))
      __builtin_prefetch(c + r * o.c.row + i, /*rw=*/1);
  Vector<C> sum[rows][vectors] = {};
  for (int64_t i = 0; i < k; i++) {
    const int64_t column = o.a.columns[i];
    const C* b = o.b.data + o.b.rows[i];
    Vector<C> row[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      row[v] = load_vector(b + v * kLanes<C>);
      if constexpr (rows > 1)
        keep_in_register(row[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Vector<C> value = broadcast(a[r][column]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        sum[r][v] = multiply_add(value, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      sum[r][v] = load_vector(start + r * o.start.row + v * o.start.vector) + sum[r][v];
  if (o.bounds.are_set) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        sum[r][v] = o.bounds.clamp(sum[r][v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      store_vector(c + r * o.c.row + v * kLanes<C>, sum[r][v]);
}

template <class C, class... Steps>
constexpr auto tiles = table_of<kGemmRows>([](auto rows) {
  return table_of<kGemmVectors>([](auto vectors) {
    return &multiply_tile<decltype(rows)::value, decltype(vectors)::value, C, Steps...>;
  });
});

} // namespace gemm_detail

// c[m x vectors] = clamp(start[m x vectors] + a[m x k] b[k x vectors]). Tiles of rows are made as
// equal as can be: a tile of few rows has too few independent sums to keep the multipliers busy.
template <class C, class... Steps>
void gemm(int64_t m, int64_t vectors, int64_t k, const GemmProduct<C, Steps...>& o) {
  const C* start = o.start.data;
  C* c = o.c.data;
  for (int64_t rows, first = 0; first < m; first += rows) {
    rows = ceil_div(m - first, ceil_div(m - first, kGemmRows));
    gemm_detail::tiles<C, Steps...>[rows - 1][vectors - 1](k, first, start, c, o);
    start += rows * o.start.row;
    c += rows * o.c.row;
  }
}

} // namespace torch_dnnl
