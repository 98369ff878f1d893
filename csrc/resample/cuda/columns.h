// The kernel of threads that walk down a column of dst: of the sliding window, and of running sums
// of pixels.
#pragma once

#include "resample/cuda/kernel_arguments.h"

namespace torch_dnnl::cuda {

// Columns: what a thread reads in a row of src. Rows: how rows of dst are made of rows of src.
template <class T, int kThreads, int kVector, class Columns, class Rows>
__global__ void __launch_bounds__(kThreads)
    column_kernel(const __grid_constant__ KernelArguments<compute_t<T>> args) {
  using W = compute_t<T>;
  const uint32_t worker = blockIdx.x * kThreads + threadIdx.x;
  if (worker >= args.workers)
    return;
  const Place at = place(args, worker);
  const Columns columns(args, at.column);
  const TapLoop<W> planes = args.tables.loop(args.tables.d, at.d);
  const T* src = static_cast<const T*>(args.src) + at.src + planes.first * args.src_stride[2];
  T* dst = static_cast<T*>(args.dst) + at.dst + at.column * kVector;

  Rows rows(args, at);
  for (int32_t y = at.begin; y < at.end; y++) {
    W sum[kVector];
    rows.complete(y, sum, [&](int32_t row, W(&row_sum)[kVector]) {
      const T* line = src + row * args.src_stride[3]; // of the first plane
      planes.for_each([&](int32_t, W weight) {
        columns.add(line, weight, row_sum);
        line += args.src_stride[2];
      });
    });
    Vector<T, kVector> out;
#pragma unroll
    for (int v = 0; v < kVector; v++)
      out.at[v] = result<T>(sum[v]);
    if (args.has_empty_rows) {
      const bool all = planes.count == 0 || args.tables.row(args.tables.h, y).count == 0;
      fill_empty(args, columns, all, out);
    }
    store_vector<kVector>(dst + y * args.dst_stride[3], out);
  }
}

} // namespace torch_dnnl::cuda
