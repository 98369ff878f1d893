// The gradient of weights: products of pixels and gradients, summed in parts.

#include "conv/cpu/pixel_lanes/images.h"
#include "conv/cpu/pixel_lanes/kernels.h"
#include "conv/cpu/pixel_lanes/parts.h"
#include "conv/cpu/shared/finite.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/reduce.h"
#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "core/numeric.h"

namespace torch_dnnl {
namespace {

// Backward weights: products of pixels and gradients are summed over a chunk's units lane by lane,
// then over the lanes, then over chunks. The chunks, and with them the order of the sums, depend on
// the problem alone.
template <class T>
class WeightsGradient {
 public:
  explicit WeightsGradient(const ConvProblem& p) : p_(p) {}

  // False: values are not finite, see run_pixel_lanes.
  bool run() {
    const int64_t operations = units_ / chunks_ * plan_.operations();
    parallel_tasks(p_.groups * chunks_, operations, [&](SharedTasks::OfThread mine) {
      PlaneImages<T, C> images(plan_);
      const Scratch<C> grads(plan_.out_channels * grad_rows_ * grad_pitch_);
      const Scratch<C> lanes(parts_.weights * n);
      for (const int64_t task : mine)
        accumulate(task / chunks_, task % chunks_, images, grads.data(), lanes.data());
    });
    C* const total = sums_.data();
    const int64_t count = p_.groups * parts_.weights;
    add_chunks<C>({total, /*outputs=*/1, /*output_step=*/0, count, chunks_, count});
    // Gradients are multiplied with the zeros around an image, too, and pixels with zeros.
    if (!all_finite(total, count))
      return false;
    for (int64_t group = 0; group < p_.groups; group++) {
      T* const to = static_cast<T*>(p_.out) + group * p_.weights_group;
      const C* from = total + group * parts_.weights;
      for_each_weight(plan_, parts_, [&](int64_t offset, int64_t index) {
        to[offset] = convert<T>(from[index]);
      });
    }
    return true;
  }

 private:
  using C = compute_t<T>;
  using Unit = PixelLanesPlan::Unit;
  static constexpr int64_t n = kLanes<C>;
  static constexpr int64_t kTasks = 32; // enough for the threads to share

  void
  accumulate(int64_t group, int64_t chunk, PlaneImages<T, C>& images, C* grads, C* lanes) const {
    std::fill(lanes, lanes + parts_.weights * n, C(0));
    for (int64_t i = units_ * chunk / chunks_; i < units_ * (chunk + 1) / chunks_; i++) {
      const auto unit = plan_.unit(group * units_ + i);
      images.select(unit);
      for (int64_t image = 0; image < unit.images; image++) {
        load_grads(unit, unit.n + image, grads);
        for (const Part& part : parts_.list)
          accumulate(unit, part, image, images, grads, lanes);
      }
    }
    C* to = sums_.data() + (chunk * p_.groups + group) * parts_.weights;
    for (int64_t i = 0; i < parts_.weights; i++) {
      C sum = 0;
      for (int64_t lane = 0; lane < n; lane++)
        sum += lanes[i * n + lane];
      to[i] = sum;
    }
  }

  // Rows of gradients with zeros behind them, and rows of zeros around them.
  void load_grads(const Unit& unit, int64_t image, C* to) const {
    const int64_t* ys = p_.dst_stride;
    for (int64_t c = 0; c < plan_.out_channels; c++, to += grad_rows_ * grad_pitch_) {
      const T* from = static_cast<const T*>(p_.dst) + image * ys[0] +
          (unit.group * plan_.out_channels + c) * ys[1] + unit.d * ys[2] + unit.row * ys[3] +
          unit.first * ys[4];
      C* row = to;
      std::fill(row, row + margin_ * grad_pitch_, C(0));
      row += margin_ * grad_pitch_;
      if (ys[4] != 1)
        std::fill(row, row + unit.rows * grad_pitch_, C(0));
      load_rows<T, C>({from, ys[3], unit.rows, unit.width, row, grad_pitch_}, ys[4]);
      row += unit.rows * grad_pitch_;
      std::fill(row, row + margin_ * grad_pitch_, C(0));
    }
  }

  void accumulate(
      const Unit& unit,
      const Part& part,
      int64_t image,
      PlaneImages<T, C>& images,
      const C* grads,
      C* lanes) const {
    const Phase& f = *part.row;
    const int64_t image_rows = images.rows().count();
    const int64_t tap_count = static_cast<int64_t>(part.taps.size());
    for_each_tap(plan_.phases[0], unit.d, plan_.in_size[0], [&](int64_t d, int64_t tap) {
      C* sums = lanes + (part.weights + tap * part.plane_weights) * n;
      for (int64_t i = 0; i < plan_.in_channels; i++) {
        const C* plane = images.plane(d, i) + image * images.image_step();
        for (int64_t run = 0; run < part.runs; run++) {
          const int64_t first = f.in + unit.row * f.in_step - images.rows().begin +
              run * (part.slides ? 1 : f.tap_in_step);
          // Steps whose row is in the image.
          const Range steps = within(first, f.in_step, image_rows, unit.rows + margin_);
          PlaneSums<C> o;
          o.pixels = plane + (first + steps.begin * f.in_step) * plan_.row_pitch();
          o.row_pitch = f.in_step * plan_.row_pitch();
          o.grads = grads + part.channel * grad_rows_ * grad_pitch_ + steps.begin * grad_pitch_;
          o.grad_pitch = grad_pitch_;
          o.grad_step = part.slides ? grad_pitch_ : grad_rows_ * grad_pitch_;
          o.rows = steps.count();
          o.vectors = ceil_div(unit.width, n);
          const int64_t most = most_plane_taps(static_cast<int>(part.outputs));
          for (int64_t t = 0; t < tap_count && o.rows > 0; t += o.tap_count) {
            o.tap_count = ceil_div(tap_count - t, ceil_div(tap_count - t, most));
            o.taps = part.taps.data() + t;
            o.sums = sums + t * part.outputs * n;
            sum_planes(o, part.outputs);
          }
          sums += tap_count * part.outputs * n;
        }
      }
    });
  }

  const ConvProblem& p_;
  const PixelLanesPlan plan_ = plan_pixel_lanes(p_, n);
  const Parts parts_{plan_};
  const int64_t grad_pitch_ = plan_.vectors * n;
  // Rows of zeros on either side of gradients.
  const int64_t margin_ = parts_.list[0].slides ? parts_.list[0].outputs - 1 : 0;
  const int64_t grad_rows_ = plan_.rows + 2 * margin_;
  const int64_t units_ = plan_.units() / p_.groups;
  const int64_t chunks_ = std::clamp<int64_t>(kTasks / p_.groups, 1, units_);
  const Scratch<C> sums_{chunks_ * p_.groups * parts_.weights};
};

} // namespace

bool pixel_lanes_weights_gradient(const ConvProblem& p) {
  bool is_done = false;
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    is_done = WeightsGradient<T>(p).run();
  });
  return is_done;
}

} // namespace torch_dnnl
