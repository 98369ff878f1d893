#include "conv/cpu/depthwise.h"

#include "conv/cpu/depthwise_rows.h"
#include "conv/cpu/epilogue.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Limits of what is worth a list of phases and rows in scratch memory: strides and elements.
constexpr int64_t kMostPhases = 256;
constexpr double kMostScratch = 1 << 22;

// f(lane, offset, index) for the weights of a vector of output channels: where a weight is in the
// tensor, and where in a packed array [tap][inner][lane].
template <class F>
void for_each_weight(const DepthwisePlan& plan, int64_t vector, int64_t lanes, const F& f) {
  const ConvProblem& p = plan.p;
  const int64_t* ws = p.weights_stride;
  const int64_t in_stride = ws[plan.backward_data() ? 0 : 1];
  const int64_t first = plan.first_channel(vector);
  const int64_t last = std::min(first + lanes, plan.channels());
  for (int64_t c = first; c < last; c++) {
    const int64_t group = c / plan.out_per_group, channel = c - group * plan.out_per_group;
    int64_t index = c - first;
    for (int64_t d = 0; d < p.kernel[0]; d++) {
      for (int64_t h = 0; h < p.kernel[1]; h++) {
        for (int64_t w = 0; w < p.kernel[2]; w++) {
          int64_t offset = group * p.oc * ws[0] + channel * ws[plan.backward_data() ? 1 : 0] +
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
        vector_weights_(plan_.taps * plan_.inner * n),
        weights_(plan_.vectors * vector_weights_),
        bias_(plan_.vectors * n),
        phases_(plan_.phases(2)) {}

  void run() {
    pack_weights();
    pack_bias();
    const int64_t chunks = plan_.chunks();
    const int64_t operations =
        plan_.units / chunks * plan_.rows * plan_.tile * plan_.taps * plan_.inner * plan_.block * n;
    parallel_tasks(chunks * plan_.blocks, operations, [&](int64_t begin, int64_t end) {
      InputRows<T, C> input(plan_);
      Lists lists{std::vector<std::vector<TapRow<C>>>(plan_.rows)};
      const Scratch<C> out(plan_.uses_outputs ? 0 : plan_.block * plan_.rows * plan_.tile * n);
      for (int64_t task = begin; task < end; task++) {
        const int64_t block = task % plan_.blocks, chunk = task / plan_.blocks;
        input.select_block(block);
        for (int64_t i = plan_.units * chunk / chunks; i < plan_.units * (chunk + 1) / chunks; i++)
          compute(plan_.unit(i), block, input, lists, out.data());
      }
    });
  }

 private:
  using C = compute_t<T>;

  // What a unit is computed from.
  struct Lists {
    std::vector<std::vector<TapRow<C>>> rows; // for each row of outputs
    std::vector<PixelBlock> blocks;           // for all of them
    std::vector<TapRun> runs;                 // of the blocks
    int64_t first = -1;                       // the tile that the blocks are for
  };
  static constexpr int64_t n = kLanes<C>;

  void pack_weights() {
    const auto* weights = static_cast<const T*>(p_.weights);
    parallel_tasks(plan_.vectors, vector_weights_ * 32, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; v++) {
        C* packed = weights_.data() + v * vector_weights_;
        if (plan_.first_channel(v) + n > plan_.channels())
          std::fill(packed, packed + vector_weights_, C(0));
        for_each_weight(plan_, v, n, [&](int64_t offset, int64_t index) {
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
      const DepthwisePlan::Unit& unit,
      int64_t block,
      InputRows<T, C>& input,
      Lists& lists,
      C* scratch) const {
    if (unit.first != lists.first) {
      lists.first = unit.first;
      list_blocks(unit, lists);
    }
    for (int64_t r = 0; r < unit.rows; r++) {
      lists.rows[r].clear();
      input.for_each(unit, unit.h + r, [&](const C* pixels, int64_t tap) {
        lists.rows[r].push_back({pixels, weights_.data() + tap * plan_.inner * n});
      });
    }
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
    // All channels of some pixels, which lie together in the image, before the next pixels.
    for (int64_t r = 0; r < unit.rows; r++) {
      const auto& rows = lists.rows[r];
      for (const PixelBlock& pixels : lists.blocks) {
        for (int64_t vector = first; vector < first + vectors; vector++) {
          // Whole vectors, or in an image, where vectors are n apart, any number of channels.
          const int64_t shift = plan_.first_channel(vector) - channel;
          gather_taps(
              pixels,
              {lists.runs.data(),
               rows.data(),
               static_cast<int64_t>(rows.size()),
               shift,
               vector * vector_weights_},
              bias_.data() + vector * n,
              out + shift / n * vector_stride + shift % n + r * row_stride);
        }
      }
    }
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

  // The blocks of a row of outputs.
  void list_blocks(const DepthwisePlan::Unit& unit, Lists& lists) const {
    const int64_t origin = plan_.reads_image ? 0 : plan_.first_in(2, unit.first);
    const int64_t out_step = plan_.uses_outputs ? plan_.out_stride[4] : n;
    lists.blocks.clear();
    lists.runs.clear();
    for (const Phase& phase : phases_) {
      const auto outputs_before = [&](int64_t x) {
        return ceil_div(std::max<int64_t>(x - phase.out, 0), phase.out_step);
      };
      const int64_t end = outputs_before(unit.first + unit.width);
      const bool has_runs = phase.tap_in_step == 1 && phase.in_step <= kMostRunStride;
      int64_t count;
      for (int64_t j = outputs_before(unit.first); j < end; j += count) {
        count = ceil_div(end - j, ceil_div(end - j, kBlockPixels)); // blocks of equal size
        const int64_t in = phase.in + j * phase.in_step;
        PixelBlock b;
        b.outputs = count;
        b.stride = has_runs ? phase.in_step : 1;
        b.first_pixel = (in - origin) * plan_.in_step;
        b.first_out = (phase.out + j * phase.out_step - unit.first) * out_step;
        b.pixel_step = (has_runs ? 1 : phase.in_step) * plan_.in_step;
        b.out_step = phase.out_step * out_step;
        b.weight_step = phase.tap_step * plan_.inner * n;
        b.first_run = static_cast<int64_t>(lists.runs.size());
        list_runs(phase, in, count, has_runs, lists.runs);
        b.runs = static_cast<int64_t>(lists.runs.size()) - b.first_run;
        lists.blocks.push_back(b);
      }
    }
  }

  // Appends the runs of a row of taps that meet a pixel of the image from any of `count` outputs,
  // of which the first one meets its first tap at `in`.
  void
  list_runs(const Phase& phase, int64_t in, int64_t count, bool has_runs, std::vector<TapRun>& runs)
      const {
    for (int64_t m = 0, taps; m < phase.taps; m += taps) {
      taps = 1;
      if (has_runs)
        taps = *std::find_if(std::begin(kRunTaps), std::end(kRunTaps), [&](int64_t t) {
          return t <= phase.taps - m;
        });
      const int64_t shift = m * phase.tap_in_step, tap = phase.tap + m * phase.tap_step;
      const int64_t step = taps == 1 ? phase.in_step : 1;
      const Range met = within(
          in + shift,
          step,
          plan_.in_size[2],
          taps == 1 ? count : (count - 1) * phase.in_step + taps);
      for (int64_t i = 0; i < plan_.inner && met.begin < met.end; i++) {
        runs.push_back(
            {taps,
             shift * plan_.in_step + i * plan_.block * n,
             (tap * plan_.inner + i) * n,
             (1ull << met.end) - (1ull << met.begin)});
      }
    }
  }

  const ConvProblem& p_;
  const Epilogue<T> epilogue_;
  const DepthwisePlan plan_;
  const int64_t vector_weights_;
  const Scratch<C> weights_, bias_;
  const std::vector<Phase> phases_;
};

// Backward weights: each tap's products, summed over the pixels of a chunk and then over chunks.
// The chunks, and with them the order of the sums, depend on the problem alone.
template <class T>
class WeightsGradient {
 public:
  explicit WeightsGradient(const ConvProblem& p)
      : p_(p),
        plan_(p, n, sizeof(T), false, std::is_same_v<T, C>),
        chunks_(plan_.chunks()),
        vector_weights_(plan_.taps * plan_.inner * n),
        sums_(chunks_ * plan_.vectors * vector_weights_) {}

  void run() {
    const int64_t operations = plan_.units / chunks_ * plan_.rows * plan_.tile * plan_.taps *
        plan_.inner * plan_.block * n;
    parallel_tasks(chunks_ * plan_.blocks, operations, [&](int64_t begin, int64_t end) {
      InputRows<T, C> input(plan_);
      std::vector<TapSum<C>> list(plan_.taps * plan_.inner);
      const Scratch<C> grads(plan_.block * plan_.rows * plan_.tile * n);
      for (int64_t task = begin; task < end; task++)
        accumulate(task % plan_.blocks, task / plan_.blocks, input, list.data(), grads.data());
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

  void accumulate(int64_t block, int64_t chunk, InputRows<T, C>& input, TapSum<C>* list, C* grads)
      const {
    const int64_t vectors = std::min(plan_.block, plan_.vectors - block * plan_.block);
    C* const total = sums(chunk, block * plan_.block);
    std::fill(total, total + vectors * vector_weights_, C(0));
    input.select_block(block);
    const int64_t channel = block * plan_.block * n;
    const int64_t channels = std::min(vectors * n, plan_.channels() - channel);
    const int64_t* ys = p_.dst_stride;
    for (int64_t i = plan_.units * chunk / chunks_; i < plan_.units * (chunk + 1) / chunks_; i++) {
      const auto unit = plan_.unit(i);
      const T* from = static_cast<const T*>(p_.dst) + plan_.out_offset(unit, channel);
      const C* grad = grads; // [vector][row][pixel][lane]
      int64_t vector = unit.rows * unit.width * n, row = unit.width * n, pixel = n;
      if (plan_.uses_outputs) {
        if constexpr (std::is_same_v<T, C>)
          grad = from;
        vector = n, row = ys[3], pixel = ys[4];
      } else {
        plan_.for_each_run(unit, [&](int64_t first, int64_t pixels, int64_t offset) {
          load_pixels(
              ImageRun<const T>{from + offset, channels, pixels, ys[1], ys[4]},
              LaneRun<C>{grads + first * n, vector, n});
        });
      }
      for (int64_t r = 0; r < unit.rows; r++) {
        const int64_t count = list_taps(unit, unit.h + r, input, total, list);
        for (int64_t v = 0; v < vectors; v++) {
          for (int64_t t = 0, taps; t < count; t += taps) {
            taps = ceil_div(count - t, ceil_div(count - t, kBlockTaps)); // blocks of equal size
            sum_pixels(
                list + t,
                taps,
                unit.width,
                p_.stride[2] * plan_.in_step,
                grad + v * vector + r * row,
                pixel,
                v * n,
                v * vector_weights_);
          }
        }
      }
    }
  }

  int64_t list_taps(
      const DepthwisePlan::Unit& unit,
      int64_t h,
      InputRows<T, C>& input,
      C* sums,
      TapSum<C>* list) const {
    const int64_t pixel = plan_.inner * n;
    int64_t count = 0;
    input.for_each(unit, h, [&](const C* pixels, int64_t tap) {
      for (int64_t k = 0; k < p_.kernel[2]; k++) {
        for (int64_t i = 0; i < pixel; i += n)
          list[count++] = {
              pixels + k * p_.dilation[2] * plan_.in_step + i * plan_.block,
              sums + (tap + k) * pixel + i};
      }
    });
    return count;
  }

  void store(int64_t vector) const {
    C* const total = sums(0, vector);
    for (int64_t chunk = 1; chunk < chunks_; chunk++) {
      const C* part = sums(chunk, vector);
      for (int64_t i = 0; i < vector_weights_; i++)
        total[i] += part[i];
    }
    auto* out = static_cast<T*>(p_.out);
    for_each_weight(plan_, vector, n, [&](int64_t offset, int64_t index) {
      out[offset] = convert<T>(total[index]);
    });
  }

  const ConvProblem& p_;
  const DepthwisePlan plan_;
  const int64_t chunks_, vector_weights_;
  const Scratch<C> sums_;
};

} // namespace

bool can_run_depthwise(const ConvProblem& p) {
  // Matrix products are faster for more channels, and where a channel is read for one tap only.
  const int64_t pairs = p.ic * p.oc;
  const bool is_few =
      pairs < 16 || (p.groups > 1 && (p.ic == 1 || (pairs <= 64 && product(p.kernel) > 1)));
  const bool has_few_phases =
      std::all_of(p.stride, p.stride + 3, [](int64_t s) { return s <= kMostPhases; });
  return is_few && has_few_phases && DepthwisePlan(p, 16, 8).scratch <= kMostScratch;
}

void run_depthwise(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.pass == ConvPass::backward_weights) {
      WeightsGradient<T>(p).run();
    } else {
      Gather<T>(p).run();
    }
  });
}

} // namespace torch_dnnl
