// The sums that open_sums.h describes, in the registers of a thread.
#pragma once

#include "resample/cuda/job.h"

namespace torch_dnnl::cuda {

template <class W, int kOpen, int kVector>
struct OpenSums {
  W sum[kOpen][kVector] = {}; // of the rows of dst from the next one to be complete on
  int32_t next = 0;           // row of src

  // Completes row y of dst, the one after the last: adds the rows of src that it reads beside those
  // added before. `weigh(row, sum)` adds a row, weighed along D and W.
  template <class F>
  __device__ __forceinline__ void
  complete(const Job<W>& job, const Place& at, int32_t y, W (&completed)[kVector], F&& weigh) {
    const Taps<W> rows = job.tables.row(job.tables.h, y);
    if (y == at.begin)
      next = rows.first;
    for (; next < rows.end(); next++) {
      const Taps<W> readers = job.tables.row(job.tables.h_transpose, next);
      W row[kVector] = {};
      weigh(next, row);
#pragma unroll
      for (int i = 0; i < kOpen; i++) {
        if (y + i < readers.first || y + i >= readers.end())
          continue;
        const W weight = readers.weights[(y + i) & (kOpen - 1)];
#pragma unroll
        for (int v = 0; v < kVector; v++)
          sum[i][v] += weight * row[v];
      }
    }
#pragma unroll
    for (int v = 0; v < kVector; v++) {
      completed[v] = sum[0][v];
#pragma unroll
      for (int i = 1; i < kOpen; i++)
        sum[i - 1][v] = sum[i][v];
      sum[kOpen - 1][v] = 0;
    }
  }
};

} // namespace torch_dnnl::cuda
