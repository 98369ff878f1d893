// Transposing a matrix of elements of 1, 2, 4 or 8 bytes in registers.
//
// A register holds one, two or four lanes of 16 bytes, and a tile is as many matrices of
// n x n elements (n of them are 16 bytes), one per lane and one below the other. Interleaving the
// lower and the upper half of n vectors log2(n) times transposes each lane; the lanes of a result
// are then pieces of one column and lie together. So a tile is read 16 bytes at a time and written
// whole registers at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace torch_dnnl {

struct Matrix {
  // Row r, contiguous, is at from + row_offset[r], or at from + r * row_step if there are no
  // offsets; column c, contiguous, goes to to + column_offset[c]. In bytes.
  const char* from;
  const int64_t* row_offset; // or null
  int64_t row_step;
  int64_t rows;
  char* to;
  const int64_t* column_offset;
  int64_t column_step; // if they are evenly apart, else 0
  int64_t columns;
  // Whether 16 bytes may be read at the beginning of rows that are shorter.
  bool may_overread;
  // Whether whole lines of columns are streamed; they begin where lines do.
  bool is_streamed;
};

void transpose(const Matrix& matrix, int64_t element_size);

// Rows of numbers that lie next to each other, `row_step` from one to the next, become columns that
// are `column_step` apart.
template <class T>
void transpose_numbers(
    const T* from,
    int64_t row_step,
    int64_t rows,
    T* to,
    int64_t column_step,
    int64_t columns) {
  constexpr int64_t most = 256, size = sizeof(T); // most: columns at a time
  int64_t offsets[most];
  for (int64_t i = 0; i < std::min(most, columns); i++)
    offsets[i] = i * column_step * size;
  for (int64_t first = 0; first < columns; first += most) {
    transpose(
        {reinterpret_cast<const char*>(from + first),
         nullptr,
         row_step * size,
         rows,
         reinterpret_cast<char*>(to + first * column_step),
         offsets,
         column_step * size,
         std::min(most, columns - first),
         /*may_overread=*/false,
         /*is_streamed=*/false},
        size);
  }
}

} // namespace torch_dnnl
