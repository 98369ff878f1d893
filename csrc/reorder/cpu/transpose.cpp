#include "reorder/cpu/transpose.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
// GCC's own header leaves a register undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#endif

namespace torch_dnnl::reorder_cpu {
namespace {

template <int kSize>
void transpose_elements(
    const Matrix& m,
    int64_t first_row,
    int64_t last_row,
    int64_t first_column,
    int64_t last_column) {
  for (int64_t c = first_column; c < last_column; c++) {
    char* to = m.to + m.column_offset[c];
    for (int64_t r = first_row; r < last_row; r++) {
      std::memcpy(to + r * kSize, m.from + m.row_offset[r] + c * kSize, kSize);
    }
  }
}

#if defined(__SSE2__)

constexpr int kMostLanes =
#if defined(CPU_CAPABILITY_AVX512)
    4;
#elif defined(CPU_CAPABILITY_AVX2)
    2;
#else
    1;
#endif

inline __m128i load_lane(const char* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// A register of kLanes lanes. unpack(): the elements of the low or the high half of each lane of
// `a` and `b` in turn.
template <int kLanes>
struct Register;

#define TORCH_DNNL_UNPACK(prefix)                                  \
  template <int kSize>                                             \
  static void unpack(Type a, Type b, Type& low, Type& high) {      \
    if constexpr (kSize == 1) {                                    \
      low = prefix##lo_epi8(a, b), high = prefix##hi_epi8(a, b);   \
    } else if constexpr (kSize == 2) {                             \
      low = prefix##lo_epi16(a, b), high = prefix##hi_epi16(a, b); \
    } else if constexpr (kSize == 4) {                             \
      low = prefix##lo_epi32(a, b), high = prefix##hi_epi32(a, b); \
    } else {                                                       \
      low = prefix##lo_epi64(a, b), high = prefix##hi_epi64(a, b); \
    }                                                              \
  }

template <>
struct Register<1> {
  using Type = __m128i;
  TORCH_DNNL_UNPACK(_mm_unpack)

  // Lane l from offset[l * step].
  static Type load(const char* from, const int64_t* offset, int) {
    return load_lane(from + offset[0]);
  }
  static void store(char* to, Type x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x);
  }
};
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
template <>
struct Register<2> {
  using Type = __m256i;
  TORCH_DNNL_UNPACK(_mm256_unpack)

  static Type load(const char* from, const int64_t* offset, int step) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(load_lane(from + offset[0])), load_lane(from + offset[step]), 1);
  }
  static void store(char* to, Type x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }
};
#endif

#if defined(CPU_CAPABILITY_AVX512)
template <>
struct Register<4> {
  using Type = __m512i;
  TORCH_DNNL_UNPACK(_mm512_unpack)

  static Type load(const char* from, const int64_t* offset, int step) {
    Type x = _mm512_castsi128_si512(load_lane(from + offset[0]));
    x = _mm512_inserti32x4(x, load_lane(from + offset[step]), 1);
    x = _mm512_inserti32x4(x, load_lane(from + offset[2 * step]), 2);
    return _mm512_inserti32x4(x, load_lane(from + offset[3 * step]), 3);
  }
  static void store(char* to, Type x) {
    _mm512_storeu_si512(to, x);
  }
};
#endif

#undef TORCH_DNNL_UNPACK

// kLanes * n rows from `row`, n columns of which `count` are wanted.
template <int kSize, int kLanes>
inline void transpose_tile(const Matrix& m, int64_t row, int64_t column, int64_t count) {
  using R = Register<kLanes>;
  constexpr int n = 16 / kSize;
  typename R::Type x[n], y[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; i++) {
    x[i] = R::load(m.from + column * kSize, m.row_offset + row + i, n);
  }
#pragma GCC unroll 4
  for (int half = n / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; i++) {
      R::template unpack<kSize>(x[i], x[i + n / 2], y[2 * i], y[2 * i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
      x[i] = y[i];
    }
  }
  const int64_t* offset = m.column_offset + column;
  char* to = m.to + row * kSize;
  if (count == n) {
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
      R::store(to + offset[i], x[i]);
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
      if (i < count) {
        R::store(to + offset[i], x[i]);
      }
    }
  }
}

// Whole columns of tiles, from `row` on; the last one overlaps the one before it.
template <int kSize, int kLanes>
void transpose_rows(const Matrix& m, int64_t row) {
  constexpr int64_t n = 16 / kSize;
  int64_t c = 0;
  for (; c + n <= m.columns; c += n) {
    transpose_tile<kSize, kLanes>(m, row, c, n);
  }
  if (c == m.columns) {
    return;
  }
  if (m.columns > n) {
    transpose_tile<kSize, kLanes>(m, row, m.columns - n, n);
  } else if (m.may_overread) {
    transpose_tile<kSize, kLanes>(m, row, 0, m.columns);
  } else {
    transpose_elements<kSize>(m, row, row + kLanes * n, 0, m.columns);
  }
}

// The rows from `row` on, in tiles of at most kLanes lanes.
template <int kSize, int kLanes>
void transpose_from(const Matrix& m, int64_t row) {
  constexpr int64_t n = 16 / kSize;
  for (; row + kLanes * n <= m.rows; row += kLanes * n) {
    transpose_rows<kSize, kLanes>(m, row);
  }
  if constexpr (kLanes > 1) {
    transpose_from<kSize, kLanes / 2>(m, row);
  } else if (row < m.rows && m.rows >= n) {
    transpose_rows<kSize, 1>(m, m.rows - n);
  } else {
    transpose_elements<kSize>(m, row, m.rows, 0, m.columns);
  }
}

#endif

template <int kSize>
void transpose_all(const Matrix& m) {
#if defined(__SSE2__)
  transpose_from<kSize, kMostLanes>(m, 0);
#else
  transpose_elements<kSize>(m, 0, m.rows, 0, m.columns);
#endif
}

} // namespace

void transpose(const Matrix& matrix, int64_t element_size) {
  switch (element_size) {
    case 1:
      return transpose_all<1>(matrix);
    case 2:
      return transpose_all<2>(matrix);
    case 4:
      return transpose_all<4>(matrix);
    default:
      return transpose_all<8>(matrix);
  }
}

} // namespace torch_dnnl::reorder_cpu
