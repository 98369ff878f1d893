// Rows in parts: a block has a part of one long row, or of each of a few short ones. A thread stays
// in its row, so that what belongs to the row is found once for all of its packs, a row's threads
// apart from each other.
#pragma once

#include "reorder/cuda/rows.h"

namespace torch_dnnl::reorder_cuda {

// Strides and offsets of src and dst are in bytes.
struct RowParts {
  uint32_t rows, elements; // elements: of a row
  int lanes_log2;          // threads of a row in a block
  cuda::Divisor parts;
  int axes; // of the rows, the innermost one first
  cuda::Divisor count[kMaxAxes];
  Offsets stride[kMaxAxes];
  Offsets offset;

  // Where the thread's row begins, and the first of its `packs` packs in the row. False: the row
  // is beyond the last one.
  __device__ __forceinline__ bool
  locate(uint32_t packs, bool has_tensors, Offsets& at, uint32_t& first) const {
    const uint32_t lanes = 1u << lanes_log2;
    uint32_t row = blockIdx.x;
    const uint32_t part = parts.split(row);
    first = part * packs * lanes + threadIdx.x % lanes;
    row = row * (kThreads / lanes) + (threadIdx.x >> lanes_log2);
    if (row >= rows)
      return false;
    for (int array = 0; array < kArrays; array++)
      at[array] = offset[array];
    for (int a = 0; a < axes; a++)
      add_steps(at, a + 1 < axes ? count[a].split(row) : row, stride[a], has_tensors);
    return true;
  }

  // A thread has `packs` packs of `width` elements.
  RowParts(const boxes::Box& box, int width, int packs, int64_t src_size, int64_t dst_size)
      : rows(1),
        elements(static_cast<uint32_t>(box.axes.back().extent)),
        axes(static_cast<int>(box.axes.size()) - 1),
        offset(in_bytes(box.offset, src_size, dst_size)) {
    for (int a = 0; a < axes; a++) {
      const boxes::Axis& axis = box.axes[axes - 1 - a];
      rows *= static_cast<uint32_t>(axis.extent);
      count[a] = cuda::Divisor(axis.extent);
      stride[a] = in_bytes(axis.stride, src_size, dst_size);
    }
    lanes_log2 = rows == 1 ? kMostLog2 : best_lanes_log2(elements, width * packs);
    parts = cuda::Divisor(parts_of_row(width * packs));
  }

  int64_t parts_of_row(int of_thread) const {
    return ceil_div(elements, of_thread << lanes_log2);
  }

  int64_t blocks(int of_thread) const {
    return parts_of_row(of_thread) * ceil_div(rows, kThreads >> lanes_log2);
  }

  // The share of a row in the places that there are for it.
  static double use(int64_t elements, int of_thread, int lanes_log2) {
    return static_cast<double>(elements) /
        static_cast<double>(round_up(elements, int64_t(of_thread) << lanes_log2));
  }

  static double best_use(int64_t elements, int of_thread) {
    double best = 0;
    for (int log2 = kFewestLog2; log2 <= kMostLog2; log2++)
      best = std::max(best, use(elements, of_thread, log2));
    return best;
  }

  // How many threads of a row leave the fewest places idle, or nearly: as many as may be.
  static int best_lanes_log2(int64_t elements, int of_thread) {
    const double best = best_use(elements, of_thread);
    int log2 = kMostLog2;
    while (use(elements, of_thread, log2) < 0.9 * best)
      log2--;
    return log2;
  }

  static constexpr int kFewestLog2 = 2, kMostLog2 = 8;
  static_assert(kThreads == 1 << kMostLog2);
};

} // namespace torch_dnnl::reorder_cuda
