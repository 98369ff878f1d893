// The matrix product that the CPU kernels of convolution are made of, in float32 or float64:
// c += a b, or c = start + a b, for a narrow b; c is held in registers while it runs.
#pragma once

#include <cstdint>

#include "core/cpu/simd.h"

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

// c = start + a b. Rows of b, c and start are whole vectors; those of a and c are at any stride,
// and start may have rows, or vectors of a row, that are one and the same.
template <class C, class ARows, class AColumns, class BRows>
struct GemmProduct {
  const C* a;
  ARows a_rows;
  AColumns a_columns;
  const C* b;
  BRows b_rows;
  const C* start;
  int64_t start_row, start_vector;
  C* c;
  int64_t c_row;
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
    a[r] = o.a + o.a_rows[first + r];
  Vector<C> sum[rows][vectors] = {};
  for (int64_t i = 0; i < k; i++) {
    const int64_t column = o.a_columns[i];
    const C* b = o.b + o.b_rows[i];
    Vector<C> row[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      row[v] = load_vector(b + v * kLanes<C>);
      if constexpr (rows > 1)
        keep_in_register<C>(row[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Vector<C> value = broadcast(a[r][column]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        sum[r][v] = multiply_add<C>(value, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      const Vector<C> before = load_vector(start + r * o.start_row + v * o.start_vector);
      store_vector(c + r * o.c_row + v * kLanes<C>, before + sum[r][v]);
    }
  }
}

template <int vectors, class C, class... Steps>
void multiply_rows(
    int64_t rows,
    int64_t k,
    int64_t first,
    const C* start,
    C* c,
    const GemmProduct<C, Steps...>& o) {
  switch (rows) {
    case 1:
      return multiply_tile<1, vectors>(k, first, start, c, o);
    case 2:
      return multiply_tile<2, vectors>(k, first, start, c, o);
    case 3:
      return multiply_tile<3, vectors>(k, first, start, c, o);
    case 4:
      return multiply_tile<4, vectors>(k, first, start, c, o);
    case 5:
      return multiply_tile<5, vectors>(k, first, start, c, o);
    default:
      return multiply_tile<kGemmRows, vectors>(k, first, start, c, o);
  }
}

} // namespace gemm_detail

// c[m x vectors] = start[m x vectors] + a[m x k] b[k x vectors]. Tiles of rows are made as equal as
// can be: a tile of few rows has too few independent sums to keep the multipliers busy.
template <class C, class... Steps>
void multiply(int64_t m, int64_t vectors, int64_t k, const GemmProduct<C, Steps...>& o) {
  const C* start = o.start;
  C* c = o.c;
  for (int64_t rows, first = 0; first < m; first += rows) {
    const int64_t left = m - first, tiles = (left + kGemmRows - 1) / kGemmRows;
    rows = (left + tiles - 1) / tiles;
    switch (vectors) {
      case 1:
        gemm_detail::multiply_rows<1>(rows, k, first, start, c, o);
        break;
      case 2:
        gemm_detail::multiply_rows<2>(rows, k, first, start, c, o);
        break;
#if defined(CPU_CAPABILITY_AVX512)
      case 3:
        gemm_detail::multiply_rows<3>(rows, k, first, start, c, o);
        break;
      default:
        gemm_detail::multiply_rows<4>(rows, k, first, start, c, o);
#endif
    }
    start += rows * o.start_row;
    c += rows * o.c_row;
  }
}

// a: any strides. b: rows of whole vectors, `b_row` apart. c: the same, `c_row` apart.
template <class C>
struct GemmOperands {
  const C* a;
  int64_t a_row, a_column;
  const C* b;
  int64_t b_row;
  C* c;
  int64_t c_row;
};

// c += a b
template <class C>
void gemm(int64_t m, int64_t vectors, int64_t k, const GemmOperands<C>& o) {
  multiply<C, Strided, Strided, Strided>(
      m,
      vectors,
      k,
      {o.a, {o.a_row}, {o.a_column}, o.b, {o.b_row}, o.c, o.c_row, kLanes<C>, o.c, o.c_row});
}

} // namespace torch_dnnl
