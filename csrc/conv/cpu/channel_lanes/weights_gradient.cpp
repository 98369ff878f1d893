// The gradient of weights: each tap's products, summed over the pixels of a chunk and then over
// chunks. The chunks, and with them the order of the sums, depend on the problem alone.

#include "conv/cpu/channel_lanes/tap_kernels.h"
#include "conv/cpu/channel_lanes/units.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/reduce.h"
#include "core/cpu/parallel.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Bytes of the sums of all chunks, unless those of one are more.
constexpr int64_t kMostSums = 8 << 20;

template <class T>
class WeightsGradient {
 public:
  explicit WeightsGradient(const ConvProblem& p)
      : plan_(plan_channel_lanes<T>(p, /*may_use_outputs=*/true)) {}

  void run() {
    parallel_tasks(
        chunks_ * plan_.blocks, plan_.operations(chunks_), [&](SharedTasks::OfThread mine) {
          UnitWorker<T> worker(plan_);
          for (const int64_t task : mine) {
            worker.select_block(task % plan_.blocks);
            accumulate(task / plan_.blocks, worker);
          }
        });
    const int64_t size = plan_.vector_weights;
    parallel_ranges(plan_.vectors, (chunks_ + 8) * size, [&](int64_t begin, int64_t end) {
      // In this loop already: to wake the threads once more takes longer than small sums.
      add_chunks<C>({sums(0, begin), end - begin, size, size, chunks_, plan_.vectors * size});
      for (int64_t vector = begin; vector < end; vector++)
        store(vector);
    });
  }

 private:
  using C = compute_t<T>;
  using Unit = ChannelLanesPlan::Unit;
  static constexpr int64_t n = kLanes<C>;

  static int64_t chunks_of(const ChannelLanesPlan& plan) {
    const int64_t bytes = plan.vectors * plan.vector_weights * sizeof(C);
    return std::clamp<int64_t>(kMostSums / bytes, 1, plan.chunks());
  }

  C* sums(int64_t chunk, int64_t vector) const {
    return sums_.data() + (chunk * plan_.vectors + vector) * plan_.vector_weights;
  }

  void accumulate(int64_t chunk, UnitWorker<T>& worker) const {
    const int64_t size = worker.vectors * plan_.vector_weights;
    C* const total = sums(chunk, worker.first);
    std::fill(total, total + size, C(0));
    const bool by_pixels = size * sizeof(C) <= channel_lanes_detail::kCachedSums;
    for (int64_t i = plan_.units * chunk / chunks_; i < plan_.units * (chunk + 1) / chunks_; i++) {
      const Unit unit = plan_.unit(i);
      const T* grads = static_cast<const T*>(plan_.p.dst) + plan_.out_offset(unit, worker.channel);
      if constexpr (kStays<T>) {
        if (plan_.uses_outputs) {
          sum(unit, worker.outputs(grads), total, by_pixels, worker);
          continue;
        }
      }
      sum(unit, load_grads(unit, grads, worker), total, by_pixels, worker);
    }
  }

  template <class P>
  void
  sum(const Unit& unit,
      const UnitOutputs<P, n>& grads,
      C* total,
      bool by_pixels,
      UnitWorker<T>& worker) const {
    const auto sum = [&](TapOperands<C> operands,
                         int64_t row,
                         const PixelBlock& block,
                         int64_t shift,
                         int64_t /*v*/,
                         int64_t count) {
      for (; count > 0; count--, shift += n) {
        sum_pixels(block, operands, grads.at(shift, row));
        operands.pixel_shift += n;
        operands.weight_shift += plan_.vector_weights;
      }
    };
    worker.for_each_block(unit, total, by_pixels, sum);
  }

  UnitOutputs<C, n>
  load_grads(const Unit& unit, const T* image, const UnitWorker<T>& worker) const {
    const int64_t* stride = plan_.out_stride;
    const UnitOutputs<C, n> grads = worker.scratch_outputs(unit);
    const int64_t rows = stride[3] == unit.width * stride[4] ? unit.rows : 1; // at once
    for (int64_t r = 0; r < unit.rows; r += rows, image += stride[3]) {
      load_pixels(
          ImageRun<const T>{image, worker.channels, rows * unit.width, stride[1], stride[4]},
          LaneRun<C>{grads.at(0, r), grads.vector_stride, n});
    }
    return grads;
  }

  void store(int64_t vector) const {
    const C* from = sums(0, vector);
    auto* to = static_cast<T*>(plan_.p.out);
    // A channel that two vectors have in common was summed in both; it is stored once.
    for_each_weight<n>(plan_, vector, vector * n, [&](int64_t offset, int64_t index) {
      to[offset] = convert<T>(from[index]);
    });
  }

  const ChannelLanesPlan plan_;
  const int64_t chunks_ = chunks_of(plan_);
  const Scratch<C> sums_{chunks_ * plan_.vectors * plan_.vector_weights};
};

} // namespace

void channel_lanes_weights_gradient(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    WeightsGradient<T>(p).run();
  });
}

} // namespace torch_dnnl
