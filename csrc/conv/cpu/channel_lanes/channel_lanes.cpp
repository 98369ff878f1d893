#include "conv/cpu/channel_lanes/channel_lanes.h"

#include "conv/cpu/channel_lanes/blocks.h"
#include "conv/cpu/channel_lanes/rows.h"
#include "conv/cpu/shared/epilogue.h"

namespace torch_dnnl {
namespace {

// Limits of what is worth a list of phases and rows in scratch memory: strides and elements.
constexpr int64_t kMostPhases = 256;
constexpr double kMostScratch = 1 << 22;
// Bytes of weights that stay in the second-level cache.
constexpr int64_t kCachedWeights = 256 * 1024;
// Bytes of the sums of all chunks, unless those of one are more.
constexpr int64_t kMostSums = 8 << 20;

// The rows of taps that each row of a unit of outputs meets.
template <class C>
using TapRows = std::vector<std::vector<TapRow<C>>>;

// `weights`: [tap][inner][lane] of a vector.
template <class T, class C>
void list_rows(
    const ChannelLanesPlan::Unit& unit,
    InputRows<T, C>& input,
    C* weights,
    int64_t tap_weights,
    TapRows<C>& rows) {
  for (int64_t r = 0; r < unit.rows; r++) {
    rows[r].clear();
    input.for_each(unit, unit.h + r, [&](const C* pixels, int64_t tap) {
      rows[r].push_back({pixels, weights + tap * tap_weights});
    });
  }
}

// f(offset, index) for the weights of a vector of output channels, from the channel `begin` on:
// where a weight is in the tensor, and where in a packed array [tap][inner][lane].
template <class F>
void for_each_weight(
    const ChannelLanesPlan& plan,
    int64_t vector,
    int64_t begin,
    int64_t lanes,
    const F& f) {
  const ConvProblem& p = plan.p;
  const int64_t* ws = p.weights_stride;
  const int64_t in_stride = ws[plan.backward_data() ? 0 : 1];
  const int64_t first = plan.first_channel(vector);
  const int64_t last = std::min(first + lanes, plan.channels());
  for (int64_t c = begin; c < last; c++) {
    const int64_t group = c / plan.out_per_group, channel = c - group * plan.out_per_group;
    int64_t index = c - first;
    for (int64_t d = 0; d < p.kernel[0]; d++) {
      for (int64_t h = 0; h < p.kernel[1]; h++) {
        for (int64_t w = 0; w < p.kernel[2]; w++) {
          int64_t offset = group * p.weights_group + channel * ws[plan.backward_data() ? 1 : 0] +
              d * ws[2] + h * ws[3] + w * ws[4];
          for (int64_t i = 0; i < plan.inner; i++, index += lanes, offset += in_stride)
            f(offset, index);
        }
      }
    }
  }
}

// Forward and backward data.
template <class T>
class Gather {
 public:
  explicit Gather(const ConvProblem& p)
      : p_(p),
        epilogue_(p),
        plan_(p, n, sizeof(T), std::is_same_v<T, C>, std::is_same_v<T, C> && epilogue_.is_empty()),
        is_streamed_(plan_.uses_outputs && can_stream()),
        vector_weights_(plan_.taps * plan_.inner * n),
        weights_(plan_.vectors * vector_weights_),
        bias_(plan_.vectors * n) {}

  void run() {
    pack_weights();
    pack_bias();
    const int64_t chunks = plan_.chunks();
    const int64_t operations =
        plan_.units / chunks * plan_.rows * plan_.tile * plan_.taps * plan_.inner * plan_.block * n;
    parallel_tasks(chunks * plan_.blocks, operations, [&](int64_t begin, int64_t end) {
      InputRows<T, C> input(plan_);
      TapRows<C> rows(plan_.rows);
      RowBlocks blocks(plan_);
      const Scratch<C> out(plan_.uses_outputs ? 0 : plan_.block * plan_.rows * plan_.tile * n);
      for (int64_t task = begin; task < end; task++) {
        const int64_t block = task % plan_.blocks, chunk = task / plan_.blocks;
        input.select_block(block);
        for (int64_t i = plan_.units * chunk / chunks; i < plan_.units * (chunk + 1) / chunks; i++)
          compute(plan_.unit(i), block, input, rows, blocks, out.data());
      }
      finish_streaming();
    });
  }

 private:
  using C = compute_t<T>;
  static constexpr int64_t n = kLanes<C>;

  // Results that exceed the last cache go past it, if vectors are lines.
  bool can_stream() const {
    const int64_t* stride = plan_.out_stride;
    const bool are_lines = sizeof(Vector<C>) == kCacheLine && plan_.channels() % n == 0 &&
        is_line(p_.out) && stride[0] % n == 0 && stride[2] % n == 0 && stride[3] % n == 0 &&
        stride[4] % n == 0;
    return are_lines && output_elements(p_) * int64_t(sizeof(T)) >= kStreamedInOrderBytes;
  }

  void pack_weights() {
    const auto* weights = static_cast<const T*>(p_.weights);
    parallel_tasks(plan_.vectors, vector_weights_ * 32, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; v++) {
        C* packed = weights_.data() + v * vector_weights_;
        if (plan_.first_channel(v) + n > plan_.channels())
          std::fill(packed, packed + vector_weights_, C(0));
        for_each_weight(plan_, v, plan_.first_channel(v), n, [&](int64_t offset, int64_t index) {
          packed[index] = static_cast<C>(weights[offset]);
        });
      }
    });
  }

  void pack_bias() {
    const auto* bias = static_cast<const T*>(p_.bias);
    for (int64_t i = 0; i < plan_.vectors * n; i++) {
      const int64_t c = plan_.first_channel(i / n) + i % n;
      const bool has_bias = bias != nullptr && c < plan_.channels();
      bias_.data()[i] = has_bias ? static_cast<C>(bias[c * p_.bias_stride]) : C(0);
    }
  }

  void compute(
      const ChannelLanesPlan::Unit& unit,
      int64_t block,
      InputRows<T, C>& input,
      TapRows<C>& rows,
      RowBlocks& blocks,
      C* scratch) const {
    blocks.select_tile(unit);
    list_rows(unit, input, weights_.data(), plan_.inner * n, rows);
    const int64_t* ys = plan_.out_stride;
    const int64_t first = block * plan_.block, channel = first * n;
    const int64_t vectors = std::min(plan_.block, plan_.vectors - first);
    T* image = static_cast<T*>(p_.out) + plan_.out_offset(unit, channel);
    C* out = scratch; // [vector][row][pixel][lane]
    int64_t vector_stride = unit.rows * unit.width * n, row_stride = unit.width * n;
    if constexpr (std::is_same_v<T, C>) {
      if (plan_.uses_outputs) {
        out = image;
        vector_stride = n, row_stride = ys[3];
      }
    }
    const bool by_pixels = vectors * vector_weights_ * sizeof(C) <= kCachedWeights;
    const int64_t regular = std::min(vectors, plan_.overlap_from - first);
    const auto compute = [&](int64_t r, const PixelBlock& pixels, int64_t v, int64_t count) {
      const int64_t vector = first + v;
      // Whole vectors, or in an image, where vectors are n apart, any number of channels.
      const int64_t shift = plan_.first_channel(vector) - channel;
      gather_taps(
          pixels,
          blocks.operands(rows[r], shift, vector * vector_weights_),
          {count, vector_weights_, vector_stride},
          bias_.data() + vector * n,
          out + shift / n * vector_stride + shift % n + r * row_stride,
          is_streamed_);
    };
    blocks.for_each(unit, vectors, regular, by_pixels, compute);
    if (plan_.uses_outputs)
      return;
    const int64_t channels = std::min(vectors * n, plan_.channels() - channel);
    if (!epilogue_.is_empty()) {
      const int64_t rows = epilogue_.has_joined_rows(unit.width) ? unit.rows : 1; // at once
      for (int64_t r = 0; r < unit.rows; r += rows) {
        const OutputRun run{
            unit.n, channel, unit.d, unit.h + r, unit.first, channels, rows * unit.width};
        epilogue_.store_pixels(scratch + r * unit.width * n, vector_stride, n, run);
      }
      return;
    }
    plan_.for_each_run(unit, [&](int64_t first, int64_t pixels, int64_t offset) {
      store_pixels(
          LaneRun<const C>{scratch + first * n, vector_stride, n},
          ImageRun<T>{image + offset, channels, pixels, ys[1], ys[4]});
    });
  }

  const ConvProblem& p_;
  const Epilogue<T> epilogue_;
  const ChannelLanesPlan plan_;
  const bool is_streamed_;
  const int64_t vector_weights_;
  const Scratch<C> weights_, bias_;
};

// Backward weights: each tap's products, summed over the pixels of a chunk and then over chunks.
// The chunks, and with them the order of the sums, depend on the problem alone.
template <class T>
class WeightsGradient {
 public:
  explicit WeightsGradient(const ConvProblem& p)
      : p_(p),
        plan_(p, n, sizeof(T), std::is_same_v<T, C>, std::is_same_v<T, C>),
        vector_weights_(plan_.taps * plan_.inner * n),
        chunks_(
            std::clamp<int64_t>(
                kMostSums / (plan_.vectors * vector_weights_ * sizeof(C)),
                1,
                plan_.chunks())),
        sums_(chunks_ * plan_.vectors * vector_weights_) {}

  void run() {
    const int64_t operations = plan_.units / chunks_ * plan_.rows * plan_.tile * plan_.taps *
        plan_.inner * plan_.block * n;
    parallel_tasks(chunks_ * plan_.blocks, operations, [&](int64_t begin, int64_t end) {
      InputRows<T, C> input(plan_);
      TapRows<C> rows(plan_.rows);
      RowBlocks blocks(plan_);
      const Scratch<C> grads(plan_.uses_outputs ? 0 : plan_.block * plan_.rows * plan_.tile * n);
      for (int64_t task = begin; task < end; task++)
        accumulate(task % plan_.blocks, task / plan_.blocks, input, rows, blocks, grads.data());
    });
    parallel_tasks(plan_.vectors, (chunks_ + 8) * vector_weights_, [&](int64_t begin, int64_t end) {
      for (int64_t vector = begin; vector < end; vector++)
        store(vector);
    });
  }

 private:
  using C = compute_t<T>;
  static constexpr int64_t n = kLanes<C>;

  C* sums(int64_t chunk, int64_t vector) const {
    return sums_.data() + (chunk * plan_.vectors + vector) * vector_weights_;
  }

  void accumulate(
      int64_t block,
      int64_t chunk,
      InputRows<T, C>& input,
      TapRows<C>& rows,
      RowBlocks& blocks,
      C* grads) const {
    const int64_t vectors = std::min(plan_.block, plan_.vectors - block * plan_.block);
    C* const total = sums(chunk, block * plan_.block);
    std::fill(total, total + vectors * vector_weights_, C(0));
    input.select_block(block);
    const int64_t first = block * plan_.block, channel = first * n;
    const int64_t channels = std::min(vectors * n, plan_.channels() - channel);
    const int64_t* ys = p_.dst_stride;
    for (int64_t i = plan_.units * chunk / chunks_; i < plan_.units * (chunk + 1) / chunks_; i++) {
      const auto unit = plan_.unit(i);
      const T* from = static_cast<const T*>(p_.dst) + plan_.out_offset(unit, channel);
      const C* grad = grads; // [vector][row][pixel][lane]
      int64_t vector_stride = unit.rows * unit.width * n, row_stride = unit.width * n;
      if (plan_.uses_outputs) {
        if constexpr (std::is_same_v<T, C>)
          grad = from;
        vector_stride = n, row_stride = ys[3];
      } else {
        plan_.for_each_run(unit, [&](int64_t first, int64_t pixels, int64_t offset) {
          load_pixels(
              ImageRun<const T>{from + offset, channels, pixels, ys[1], ys[4]},
              LaneRun<C>{grads + first * n, vector_stride, n});
        });
      }
      blocks.select_tile(unit);
      list_rows(unit, input, total, plan_.inner * n, rows);
      const bool by_pixels = vectors * vector_weights_ * sizeof(C) <= plan_.kCachedSums;
      const int64_t regular = std::min(vectors, plan_.overlap_from - first);
      const auto add = [&](int64_t r, const PixelBlock& pixels, int64_t v, int64_t count) {
        for (const int64_t end = v + count; v < end; v++) {
          const int64_t shift = plan_.first_channel(first + v) - channel;
          sum_pixels(
              pixels,
              blocks.operands(rows[r], shift, v * vector_weights_),
              grad + shift / n * vector_stride + shift % n + r * row_stride);
        }
      };
      blocks.for_each(unit, vectors, regular, by_pixels, add);
    }
  }

  void store(int64_t vector) const {
    C* const total = sums(0, vector);
    for (int64_t chunk = 1; chunk < chunks_; chunk++) {
      const C* part = sums(chunk, vector);
      for (int64_t i = 0; i < vector_weights_; i++)
        total[i] += part[i];
    }
    auto* out = static_cast<T*>(p_.out);
    for_each_weight(plan_, vector, vector * n, n, [&](int64_t offset, int64_t index) {
      out[offset] = convert<T>(total[index]);
    });
  }

  const ConvProblem& p_;
  const ChannelLanesPlan plan_;
  const int64_t vector_weights_, chunks_;
  const Scratch<C> sums_;
};

} // namespace

bool supports_channel_lanes(const ConvProblem& p) {
  const bool has_few_phases =
      std::all_of(p.stride, p.stride + 3, [](int64_t s) { return s <= kMostPhases; });
  return has_few_phases && ChannelLanesPlan(p, 16, 8).scratch <= kMostScratch;
}

void run_channel_lanes(const ConvProblem& p) {
  run_pass<Gather, WeightsGradient>(p);
}

} // namespace torch_dnnl
