// The kernel of running sums for rows that become a half or a quarter as long; see kernels.h.
#include <algorithm>

#include "core/dispatch.h"
#include "resample/cuda/kernels.h"
#include "resample/cuda/regular_columns.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;

template <int kDown_, int kTaps_>
struct Window {
  static constexpr int kDown = kDown_, kTaps = kTaps_;
  static constexpr int kSums = std::max(2, kTaps / kDown); // along H, if it is reduced alike

  template <class T>
  static constexpr int outputs() { // of a thread, whose weights stay in registers
    return std::min(kLanes<T>, 32 / kTaps);
  }
  template <class T, class W>
  using Columns = RegularColumns<W, 1, kDown, kTaps, outputs<T>()>;
};

// f(the window of the rows of dst) if there is one.
template <class T, class W, class F>
bool with_window(const ResamplePlan<W>& plan, F&& f) {
  const int64_t sums = readers_of(plan)->width;
  const auto try_window = [&]<class Own>(Own window) {
    using Columns = typename Own::template Columns<T, W>;
    if (sums > Own::kSums || !Columns::can_read(plan.images, *plan.tables[2]))
      return false;
    f(window);
    return true;
  };
  return try_window(Window<2, 2>{}) || try_window(Window<2, 4>{}) || try_window(Window<2, 8>{}) ||
      try_window(Window<4, 4>{}) || try_window(Window<4, 8>{});
}

} // namespace

template <class W>
bool can_sum_windows(const ResamplePlan<W>& plan) {
  bool can = false;
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&]<class T>(std::type_identity<T>) {
    can = with_window<T>(plan, [](auto) {});
  });
  return can;
}

template <class W>
void sum_windows(const ResamplePlan<W>& plan) {
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&]<class T>(std::type_identity<T>) {
    with_window<T>(plan, [&]<class Own>(Own) {
      constexpr int kVector = Own::template outputs<T>();
      using Columns = typename Own::template Columns<T, W>;
      using Rows = RunningSums<W, Own::kSums, kVector>;
      run_columns<T, kThreads, kVector, Columns, Rows>(
          plan, {plan.tables[1]->width, Own::kTaps, Own::kSums});
    });
  });
}

template bool can_sum_windows(const ResamplePlan<float>&);
template bool can_sum_windows(const ResamplePlan<double>&);
template void sum_windows(const ResamplePlan<float>&);
template void sum_windows(const ResamplePlan<double>&);

} // namespace torch_dnnl::cuda
