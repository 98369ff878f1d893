#include "conv/cpu/depthwise.h"

#include "conv/cpu/depthwise_rows.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kTasks = 64; // enough for the threads to share

// f(lane, offset, index) for the weights of a vector of output channels: where a weight is in the
// tensor, and where in a packed array [tap][inner][lane].
template <class F>
void for_each_weight(const DepthwisePlan& plan, int64_t vector, int64_t lanes, const F& f) {
  const ConvProblem& p = plan.p;
  const int64_t* ws = p.weights_stride;
  const int64_t in_stride = ws[plan.backward_data() ? 0 : 1];
  const int64_t first = vector * lanes;
  const int64_t last = std::min(first + lanes, p.groups * plan.out_per_group);
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
        plan_(p, n, sizeof(T)),
        vector_weights_(plan_.taps * plan_.inner * n),
        weights_(plan_.vectors * vector_weights_),
        bias_(plan_.vectors * n),
        phases_(plan_.phases(2)) {}

  void run() {
    pack_weights();
    pack_bias();
    const int64_t longest = ceil_div(plan_.units, plan_.slots[1]); // rows are loaded once per chunk
    const int64_t chunks = std::clamp<int64_t>(kTasks / plan_.blocks, 1, longest);
    const int64_t operations =
        plan_.units / chunks * plan_.tile * plan_.taps * plan_.inner * plan_.block * n;
    parallel_tasks(chunks * plan_.blocks, operations, [&](int64_t begin, int64_t end) {
      InputRows<T, C> input(plan_);
      std::vector<TapRow<C>> rows(p_.kernel[0] * p_.kernel[1]);
      const Scratch<C> out(plan_.block * plan_.tile * n);
      for (int64_t task = begin; task < end; task++) {
        const int64_t block = task % plan_.blocks, chunk = task / plan_.blocks;
        input.select_block(block);
        for (int64_t i = plan_.units * chunk / chunks; i < plan_.units * (chunk + 1) / chunks; i++)
          compute(plan_.unit(i), block, input, rows.data(), out.data());
      }
    });
  }

 private:
  using C = compute_t<T>;
  static constexpr int64_t n = kLanes<C>;

  void pack_weights() {
    const auto* weights = static_cast<const T*>(p_.weights);
    parallel_tasks(plan_.vectors, vector_weights_ * 32, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; v++) {
        C* packed = weights_.data() + v * vector_weights_;
        if ((v + 1) * n > p_.groups * plan_.out_per_group)
          std::fill(packed, packed + vector_weights_, C(0));
        for_each_weight(plan_, v, n, [&](int64_t offset, int64_t index) {
          packed[index] = static_cast<C>(weights[offset]);
        });
      }
    });
  }

  void pack_bias() {
    const auto* bias = static_cast<const T*>(p_.bias);
    const int64_t channels = bias == nullptr ? 0 : p_.groups * p_.oc;
    for (int64_t c = 0; c < channels; c++)
      bias_.data()[c] = static_cast<C>(bias[c * p_.bias_stride]);
    std::fill(bias_.data() + channels, bias_.data() + plan_.vectors * n, C(0));
  }

  void compute(
      const DepthwisePlan::Unit& unit,
      int64_t block,
      InputRows<T, C>& input,
      TapRow<C>* rows,
      C* out) const {
    const int64_t tap_size = plan_.inner * n, first = unit.tile * plan_.tile;
    const int64_t width = plan_.tile_width(unit), origin = plan_.first_in(2, first);
    const int64_t vectors = std::min(plan_.block, plan_.vectors - block * plan_.block);
    PixelBlock<C> b;
    b.rows = rows;
    b.count = 0;
    b.inner = plan_.inner;
    input.for_each(unit, [&](const C* pixels, int64_t tap) {
      rows[b.count++] = {pixels, weights_.data() + tap * tap_size};
    });
    for (int64_t v = 0; v < vectors; v++) {
      const int64_t vector = block * plan_.block + v;
      b.bias = bias_.data() + vector * n;
      for (const Phase& phase : phases_) {
        const auto outputs_before = [&](int64_t out) {
          return out <= phase.out ? 0 : ceil_div(out - phase.out, phase.out_step);
        };
        b.pixel_step = phase.in_step * tap_size;
        b.tap_pixel_step = phase.tap_in_step * tap_size;
        b.tap_step = phase.tap_step * tap_size;
        b.out_step = phase.out_step * n;
        const int64_t end = outputs_before(first + width);
        for (int64_t j = outputs_before(first); j < end; j += b.pixels) {
          b.pixels = ceil_div(end - j, ceil_div(end - j, kBlockPixels)); // blocks of equal size
          // Taps that meet no pixel of the image are left out.
          const int64_t in = phase.in + j * phase.in_step;
          const int64_t last = in + (b.pixels - 1) * phase.in_step;
          const int64_t tap =
              within(last, phase.tap_in_step, plan_.in_size[2] + last - in, phase.taps).begin;
          const int64_t tap_end = within(in, phase.tap_in_step, plan_.in_size[2], phase.taps).end;
          b.taps = tap_end - tap;
          b.first_pixel =
              v * input.vector_size() + (in + tap * phase.tap_in_step - origin) * tap_size;
          b.first_tap = vector * vector_weights_ + (phase.tap + tap * phase.tap_step) * tap_size;
          b.out = out + (v * plan_.tile + phase.out + j * phase.out_step - first) * n;
          gather_taps(b);
        }
      }
    }
    const int64_t *ys = plan_.out_stride, channel = block * plan_.block * n;
    T* to = static_cast<T*>(p_.out) + unit.n * ys[0] + channel * ys[1] + unit.d * ys[2] +
        unit.h * ys[3] + first * ys[4];
    const int64_t channels = std::min(vectors * n, p_.groups * plan_.out_per_group - channel);
    store_pixels(
        LaneRun<const C>{out, plan_.tile * n, n}, ImageRun<T>{to, channels, width, ys[1], ys[4]});
  }

  const ConvProblem& p_;
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
        plan_(p, n, sizeof(T)),
        chunks_(std::clamp<int64_t>(kTasks / plan_.blocks, 1, std::max<int64_t>(plan_.units, 1))),
        vector_weights_(plan_.taps * plan_.inner * n),
        sums_(chunks_ * plan_.vectors * vector_weights_) {}

  void run() {
    const int64_t operations =
        plan_.units / chunks_ * plan_.tile * plan_.taps * plan_.inner * plan_.block * n;
    parallel_tasks(chunks_ * plan_.blocks, operations, [&](int64_t begin, int64_t end) {
      InputRows<T, C> input(plan_);
      std::vector<TapSum<C>> list(plan_.taps * plan_.inner);
      const Scratch<C> grads(plan_.block * plan_.tile * n);
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
    const int64_t pixel = plan_.inner * n, channel = block * plan_.block * n;
    const int64_t channels = std::min(vectors * n, p_.groups * p_.oc - channel);
    const int64_t* ys = p_.dst_stride;
    for (int64_t i = plan_.units * chunk / chunks_; i < plan_.units * (chunk + 1) / chunks_; i++) {
      const auto unit = plan_.unit(i);
      const int64_t width = plan_.tile_width(unit);
      int64_t count = 0;
      input.for_each(unit, [&](const C* pixels, int64_t tap) {
        for (int64_t k = 0; k < p_.kernel[2]; k++) {
          for (int64_t j = 0; j < plan_.inner; j++) {
            list[count++] = {
                pixels + k * p_.dilation[2] * pixel + j * n, total + (tap + k) * pixel + j * n};
          }
        }
      });
      const T* from = static_cast<const T*>(p_.dst) + unit.n * ys[0] + channel * ys[1] +
          unit.d * ys[2] + unit.h * ys[3] + unit.tile * plan_.tile * ys[4];
      load_pixels(
          ImageRun<const T>{from, channels, width, ys[1], ys[4]},
          LaneRun<C>{grads, plan_.tile * n, n});
      for (int64_t v = 0; v < vectors; v++) {
        for (int64_t t = 0, taps; t < count; t += taps) {
          taps = ceil_div(count - t, ceil_div(count - t, kBlockTaps)); // blocks of equal size
          sum_pixels(
              list + t,
              taps,
              width,
              p_.stride[2] * pixel,
              grads + v * plan_.tile * n,
              v * input.vector_size(),
              v * vector_weights_);
        }
      }
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
  const bool is_few = p.ic == 1 || p.ic * p.oc < 16 || (p.groups > 1 && p.ic <= 8 && p.oc <= 8);
  return is_few && DepthwisePlan(p, 16, 8).scratch <= 1 << 22;
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
