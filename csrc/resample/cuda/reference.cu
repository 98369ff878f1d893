// The reference: the axis tables are built on the device, by the function that builds them on the
// host, into memory of torch's allocator: one launch for the rows of all axes, one for those of
// their transposes.
#include <algorithm>
#include <utility>

#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "resample/cuda/kernels.h"
#include "resample/host_table.h"
#include "resample/reference.h"

namespace torch_dnnl::cuda {
namespace {

// Writes tables, of which a row is made with each call: an output's or, when these are there, which
// outputs may use an input. Indices run over the rows of all axes.
template <class W, bool kReaders>
struct BuildTables {
  AxisSpec spec[3];
  AxisTable<W> table[3];

  TORCH_DNNL_HD void operator()(int64_t row) const {
    int a = 0;
    const auto rows = [&] { return kReaders ? table[a].in : table[a].out; };
    for (; row >= rows(); a++)
      row -= rows();
    const AxisTable<W>& t = table[a];
    if constexpr (kReaders) {
      const Range readers = build_transposed_row(t, is_flipped(spec[a]), row);
      write(t.first + row, readers.begin), write(t.last + row, readers.end);
    } else {
      const auto set = [&](int64_t, int64_t tap, double weight) {
        write(t.weights + row * t.width + tap, static_cast<W>(weight));
      };
      const Range reads = build_row(spec[a], row, set);
      write(t.start + row, reads.begin), write(t.count + row, reads.count());
    }
  }

 private:
  template <class T>
  TORCH_DNNL_HD static void write(const T* to, T value) {
    *const_cast<T*>(to) = value;
  }
};

template <bool transposed>
void run(const ResampleProblem& p) {
  dispatch(ImageTypes{}, p.src_dtype, [&]<class T>(std::type_identity<T>) {
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

    BuildTables<W, false> build;
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
      rows += spec.out;
      transposed_rows += spec.in;
    }
    for_each_element(rows, build);
    ResampleReference<T, transposed> functor{p, {}};
    std::copy_n(build.table, 3, functor.axis);
    if constexpr (transposed) {
      BuildTables<W, true> readers;
      std::copy_n(build.spec, 3, readers.spec);
      std::copy_n(build.table, 3, readers.table);
      for_each_element(transposed_rows, readers);
    }
    for_each_element(p.n * p.c * product(p.dst_size), functor);
  });
}

} // namespace

void run_reference(const ResampleProblem& problem) {
  problem.transposed ? run<true>(problem) : run<false>(problem);
}

} // namespace torch_dnnl::cuda
