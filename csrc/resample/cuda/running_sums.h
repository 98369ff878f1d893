// The running sums of kernels.h, in the registers of a thread.
#pragma once

#include "resample/cuda/kernel_arguments.h"

namespace torch_dnnl::cuda {

template <class W, int kSums, int kVector>
class RunningSums {
 public:
  __device__ __forceinline__ RunningSums(const KernelArguments<W>& args, const Place& at)
      : next_(args.tables.row(args.tables.h, at.begin).first),
        rows_(args.tables, args.tables.h, at.begin),
        readers_(args.tables, args.tables.h_transpose, next_) {}

  // Completes row y of dst, the one after the last: adds the rows of src that it reads beside those
  // added before. `weigh(row, sum)` adds a row, weighed along D and W.
  template <class F>
  __device__ __forceinline__ void complete(int32_t y, W (&completed)[kVector], F&& weigh) {
    const int32_t end = rows_.next().end();
    for (; next_ < end; next_++) {
      const Taps<W> readers = readers_.next();
      W row[kVector] = {};
      weigh(next_, row);
#pragma unroll
      for (int i = 0; i < kSums; i++) {
        if (y + i < readers.first || y + i >= readers.end())
          continue;
        const W weight = readers.weights[(y + i) & (kSums - 1)];
#pragma unroll
        for (int v = 0; v < kVector; v++)
          sum_[i][v] += weight * row[v];
      }
    }
#pragma unroll
    for (int v = 0; v < kVector; v++) {
      completed[v] = sum_[0][v];
#pragma unroll
      for (int i = 1; i < kSums; i++)
        sum_[i - 1][v] = sum_[i][v];
      sum_[kSums - 1][v] = 0;
    }
  }

 private:
  W sum_[kSums][kVector] = {}; // of the rows of dst from the next one to be complete on
  int32_t next_;               // row of src
  TapRows<W> rows_, readers_;
};

} // namespace torch_dnnl::cuda
