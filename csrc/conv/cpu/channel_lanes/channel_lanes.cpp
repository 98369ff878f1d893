// Depthwise convolution on the CPU, and grouped convolution with few channels in a group: too few
// for matrix products, so the lanes of a vector are channels of neighbouring groups, and a pixel is
// multiplied by a tap lane by lane. Images lie in scratch memory a few rows at a time, whatever
// their layout; blocks of channels and of rows are parallel.
// Here are forward and backward data; weights_gradient.cpp has the other pass.
#include "conv/cpu/channel_lanes/tap_kernels.h"
#include "conv/cpu/channel_lanes/units.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/packed/packed.h"
#include "conv/reference.h"
#include "core/cpu/parallel.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Limits of what is worth a list of phases and rows in scratch memory: strides and elements.
constexpr int64_t kMostPhases = 256;
constexpr double kMostScratch = 1 << 22;
// Whether an image of T can hold sums until they are completed.
template <class T>
constexpr bool kHoldsSums = std::is_same_v<T, compute_t<T>>;
// Bytes of weights that stay in the second-level cache.
constexpr int64_t kCachedWeights = 256 * 1024;

// Bytes of images so few that the last cache holds them all: there is nothing to bring early. And
// of a row of pixels that stays in the second-level cache until the next row of results meets it.
constexpr int64_t kFewBytes = int64_t(kRegisters == 32 ? 16 : 12) << 20, kCachedRow = 64 * 1024;

// Results that exceed the last cache go past it, if vectors are lines.
template <class T>
Stores choose_stores(const ChannelLanesPlan& plan) {
  constexpr int64_t n = kLanes<compute_t<T>>;
  const Epilogue<T> epilogue(plan.p);
  Bounds<double> bounds{};
  if (epilogue.is_clamp()) {
    const auto [low, high, are_set] = epilogue.bounds();
    bounds = {low, high, are_set};
  }
  const int64_t* stride = plan.out_stride;
  const int64_t bytes = output_elements(plan.p) * int64_t(sizeof(T));
  const bool are_lines = std::is_same_v<T, compute_t<T>> &&
      sizeof(Vector<compute_t<T>>) == kCacheLine && plan.channels % n == 0 && is_line(plan.p.out) &&
      (stride[0] | stride[2] | stride[3] | stride[4]) % n == 0;
  if (plan.uses_outputs && are_lines && epilogue.is_clamp() && bytes >= kStreamedInOrderBytes)
    return {Stores::streamed, 0, bounds};
  const int64_t inputs =
      plan.p.n * plan.p.groups * plan.in_channels * product(plan.in_size) * int64_t(sizeof(T));
  if (!plan.uses_outputs || !plan.reads_image || inputs + bytes < kFewBytes)
    return {Stores::plain, 0, bounds};
  const int64_t rows = plan.backward_data ? 1 : plan.p.stride[1];
  const bool stays = plan.in_size[2] * plan.channels * int64_t(sizeof(T)) <= kCachedRow;
  return {Stores::ahead, stays ? rows * plan.in_stride[3] : 0, bounds};
}

// packed: [vector][tap][input channel][lane].
template <class T, class C>
void pack_weights(const ChannelLanesPlan& plan, C* packed) {
  const auto* weights = static_cast<const T*>(plan.p.weights);
  const int64_t size = plan.vector_weights;
  parallel_tasks(plan.vectors, size * 32, [&](SharedTasks::OfThread mine) {
    for (const int64_t v : mine) {
      C* const to = packed + v * size;
      if (plan.first_channel(v) + plan.lanes > plan.channels)
        std::fill(to, to + size, C(0));
      for_each_weight<kLanes<C>>(
          plan, v, plan.first_channel(v), [&](int64_t offset, int64_t index) {
            to[index] = static_cast<C>(weights[offset]);
          });
    }
  });
}

template <class T>
class Gather {
 public:
  explicit Gather(const ConvProblem& p) : p_(p) {}

  void run() {
    const int64_t chunks = plan_.chunks(), units = plan_.units;
    parallel_tasks(
        chunks * plan_.blocks, plan_.operations(chunks), [&](SharedTasks::OfThread mine) {
          UnitWorker<T> worker(plan_);
          for (const int64_t task : mine) {
            const int64_t chunk = task / plan_.blocks;
            worker.select_block(task % plan_.blocks);
            for (int64_t i = units * chunk / chunks; i < units * (chunk + 1) / chunks; i++)
              compute(plan_.unit(i), worker);
          }
          finish_streaming();
        });
  }

 private:
  using C = compute_t<T>;
  using Unit = ChannelLanesPlan::Unit;
  static constexpr int64_t n = kLanes<C>;

  void compute(const Unit& unit, UnitWorker<T>& worker) const {
    if constexpr (kStays<T>) {
      if (plan_.uses_outputs) {
        T* const image = static_cast<T*>(plan_.p.out) + plan_.out_offset(unit, worker.channel);
        const UnitOutputs<T, n> out = worker.outputs(image);
        gather(unit, out, worker);
        if constexpr (kHoldsSums<T>) {
          if (!epilogue_.is_clamp() && !completes_blocks_)
            store(unit, out, plan_.out_stride[4], worker);
        }
        return;
      }
    }
    const UnitOutputs<C, n> out = worker.scratch_outputs(unit);
    gather(unit, out, worker);
    store(unit, out, n, worker);
  }

  template <class P>
  void gather(const Unit& unit, const UnitOutputs<P, n>& out, UnitWorker<T>& worker) const {
    const int64_t size = plan_.vector_weights, first = worker.first;
    const bool by_pixels = worker.vectors * size * sizeof(C) <= kCachedWeights;
    const auto gather = [&](const TapOperands<C>& operands,
                            int64_t row,
                            const PixelBlock& block,
                            int64_t shift,
                            int64_t v,
                            int64_t count) {
      const VectorRun vectors{count, size, bias_.channel_step() * n, out.vector_stride};
      const C* bias = bias_.at(0, plan_.first_channel(first + v));
      P* const sums = out.at(shift, row);
      gather_taps(block, operands, vectors, bias, sums, stores_);
      if constexpr (std::is_same_v<P, T> && kHoldsSums<T>) {
        if (completes_blocks_) {
          const int64_t channel = worker.channel + shift, pixel = unit.first + block.first;
          epilogue_.store_pixels(
              sums + block.first_out,
              out.vector_stride,
              block.out_step,
              {unit.n, channel, unit.d, unit.h + row, pixel, count * n, block.outputs});
        }
      }
    };
    worker.for_each_block(unit, weights() + first * size, by_pixels, gather);
  }

  // Where vectors may overlap, packed weights have a second copy for the overlap (packed_copies).
  // Kernels write to weights in the gradient of the weights alone.
  C* weights() const {
    const bool is_second = p_.packed != nullptr && plan_.overlap_from < plan_.vectors;
    const int64_t first = is_second ? plan_.vectors * plan_.vector_weights : 0;
    return const_cast<C*>(weights_.data()) + first;
  }

  // Completes sums, in scratch memory or where the results will be.
  void store(
      const Unit& unit,
      const UnitOutputs<C, n>& out,
      int64_t pixel_stride,
      const UnitWorker<T>& worker) const {
    const int64_t rows = epilogue_.has_joined_rows(unit.width) ? unit.rows : 1; // at once
    for (int64_t r = 0; r < unit.rows; r += rows) {
      const int64_t pixels = rows * unit.width;
      const OutputRun run{
          unit.n, worker.channel, unit.d, unit.h + r, unit.first, worker.channels, pixels};
      if (epilogue_.is_clamp())
        epilogue_.store_final_pixels(out.at(0, r), out.vector_stride, pixel_stride, run);
      else
        epilogue_.store_pixels(out.at(0, r), out.vector_stride, pixel_stride, run);
    }
  }

  const ConvProblem& p_;
  const Epilogue<T> epilogue_{p_};
  const ChannelLanesPlan plan_ = plan_channel_lanes<T>(p_, kHoldsSums<T> || epilogue_.is_clamp());
  // Whether sums lie where the results will be, and are completed while a block is in the cache.
  const bool completes_blocks_ = kHoldsSums<T> && plan_.uses_outputs && !epilogue_.is_clamp() &&
      phases_of(plan_.p, 2).size() == 1;
  const Stores stores_ = choose_stores<T>(plan_);
  const PackedWeights<C> weights_{p_, plan_.vectors * plan_.vector_weights, [&](C* to) {
                                    pack_weights<T>(plan_, to);
                                  }};
  const Bias<T> bias_{p_, GatherImages{p_}.out_channels};
};

// A plan that has the layout of the weights alone.
ChannelLanesPlan weights_plan(const LaneImages& images, int64_t overlap_from) {
  ChannelLanesPlan plan{images, LanePlaces{.overlap_from = overlap_from}, LaneTile{}};
  plan.vector_weights = product(images.p.kernel) * images.in_channels * images.lanes;
  return plan;
}

// Where channels do not fill vectors, the layout of the images decides whether the last vector
// overlaps the one before. So the weights are packed for either.
int64_t packed_copies(const LaneImages& images) {
  return images.channels % images.lanes == 0 || images.vectors == 1 ? 1 : 2;
}

int64_t packed_size(const ConvProblem& p) {
  int64_t size = 0;
  dispatch(
      TypeList<float, double>{},
      p.dtype == c10::kDouble ? p.dtype : c10::kFloat,
      [&]<class C>(std::type_identity<C>) {
        const LaneImages images{{p}, kLanes<C>};
        const int64_t of_vector = weights_plan(images, images.vectors).vector_weights;
        size = packed_copies(images) * images.vectors * of_vector * sizeof(C);
      });
  return size;
}

bool pack(const ConvProblem& p, void* to) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    const LaneImages images{{p}, kLanes<C>};
    auto* packed = static_cast<C*>(to);
    for (int64_t overlap = 0; overlap < packed_copies(images); overlap++) {
      const ChannelLanesPlan plan = weights_plan(images, images.vectors - overlap);
      pack_weights<T>(plan, packed);
      packed += plan.vectors * plan.vector_weights;
    }
  });
  return true;
}

} // namespace

const Packing<ConvProblem> channel_lanes_packing{packed_size, pack};

bool supports_channel_lanes(const ConvProblem& p) {
  const bool has_few_phases =
      std::all_of(p.stride, p.stride + 3, [](int64_t s) { return s <= kMostPhases; });
  return has_few_phases &&
      plan_channel_lanes(
          p, /*lanes=*/16, /*element_size=*/8, /*may_read_image=*/false, /*may_use_outputs=*/false)
          .elements <= kMostScratch;
}

void run_channel_lanes(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights)
    return channel_lanes_weights_gradient(p);
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) { Gather<T>(p).run(); });
}

} // namespace torch_dnnl
