// A checked problem made ready for the fast CUDA kernels: images as rows, tables, launch sizes.
#pragma once

#include <algorithm>
#include <utility>

#include "core/math.h"
#include "resample/cuda/kernel_arguments.h"
#include "resample/cuda/make_tables.h"
#include "resample/problem.h"

namespace torch_dnnl::cuda {

// Both images as rows of dense elements: [N, C, D, H, W * inner]. `inner` counts the neighbours
// that are weighed alike: the channels of NXC (then c is 1), times W where W is copied; 1 in NCX.
struct RowImages {
  const void* src;
  void* dst;
  c10::ScalarType dtype; // of both
  int64_t n, c, d, h, w; // of dst
  int64_t src_h, src_w;
  int64_t inner;
  int64_t src_stride[4], dst_stride[4]; // of N, C, D, H, in elements; 0 where the size is 1

  int64_t row() const {
    return w * inner;
  }
  int64_t src_row() const {
    return src_w * inner;
  }

  // Whether vectors of so many elements can be loaded from, or stored to, any multiple of them in a
  // row.
  bool loads(int64_t elements) const {
    return are_aligned(src, src_stride, elements);
  }
  bool stores(int64_t elements) const {
    return are_aligned(dst, dst_stride, elements) && row() % elements == 0;
  }

 private:
  bool are_aligned(const void* data, const int64_t (&stride)[4], int64_t elements) const {
    return is_aligned(data, elements * c10::elementSize(dtype)) &&
        std::all_of(stride, stride + 4, [&](int64_t s) { return s % elements == 0; });
  }
};

template <class W>
struct ResamplePlan {
  const ResampleProblem& problem;
  Tables<W> tables; // of each index of dst, what it reads
  RowImages images;
};

constexpr int64_t kLongestAxis = 1 << 17; // tables of longer axes are not kept on the host
constexpr int64_t kIndexLimit = std::numeric_limits<int32_t>::max();

// Whether the pixels of a row, and the channels of a pixel with nxc, are neighbours in both images.
inline bool has_dense_rows(const ResampleProblem& p, bool nxc) {
  const int64_t inner = nxc ? p.c : 1;
  return (!nxc || (p.src_stride[1] == 1 && p.dst_stride[1] == 1)) &&
      (p.src_size[2] == 1 || p.src_stride[4] == inner) &&
      (p.dst_size[2] == 1 || p.dst_stride[4] == inner);
}

inline bool has_dense_rows(const ResampleProblem& p) {
  return has_dense_rows(p, p.channels_innermost) || has_dense_rows(p, false);
}

// The images of a problem with dense rows, with the axes that are copied merged.
template <class W>
RowImages row_images(const ResampleProblem& p, const Tables<W>& tables) {
  const bool nxc = p.channels_innermost && has_dense_rows(p, true);
  RowImages m{p.src, p.dst, p.dst_dtype};
  m.n = p.n, m.c = nxc ? 1 : p.c, m.inner = nxc ? p.c : 1;
  m.d = p.dst_size[0], m.h = p.dst_size[1], m.w = p.dst_size[2];
  m.src_h = p.src_size[1], m.src_w = p.src_size[2];
  if (tables[2]->identity) {
    m.inner *= m.w;
    m.w = m.src_w = 1;
  }
  const int64_t dst_sizes[] = {m.n, m.c, m.d, m.h};
  const int64_t src_sizes[] = {m.n, m.c, p.src_size[0], m.src_h};
  for (int i = 0; i < 4; i++) {
    m.src_stride[i] = src_sizes[i] == 1 ? 0 : p.src_stride[i];
    m.dst_stride[i] = dst_sizes[i] == 1 ? 0 : p.dst_stride[i];
  }
  if (!tables[0]->identity || !tables[1]->identity)
    return m;
  // Planes whose rows follow each other are one higher plane.
  int64_t src_row = m.h == 1 ? m.src_row() : m.src_stride[3];
  int64_t dst_row = m.h == 1 ? m.row() : m.dst_stride[3];
  int64_t* const sizes[] = {&m.n, &m.c, &m.d};
  for (int i = 2; i >= 0; i--) {
    if (*sizes[i] == 1)
      continue;
    if (m.src_stride[i] != m.h * src_row || m.dst_stride[i] != m.h * dst_row ||
        m.h * *sizes[i] > kIndexLimit)
      break;
    m.h *= std::exchange(*sizes[i], 1);
    m.src_stride[i] = m.dst_stride[i] = 0;
    m.src_stride[3] = src_row, m.dst_stride[3] = dst_row;
  }
  m.src_h = m.h;
  return m;
}

constexpr int64_t kMostRowsPerWorker = 16;

// Whether a row, and the number of workers in the worst case, can be counted in 32 bits.
inline bool has_short_indices(const RowImages& m) {
  const int64_t elements = m.n * m.c * m.d * m.h * m.row();
  return std::max(m.row(), m.src_row()) <= kIndexLimit &&
      elements / std::min(m.h, kMostRowsPerWorker) <= kIndexLimit / 2; // the last strip is shorter
}

#ifdef TORCH_DNNL_CUDA_ON_HOST
constexpr int64_t kResidentThreads = 1 << 5; // so that small problems have strips of several rows
#else
constexpr int64_t kResidentThreads = 1 << 18; // of a GPU with 132 multiprocessors
#endif

// For workers that take one of `columns` parts of a row of dst each, and as many rows as leave
// enough workers to fill a GPU twice.
template <class W>
KernelArguments<W>
make_arguments(const ResamplePlan<W>& plan, int64_t columns, int64_t threads_per_worker) {
  const RowImages& m = plan.images;
  const int64_t planes = m.n * m.c * m.d;
  const int64_t rows = columns * m.h * planes * threads_per_worker / (2 * kResidentThreads);
  const int64_t rows_per_strip = std::clamp<int64_t>(rows, 1, std::min(kMostRowsPerWorker, m.h));
  const int64_t strips = ceil_div(m.h, rows_per_strip);
  KernelArguments<W> args;
  args.src = m.src, args.dst = m.dst;
  std::copy_n(m.src_stride, 4, args.src_stride);
  std::copy_n(m.dst_stride, 4, args.dst_stride);
  args.height = static_cast<int32_t>(m.h);
  args.row = static_cast<int32_t>(m.row());
  args.src_row = static_cast<int32_t>(m.src_row());
  args.inner = static_cast<int32_t>(m.inner);
  args.rows_per_strip = static_cast<int32_t>(rows_per_strip);
  args.workers = static_cast<uint32_t>(columns * strips * planes);
  args.by_columns = Divisor(columns);
  args.by_strips = Divisor(strips);
  args.by_d = Divisor(m.d);
  args.by_c = Divisor(m.c);
  args.by_inner = Divisor(m.inner);
  for (const auto& table : plan.tables)
    args.has_empty_rows |= table->has_empty_rows;
  store(&args.fill, m.dtype, 0, static_cast<W>(plan.problem.extrapolation_value));
  std::fill_n(args.tables.identity.weights, kMostSlotsOfIdentity, W(1));
  return args;
}

// How many taps the records of the axes have room for; those of D, as many as there are.
struct Slots {
  int64_t h, w;
  int64_t h_transpose = 0; // 0: the kernel does not need this table
};

// Of each row of src, the rows of dst that read it.
template <class W>
SharedTable<W> readers_of(const ResamplePlan<W>& plan) {
  return cached_table<W>(plan.problem.axes[1], !plan.problem.transposed);
}

// What the records of a call are made from. Sets where each table is.
template <class W>
TapSources<W> tap_sources(const ResamplePlan<W>& plan, const Slots& slots, TapTables<W>& tables) {
  TapSources<W> sources;
  const auto add = [&](int axis, const HostTable<W>& host, bool transposed, int64_t slots) {
    return host.identity ? TapTable{} : sources.add({plan.problem.axes[axis], transposed}, slots);
  };
  const bool transposed = plan.problem.transposed;
  tables.d = add(0, *plan.tables[0], transposed, plan.tables[0]->width);
  tables.h = add(1, *plan.tables[1], transposed, slots.h);
  tables.w = add(2, *plan.tables[2], transposed, slots.w);
  if (slots.h_transpose > 0)
    tables.h_transpose = add(1, *readers_of(plan), !transposed, slots.h_transpose);
  return sources;
}

// Launches the instance of a kernel that has room for the tables of a call, and no more than that
// takes. If none has, the tables are built on the device.
template <class W>
void launch_with_tables(
    const ResamplePlan<W>& plan,
    const KernelInstances<W>& kernel,
    dim3 grid,
    dim3 block,
    size_t shared_bytes,
    KernelArguments<W> args,
    const Slots& slots) {
  const TapSources<W> sources = tap_sources(plan, slots, args.tables);
  const auto run = [&]<int kTableBytes>(void (*instance)(ArgumentsWithTables<W, kTableBytes>)) {
    ArgumentsWithTables<W, kTableBytes> with_tables(args);
    if (args.tables.memory == nullptr)
      copy_records(sources, with_tables.records);
    launch(instance, grid, block, shared_bytes, with_tables);
  };
  if (sources.bytes <= kFewTableBytes)
    return run(kernel.few);
  if (sources.bytes <= kMostTableBytes)
    return run(kernel.most);
  const Scratch memory = build_records(sources);
  args.tables.memory = static_cast<const unsigned char*>(memory.data());
  run(kernel.few);
}

// Runs a kernel whose workers are threads, each with a vector of every row of dst.
template <class W>
void run_threads(
    const ResamplePlan<W>& plan,
    const KernelInstances<W>& kernel,
    int threads, // of a block
    int64_t vector,
    const Slots& slots) {
  const KernelArguments<W> args = make_arguments(plan, plan.images.row() / vector, 1);
  const dim3 grid(ceil_div(args.workers, threads));
  launch_with_tables(plan, kernel, grid, dim3(threads), 0, args, slots);
}

template <class T, int kThreads, int kVector, class Columns, class Rows>
void run_columns(const ResamplePlan<compute_t<T>>& plan, const Slots& slots) {
  const KernelInstances<compute_t<T>> kernel{
      column_kernel<T, kThreads, kVector, Columns, Rows>,
      column_kernel<T, kThreads, kVector, Columns, Rows>};
  run_threads(plan, kernel, kThreads, kVector, slots);
}

} // namespace torch_dnnl::cuda
