#include "core/cpu/transpose.h"

#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/cpu/stream.h"
#include "core/dispatch.h"
#include "core/math.h"

namespace torch_dnnl {
namespace {

// Where rows are.
struct EvenRows {
  const char* from;
  int64_t step;

  const char* operator[](int64_t row) const {
    return from + row * step;
  }
};
struct AnyRows {
  const char* from;
  const int64_t* offset;

  const char* operator[](int64_t row) const {
    return from + offset[row];
  }
};

// Where columns go.
struct Columns {
  char* to;
  const int64_t* offset;

  char* operator[](int64_t column) const {
    return to + offset[column];
  }
};

template <int kSize, class Rows>
void transpose_elements(
    const Rows& rows,
    int64_t first_row,
    int64_t last_row,
    const Columns& columns,
    int64_t first_column,
    int64_t last_column) {
  for (int64_t c = first_column; c < last_column; c++)
    for (int64_t r = first_row; r < last_row; r++)
      std::memcpy(columns[c] + r * kSize, rows[r] + c * kSize, kSize);
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

// A register of kLanes lanes: lane l from rows[row + l * step], `at` bytes after its beginning.
template <int kLanes, class Rows>
inline auto load_register(const Rows& rows, int64_t row, int step, int64_t at) {
  if constexpr (kLanes == 1) {
    return load_lane(rows[row] + at);
  } else if constexpr (kLanes == 2) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(load_lane(rows[row] + at)), load_lane(rows[row + step] + at), 1);
  } else {
    __m512i x = _mm512_castsi128_si512(load_lane(rows[row] + at));
    x = _mm512_inserti32x4(x, load_lane(rows[row + step] + at), 1);
    x = _mm512_inserti32x4(x, load_lane(rows[row + 2 * step] + at), 2);
    return _mm512_inserti32x4(x, load_lane(rows[row + 3 * step] + at), 3);
  }
}

// The elements of the low or the high half of each lane of `a` and `b` in turn.
template <int kSize, bool is_high, class Register>
C10_ALWAYS_INLINE Register unpack(Register a, Register b) {
  constexpr int n = 16 / kSize, all = sizeof(Register) / kSize;
  using Element = std::conditional_t<
      kSize == 8,
      uint64_t,
      std::conditional_t<kSize == 4, uint32_t, std::conditional_t<kSize == 2, uint16_t, uint8_t>>>;
  typedef Element Elements __attribute__((vector_size(sizeof(Register))));
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return Register(__builtin_shufflevector(
        Elements(a), Elements(b), (i / n * n + is_high * n / 2 + i % n / 2 + i % 2 * all)...));
  }(std::make_integer_sequence<int, all>());
}

// Transposes the lanes of n registers; `y` is scratch.
template <int kSize, class Register>
C10_ALWAYS_INLINE void transpose_lanes(Register (&x)[16 / kSize], Register (&y)[16 / kSize]) {
  constexpr int n = 16 / kSize;
#pragma GCC unroll 4
  for (int half = n / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; i++) {
      y[2 * i] = unpack<kSize, false>(x[i], x[i + n / 2]);
      y[2 * i + 1] = unpack<kSize, true>(x[i], x[i + n / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
      x[i] = y[i];
  }
}

// kLanes * n rows from `row`, n columns from `column`, of which `count` are wanted.
template <int kSize, int kLanes, class Rows>
inline void transpose_tile(
    const Rows& rows,
    int64_t row,
    const Columns& columns,
    int64_t column,
    int64_t count,
    bool is_streamed = false) {
  constexpr int n = 16 / kSize;
  decltype(load_register<kLanes>(rows, 0, 0, 0)) x[n], y[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; i++)
    x[i] = load_register<kLanes>(rows, row + i, n, column * kSize);
  transpose_lanes<kSize>(x, y);
#pragma GCC unroll 16
  for (int i = 0; i < n; i++)
    if (i < count)
      store(x[i], columns[column + i] + row * kSize, is_streamed);
}

// Whole columns of tiles, from `row` on; the last one overlaps the one before it.
template <int kSize, int kLanes, class Rows>
void transpose_rows(const Matrix& m, Rows rows, Columns columns, int64_t row) {
  constexpr int64_t n = 16 / kSize;
  const int64_t count = m.columns;
  for (int64_t c = 0; c + n <= count; c += n)
    transpose_tile<kSize, kLanes>(rows, row, columns, c, n);
  if (count % n == 0)
    return;
  if (count > n)
    transpose_tile<kSize, kLanes>(rows, row, columns, count - n, n);
  else if (m.may_overread)
    transpose_tile<kSize, kLanes>(rows, row, columns, 0, count);
  else
    transpose_elements<kSize>(rows, row, row + kLanes * n, columns, 0, count);
}

// Rows that are a cache line in dst, from `row` on. The pieces of a line are stored one after the
// other.
template <int kSize, class Rows>
void transpose_line(const Matrix& m, Rows rows, Columns columns, int64_t row) {
  constexpr int64_t n = 16 / kSize, tile = kMostLanes * n;
  const bool is_streamed = m.is_streamed;
  const int64_t count = m.columns;
  for (int64_t next = 0; next < count; next += n) {
    const int64_t c = std::min(next, count - n);
    for (int64_t r = row; r < row + kCacheLine / kSize; r += tile)
      transpose_tile<kSize, kMostLanes>(rows, r, columns, c, n, is_streamed);
  }
}

// The rows from `row` on, in tiles of at most kLanes lanes.
template <int kSize, int kLanes, class Rows>
void transpose_from(const Matrix& m, const Rows& rows, const Columns& columns, int64_t row) {
  constexpr int64_t n = 16 / kSize;
  for (; row + kLanes * n <= m.rows; row += kLanes * n)
    transpose_rows<kSize, kLanes>(m, rows, columns, row);
  if constexpr (kLanes > 1)
    transpose_from<kSize, kLanes / 2>(m, rows, columns, row);
  else if (row < m.rows && m.rows >= n)
    transpose_rows<kSize, 1>(m, rows, columns, m.rows - n);
  else
    transpose_elements<kSize>(rows, row, m.rows, columns, 0, m.columns);
}

// Fewer rows than fill a lane, to columns that follow each other without a gap: what is stored
// beyond a column is overwritten by the next one.
template <int kSize, class Rows>
void transpose_few_rows(const Matrix& m, const Rows& rows, const Columns& columns) {
  constexpr int n = 16 / kSize;
  int64_t c = 0;
  for (; m.column_step * (m.columns - c) >= 16 + m.column_step * (n - 1); c += n) {
    __m128i x[n], y[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
      x[i] = i < m.rows ? load_lane(rows[i] + c * kSize) : _mm_setzero_si128();
    transpose_lanes<kSize>(x, y);
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
      store(x[i], columns[c + i], false);
  }
  transpose_elements<kSize>(rows, 0, m.rows, columns, c, m.columns);
}
#endif

template <int kSize, class Rows>
void transpose_all(const Matrix& m, const Rows& rows) {
  const Columns columns{m.to, m.column_offset};
#if defined(__SSE2__)
  int64_t row = 0;
  if (m.columns >= 16 / kSize) {
    if (m.rows < 16 / kSize && m.column_step == m.rows * kSize)
      return transpose_few_rows<kSize>(m, rows, columns);
    constexpr int64_t line = kCacheLine / kSize;
    for (; row + line <= m.rows; row += line)
      transpose_line<kSize>(m, rows, columns, row);
  }
  transpose_from<kSize, kMostLanes>(m, rows, columns, row);
#else
  transpose_elements<kSize>(rows, 0, m.rows, columns, 0, m.columns);
#endif
}

template <int kSize>
void transpose_all(Matrix m) {
  if (m.row_offset != nullptr)
    return transpose_all<kSize>(m, AnyRows{m.from, m.row_offset});
  const EvenRows rows{m.from, m.row_step};
  const int64_t missing = 16 - m.columns * kSize;
  if (missing > 0 && !m.may_overread && m.row_step > 0) {
    // What follows a short row is memory of this array as far as later rows reach.
    const int64_t last = std::min(m.rows, ceil_div(missing, m.row_step));
    const Columns columns{m.to, m.column_offset};
    transpose_elements<kSize>(rows, m.rows - last, m.rows, columns, 0, m.columns);
    m.rows -= last;
    m.may_overread = true;
  }
  transpose_all<kSize>(m, rows);
}

} // namespace

void transpose(const Matrix& matrix, int64_t element_size) {
  dispatch_bytes(
      element_size, [&]<class E>(std::type_identity<E>) { transpose_all<sizeof(E)>(matrix); });
}

} // namespace torch_dnnl
