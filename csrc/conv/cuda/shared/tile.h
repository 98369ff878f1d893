// Tiles of both operands in shared memory, and the products that a block makes of them.
#pragma once

#include <type_traits>

#include "conv/cuda/shared/problem.h"
#include "core/cuda/mma.h"

namespace torch_dnnl::cuda {

// A block: 4 warps, and stages of kDepth of the summed dimension.
constexpr int kDenseThreads = 128;
constexpr int kStages = 4;

// `rows` x `columns` elements in chunks. ldmatrix reads 8 rows of one chunk at once, which must lie
// in different banks: the chunks of a row are exchanged in a pattern that differs among rows whose
// chunks would share banks.
template <class T, int rows_, int columns_>
class SharedTile {
 public:
  static constexpr unsigned rows = rows_, chunks = columns_ / kChunk<T>;

  __device__ explicit SharedTile(void* memory) : chunks_(static_cast<Chunk<T>*>(memory)) {}

  __device__ Chunk<T>* chunk(unsigned row, unsigned column) const {
    constexpr unsigned kBankChunks = 8; // 16 bytes each: all banks
    constexpr unsigned kRowsPerPattern = chunks < kBankChunks ? kBankChunks / chunks : 1;
    constexpr unsigned kPatterns = chunks < kBankChunks ? chunks : kBankChunks;
    return chunks_ + row * chunks + (column ^ (row / kRowsPerPattern % kPatterns));
  }

  __device__ T at(unsigned row, unsigned column) const {
    return chunk(row, column / kChunk<T>)->at[column % kChunk<T>];
  }

 private:
  Chunk<T>* chunks_;
};

// An operand of M (or N) x K: rows are M and columns K, or the other way around.
template <class T, int size, bool depth_in_rows>
using OperandTile = std::
    conditional_t<depth_in_rows, SharedTile<T, kDepth<T>, size>, SharedTile<T, size, kDepth<T>>>;

template <int m_, int n_, int warps_m_>
struct Shape {
  static constexpr int m = m_, n = n_;
  static constexpr int warps_m = warps_m_, warps_n = kDenseThreads / 32 / warps_m_;
  static constexpr int warp_m = m / warps_m, warp_n = n / warps_n; // of one warp
};

// The sums of a warp, on tensor cores.
template <class T, class S, bool depth_in_rows>
class TensorCoreSums {
 public:
  using Sum = MmaSum<T>;

  __device__ void multiply(
      const OperandTile<T, S::m, depth_in_rows>& a,
      const OperandTile<T, S::n, depth_in_rows>& b) {
    __syncwarp(); // what lanes did before may differ; matrix instructions need them together
    const int warp = threadIdx.x / 32;
    const int m0 = warp % S::warps_m * S::warp_m, n0 = warp / S::warps_m * S::warp_n;
#pragma unroll kUnrolled
    for (int k = 0; k < kDepth<T>; k += kMmaDepth<T>) {
      uint32_t of_a[S::warp_m / 16][4], of_b[S::warp_n / 16][4];
#pragma unroll
      for (int i = 0; i < S::warp_m / 16; i++)
        load_operand<false>(a, m0 + 16 * i, k, of_a[i]);
#pragma unroll
      for (int j = 0; j < S::warp_n / 16; j++)
        load_operand<true>(b, n0 + 16 * j, k, of_b[j]);
#pragma unroll
      for (int i = 0; i < S::warp_m / 16; i++) {
#pragma unroll
        for (int j = 0; j < S::warp_n / 8; j++) {
          const auto& pair = of_b[j / 2];
          multiply_add<T>(sums_[i][j], of_a[i], {pair[j % 2 * 2], pair[j % 2 * 2 + 1]});
        }
      }
    }
  }

  // f(row, column, sums of this and of the next column) of the block's tile.
  template <class F>
  __device__ void for_each_pair(F f) const {
    const int warp = threadIdx.x / 32;
    const int m = warp % S::warps_m * S::warp_m + lane_index() / 4;
    const int n = warp / S::warps_m * S::warp_n + lane_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < S::warp_m / 16; i++) {
#pragma unroll
      for (int j = 0; j < S::warp_n / 8; j++) {
        const auto& d = sums_[i][j];
        f(m + 16 * i, n + 8 * j, d[0], d[1]);
        f(m + 16 * i + 8, n + 8 * j, d[2], d[3]);
      }
    }
  }

 private:
  // ldmatrix transposes 16-bit elements only. Others take addresses, and so registers, of their
  // own.
  static constexpr bool kLoadsMatrices = !depth_in_rows || sizeof(T) == 2;
  static constexpr int kUnrolled = kLoadsMatrices ? kDepth<T> / kMmaDepth<T> : 1;

  // The 16 rows from `first` on, of depth k on: four matrices, the first two of which differ in
  // their rows or, `by_depth`, in their depth. B is loaded by depth, so that both halves of an
  // operand come into neighbouring registers, where the instruction takes them.
  template <bool by_depth, class Operand>
  __device__ static void
  load_operand(const Operand& tile, int first, int k, uint32_t (&matrices)[4]) {
    const int lane = lane_index(), odd = lane / 8 % 2, high = lane / 16;
    const int of_rows = by_depth ? high : odd, of_depth = by_depth ? odd : high;
    if constexpr (!depth_in_rows) {
      const int row = first + lane % 8 + of_rows * 8, chunk = k / kChunk<T> + of_depth;
      load_matrices<false>(tile.chunk(row, chunk), matrices);
    } else if constexpr (kLoadsMatrices) {
      const int row = k + lane % 8 + of_depth * 8, chunk = first / kChunk<T> + of_rows;
      load_matrices<true>(tile.chunk(row, chunk), matrices);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = by_depth ? i / 2 : i % 2, depth = by_depth ? i % 2 : i / 2;
        const float value = tile.at(k + lane % 4 + depth * 4, first + lane / 4 + row * 8);
        std::memcpy(&matrices[i], &value, sizeof(value));
      }
    }
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (uint32_t& bits : matrices) {
        float value;
        std::memcpy(&value, &bits, sizeof(bits));
        bits = to_tf32(value);
      }
    }
  }

  Sum sums_[S::warp_m / 16][S::warp_n / 8][4] = {};
};

// The sums of a warp in the type's own arithmetic: lane l has rows of part l / 4 of 8 and columns
// of part l % 4 of 4.
template <class T, class S, bool depth_in_rows>
class ExactSums {
 public:
  using Sum = T;

  __device__ void multiply(
      const OperandTile<T, S::m, depth_in_rows>& a,
      const OperandTile<T, S::n, depth_in_rows>& b) {
#pragma unroll 1 // more would only be held in registers
    for (int k = 0; k < kDepth<T>; k += kChunk<T>) {
      T of_a[kRows][kChunk<T>], of_b[kColumns][kChunk<T>];
      load_operand(a, [](int i) { return row(i); }, k, of_a);
      load_operand(b, [](int j) { return column(j); }, k, of_b);
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
#pragma unroll
        for (int i = 0; i < kRows; i++) {
#pragma unroll
          for (int j = 0; j < kColumns; j++)
            sums_[i][j] += of_a[i][e] * of_b[j][e];
        }
      }
    }
  }

  template <class F>
  __device__ void for_each_pair(F f) const {
#pragma unroll
    for (int i = 0; i < kRows; i++) {
#pragma unroll
      for (int j = 0; j < kColumns; j += 2)
        f(row(i), column(j), sums_[i][j], sums_[i][j + 1]);
    }
  }

 private:
  static constexpr int kRows = S::warp_m / 8, kColumns = S::warp_n / 4;
  // Neighbours that a lane has: as many as are loaded at once along M and N; of the columns two,
  // which are stored together.
  static constexpr int kRun = depth_in_rows ? kChunk<T> : 1;
  static constexpr int kColumnRun = kRun < 2 ? 2 : kRun;

  // The i-th row of this lane.
  __device__ static int row(int i) {
    return threadIdx.x / 32 % S::warps_m * S::warp_m + (i / kRun * 8 + lane_index() / 4) * kRun +
        i % kRun;
  }

  __device__ static int column(int j) {
    return threadIdx.x / 32 / S::warps_m * S::warp_n +
        (j / kColumnRun * 4 + lane_index() % 4) * kColumnRun + j % kColumnRun;
  }

  // values[i][e] is the operand at (index(i), k + e).
  template <class Operand, class Index, int count>
  __device__ static void
  load_operand(const Operand& tile, Index index, int k, T (&values)[count][kChunk<T>]) {
    if constexpr (depth_in_rows) {
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++) {
#pragma unroll
        for (int i = 0; i < count; i += kChunk<T>) {
          const Chunk<T> chunk = *tile.chunk(k + e, index(i) / kChunk<T>);
#pragma unroll
          for (int next = 0; next < kChunk<T>; next++)
            values[i + next][e] = chunk.at[next];
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < count; i++) {
        const Chunk<T> chunk = *tile.chunk(index(i), k / kChunk<T>);
#pragma unroll
        for (int e = 0; e < kChunk<T>; e++)
          values[i][e] = chunk.at[e];
      }
    }
  }

  T sums_[kRows][kColumns] = {};
};

} // namespace torch_dnnl::cuda
