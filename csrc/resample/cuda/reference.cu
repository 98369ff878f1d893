// The axis tables are built on the device, by the function that builds them on the host, into
// memory of torch's allocator: one launch for the rows of all axes, one for those of their
// transposes.
#include "resample/cuda/reference.h"

#include <algorithm>
#include <utility>

#include "core/cuda/launch.h"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "resample/host_table.h"
#include "resample/reference.h"

namespace torch_dnnl::cuda {
namespace {

// Tables that the kernels below may write; indices run over the rows of all axes.
template <class W>
struct BuildTables {
  AxisSpec spec[3];
  AxisTable<W> table[3];

  // Takes the rows of the axes before it from `row`.
  TORCH_DNNL_HD static int axis_of(int64_t& row, const int64_t (&rows)[3]) {
    int a = 0;
    while (row >= rows[a])
      row -= rows[a++];
    return a;
  }
};

template <class W>
struct BuildRows : BuildTables<W> {
  TORCH_DNNL_HD void operator()(int64_t o) const {
    const int a = this->axis_of(o, {this->table[0].out, this->table[1].out, this->table[2].out});
    const AxisTable<W>& t = this->table[a];
    build_row(
        this->spec[a],
        o,
        const_cast<int64_t*>(t.start) + o,
        const_cast<int64_t*>(t.count) + o,
        const_cast<W*>(t.weights) + o * t.width);
  }
};

template <class W>
struct BuildTransposedRows : BuildTables<W> {
  bool flipped[3];

  TORCH_DNNL_HD void operator()(int64_t i) const {
    const int a = this->axis_of(i, {this->table[0].in, this->table[1].in, this->table[2].in});
    const AxisTable<W>& t = this->table[a];
    build_transposed_row(
        t.start,
        t.count,
        t.out,
        flipped[a],
        i,
        const_cast<int64_t*>(t.first) + i,
        const_cast<int64_t*>(t.last) + i);
  }
};

template <template <class> class Functor>
void run(const ResampleProblem& p) {
  const bool transposed = p.transposed;
  dispatch(ImageTypes{}, p.src_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using W = compute_t<T>;
    int64_t indices = 0, weights = 0;
    for (const AxisSpec& spec : p.axes) {
      indices += 2 * spec.out + (transposed ? 2 * spec.in : 0);
      weights += table_size(spec.out, row_capacity(spec));
    }
    const Scratch memory(indices * sizeof(int64_t) + weights * sizeof(W));
    auto* next_index = static_cast<int64_t*>(memory.data());
    auto* next_weight = reinterpret_cast<W*>(next_index + indices);
    const auto take = [](auto*& next, int64_t n) { return std::exchange(next, next + n); };

    BuildTransposedRows<W> build;
    int64_t rows = 0, transposed_rows = 0;
    for (int a = 0; a < 3; a++) {
      const AxisSpec& spec = build.spec[a] = p.axes[a];
      const int64_t width = row_capacity(spec);
      build.table[a] = {
          spec.in,
          spec.out,
          width,
          take(next_index, spec.out),
          take(next_index, spec.out),
          take(next_weight, spec.out * width),
          transposed ? take(next_index, spec.in) : nullptr,
          transposed ? take(next_index, spec.in) : nullptr};
      build.flipped[a] = is_flipped(spec);
      rows += spec.out;
      transposed_rows += spec.in;
    }
    for_each_element(rows, BuildRows<W>{build});
    if (transposed)
      for_each_element(transposed_rows, build);
    Functor<T> functor{p, {}};
    std::copy_n(build.table, 3, functor.axis);
    for_each_element(p.n * p.c * p.dst_size[0] * p.dst_size[1] * p.dst_size[2], functor);
  });
}

} // namespace

void run_reference(const ResampleProblem& problem) {
  problem.transposed ? run<ResampleBackward>(problem) : run<ResampleForward>(problem);
}

} // namespace torch_dnnl::cuda
