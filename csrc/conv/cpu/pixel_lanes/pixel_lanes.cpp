#include "conv/cpu/pixel_lanes/pixel_lanes.h"

#include <cmath>

#include "conv/cpu/pixel_lanes/images.h"
#include "conv/cpu/pixel_lanes/kernels.h"
#include "conv/cpu/shared/epilogue.h"

namespace torch_dnnl {
namespace {

constexpr double kMostScratch = 1 << 20; // elements

// What one call of a kernel computes of a unit: outputs of a phase of rows and a phase of columns,
// of some channels of a group.
struct Part {
  const Phase *row, *column;
  int64_t channel; // the first one, of a group's outputs
  bool slides;
  int64_t outputs;           // rows or channels that a pixel is multiplied for
  int64_t runs;              // rows of taps that it meets in a plane
  std::vector<int64_t> taps; // of a row
  int64_t weights;           // where those of the part are, of all of a group

  Part(
      const PixelLanesPlan& plan,
      const Phase& row,
      const Phase& column,
      int64_t channel,
      int64_t end)
      : row(&row), column(&column), channel(channel), taps(plan.column_taps(column)) {
    slides = plan.outer == 1 && can_slide(row);
    outputs = slides ? outputs_of_step(row) : end - channel;
    runs = slides ? std::min(row.in_step, row.taps) : row.taps;
  }

  // Whether the first of the outputs of a step meets a run; the others do.
  bool meets_first(int64_t run) const {
    return !slides || (outputs - 1) * row->in_step + run < row->taps;
  }

  int64_t weights_of_plane(int64_t inner) const {
    return inner * runs * static_cast<int64_t>(taps.size()) * outputs;
  }
};

// The parts of a unit, and how many weights of a group they have together.
struct Parts {
  std::vector<Part> list;
  int64_t weights = 0;

  explicit Parts(const PixelLanesPlan& plan) {
    const int64_t blocks = ceil_div(plan.outer, kPlaneOutputs);
    for (const Phase& row : plan.phases[1]) {
      for (const Phase& column : plan.phases[2]) {
        for (int64_t b = 0; b < blocks; b++) {
          Part part(plan, row, column, plan.outer * b / blocks, plan.outer * (b + 1) / blocks);
          part.weights = weights;
          weights += plan.p.kernel[0] * part.weights_of_plane(plan.inner);
          list.push_back(std::move(part));
        }
      }
    }
  }
};

// f(offset, index) for the weights of a group: where they are in the tensor from the first of the
// group on, and where in its parts: [part][depth][input channel][run][tap][output].
template <class F>
void for_each_weight(const PixelLanesPlan& plan, const Parts& parts, const F& f) {
  const int64_t* ws = plan.p.weights_stride;
  const int64_t in = ws[plan.backward_data() ? 0 : 1], out = ws[plan.backward_data() ? 1 : 0];
  for (const Part& part : parts.list) {
    int64_t index = part.weights;
    const auto for_taps = [&](int64_t offset, int64_t run) {
      for (size_t t = 0; t < part.taps.size(); t++) {
        const int64_t w = part.column->tap + static_cast<int64_t>(t) * part.column->tap_step;
        for (int64_t o = 0; o < part.outputs; o++, index++) {
          const int64_t m = part.slides ? (part.outputs - 1 - o) * part.row->in_step + run : run;
          const int64_t channel = part.slides ? part.channel : part.channel + o;
          if (m < part.row->taps)
            f(offset + channel * out + (part.row->tap + m * part.row->tap_step) * ws[3] + w * ws[4],
              index);
        }
      }
    };
    for (int64_t d = 0; d < plan.p.kernel[0]; d++) {
      for (int64_t i = 0; i < plan.inner; i++) {
        for (int64_t run = 0; run < part.runs; run++)
          for_taps(d * ws[2] + i * in, run);
      }
    }
  }
}

template <class C>
bool all_finite(const C* values, int64_t n) {
  return std::all_of(values, values + n, [](C value) { return std::isfinite(value); });
}

// Forward and backward data.
template <class T>
class Gather {
 public:
  explicit Gather(const ConvProblem& p)
      : p_(p),
        epilogue_(p),
        plan_(p, n),
        parts_(plan_),
        weights_(p.groups * parts_.weights),
        bias_(p.groups * plan_.outer),
        phases_(plan_.phases[2].size()),
        stores_(
            std::is_same_v<T, C> && phases_ == 1 && plan_.out_stride[4] == 1 &&
            epilogue_.is_empty()),
        out_pitch_(plan_.vectors * n) {}

  // False: values are not finite, see run_pixel_lanes.
  bool run() {
    pack_weights();
    // Zeros around an image are multiplied, too.
    if (!all_finite(weights_.data(), p_.groups * parts_.weights))
      return false;
    const int64_t operations =
        plan_.block * plan_.rows * plan_.tile * plan_.outer * plan_.inner * product(p_.kernel);
    parallel_tasks(plan_.units, operations, [&](int64_t begin, int64_t end) {
      PlaneImages<T, C> images(plan_);
      std::vector<PlaneRow<C>> rows;
      const Scratch<C> out(
          stores_ ? 0 : plan_.block * plan_.outer * out_rows() * phases_ * out_pitch_);
      for (int64_t i = begin; i < end; i++)
        compute(plan_.unit(i), images, rows, out.data());
    });
    return true;
  }

 private:
  using C = compute_t<T>;
  static constexpr int64_t n = kLanes<C>;

  void pack_weights() {
    const int64_t group_step = p_.weights_group;
    std::fill(weights_.data(), weights_.data() + p_.groups * parts_.weights, C(0));
    parallel_tasks(p_.groups, parts_.weights * 32, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; group++) {
        const T* from = static_cast<const T*>(p_.weights) + group * group_step;
        C* to = weights_.data() + group * parts_.weights;
        for_each_weight(plan_, parts_, [&](int64_t offset, int64_t index) {
          to[index] = static_cast<C>(from[offset]);
        });
      }
    });
    const auto* bias = static_cast<const T*>(p_.bias);
    for (int64_t c = 0; c < p_.groups * plan_.outer; c++)
      bias_.data()[c] = bias == nullptr ? C(0) : static_cast<C>(bias[c * p_.bias_stride]);
  }

  // Rows of outputs of a unit.
  int64_t out_rows() const {
    return plan_.rows * plan_.phases[1][0].out_step;
  }

  void compute(
      const PixelLanesPlan::Unit& unit,
      PlaneImages<T, C>& images,
      std::vector<PlaneRow<C>>& rows,
      C* scratch) const {
    images.select(unit);
    for (const Part& part : parts_.list) {
      list_rows(unit, part, images, rows);
      compute_part(unit, part, images, rows, scratch);
    }
    if (stores_)
      return;
    const int64_t step = plan_.phases[1][0].out_step;
    const int64_t count = std::min(unit.rows * step, plan_.out_size[1] - unit.row * step);
    for (int64_t i = 0; i < unit.images * plan_.outer; i++) {
      const int64_t image = i / plan_.outer, channel = i % plan_.outer;
      const C* sums = scratch + i * out_rows() * phases_ * out_pitch_;
      if (epilogue_.is_empty()) {
        for (int64_t r = 0; r < count; r++)
          store(unit, image, channel, r, sums + r * phases_ * out_pitch_);
      } else { // of the forward pass, which has no phases
        const int64_t c = unit.group * plan_.outer + channel;
        const int64_t pixels = std::min(unit.width, plan_.out_size[2] - unit.first);
        const OutputRun run{unit.n + image, c, unit.d, unit.row, unit.first, 1, pixels};
        epilogue_.store_lines(sums, out_pitch_, count, run);
      }
    }
  }

  void list_rows(
      const PixelLanesPlan::Unit& unit,
      const Part& part,
      PlaneImages<T, C>& images,
      std::vector<PlaneRow<C>>& rows) const {
    rows.clear();
    const Phase& f = *part.row;
    const int64_t first = f.in + unit.row * f.in_step - images.rows().begin;
    const C* const weights = weights_.data() + unit.group * parts_.weights + part.weights;
    const int64_t of_plane = part.weights_of_plane(plan_.inner);
    plan_.for_each_plane(unit.d, [&](int64_t d, int64_t tap) {
      const C* w = weights + tap * of_plane;
      for (int64_t i = 0; i < plan_.inner; i++) {
        for (int64_t run = 0; run < part.runs; run++) {
          rows.push_back(
              {images.plane(d, i),
               w,
               first + run * (part.slides ? 1 : f.tap_in_step),
               part.meets_first(run)});
          w += static_cast<int64_t>(part.taps.size()) * part.outputs;
        }
      }
    });
  }

  void compute_part(
      const PixelLanesPlan::Unit& unit,
      const Part& part,
      const PlaneImages<T, C>& images,
      std::vector<PlaneRow<C>>& rows,
      C* scratch) const {
    const Phase &f = *part.row, &g = *part.column;
    const int64_t steps =
        std::min(unit.rows, ceil_div(plan_.out_size[1] - f.out, f.out_step) - unit.row);
    const int64_t width =
        std::min(unit.width, ceil_div(plan_.out_size[2] - g.out, g.out_step) - unit.first);
    if (steps <= 0 || width <= 0)
      return;
    PlaneOperands<C> o;
    o.rows = rows.data();
    o.count = static_cast<int64_t>(rows.size());
    o.taps = part.taps.data();
    o.tap_count = static_cast<int64_t>(part.taps.size());
    o.first_row = 0;
    o.last_row = images.rows().end - images.rows().begin;
    o.row_pitch = plan_.row_pitch();
    o.row_step = f.in_step;
    o.steps = part.slides ? steps + part.outputs - 1 : steps;
    o.bias = bias_.data() + unit.group * plan_.outer + part.channel;
    const bool is_narrow = plan_.vectors == 1;
    const int64_t* ys = plan_.out_stride;
    if (stores_) {
      if constexpr (std::is_same_v<T, C>) {
        o.out = static_cast<T*>(p_.out) + unit.n * ys[0] +
            (unit.group * plan_.outer + part.channel) * ys[1] + unit.d * ys[2] +
            (f.out + unit.row * f.out_step) * ys[3] + unit.first;
      }
      o.out_row = f.out_step * ys[3];
      o.out_channel = ys[1];
      o.out_step = is_narrow ? ys[0] : n;
    } else {
      const int64_t row = phases_ * out_pitch_;
      o.out = scratch + (part.channel * out_rows() + f.out) * row + g.out * out_pitch_;
      o.out_row = f.out_step * row;
      o.out_channel = out_rows() * row;
      o.out_step = is_narrow ? plan_.outer * o.out_channel : n;
    }
    o.pixel_step = is_narrow ? images.image_step() : n;
    const int64_t vectors = is_narrow ? unit.images : ceil_div(width, n);
    const int64_t most = most_plane_vectors(static_cast<int>(part.outputs));
    const int64_t block = ceil_div(vectors, ceil_div(vectors, most)); // about equal ones
    const bool is_line = o.steps == 1 && !is_narrow;
    if (is_line)
      make_line(rows, o, vectors, block * n);
    for (int64_t v = 0, count; v < vectors; v += count) {
      o.vectors = std::min(block, vectors - v);
      if (is_line)
        o.steps = std::max<int64_t>((width / n - v) / block, 1);
      for (int64_t i = 0; i < o.vectors; i++)
        o.pixels[i] = is_narrow ? width : std::min(n, width - (v + i) * n);
      o.is_whole = o.pixels[o.vectors - 1] == n; // the last one has the fewest
      gather_planes(o, part.slides, part.outputs);
      count = o.vectors * (is_line ? o.steps : 1);
      for (PlaneRow<C>& row : rows)
        row.pixels += count * o.pixel_step;
      o.out += count * o.out_step;
    }
  }

  // The steps of a single row are whole blocks of its pixels.
  static void
  make_line(std::vector<PlaneRow<C>>& rows, PlaneOperands<C>& o, int64_t steps, int64_t pixels) {
    std::erase_if(
        rows, [&](const PlaneRow<C>& row) { return row.row < 0 || row.row >= o.last_row; });
    for (PlaneRow<C>& row : rows) {
      row.pixels += row.row * o.row_pitch;
      row.row = 0;
    }
    o.count = static_cast<int64_t>(rows.size());
    o.last_row = steps;
    o.row_step = 1;
    o.row_pitch = o.out_row = pixels;
  }

  // A row of a channel, whose phases lie one after the other.
  void store(
      const PixelLanesPlan::Unit& unit,
      int64_t image,
      int64_t channel,
      int64_t row,
      const C* sums) const {
    const int64_t h = unit.row * plan_.phases[1][0].out_step + row;
    const int64_t step = plan_.phases[2][0].out_step, w = unit.first * step;
    const int64_t pixels = std::min(unit.width * step, plan_.out_size[2] - w);
    const int64_t c = unit.group * plan_.outer + channel;
    const int64_t* ys = plan_.out_stride;
    T* to = static_cast<T*>(p_.out) + (unit.n + image) * ys[0] + c * ys[1] + unit.d * ys[2] +
        h * ys[3] + w * ys[4];
    const auto store_part = [&](int64_t x, const Lanes<C>& lanes) {
      if (x + n <= pixels) {
        store_lanes<C>(to + x, lanes);
      } else if (x < pixels) {
        store_lanes<C>(to + x, lanes, pixels - x);
      }
    };
    if (step == 1 && ys[4] == 1) {
      for (int64_t x = 0; x < pixels; x += n)
        store_part(x, Lanes<C>::loadu(sums + x));
    } else if (phases_ == 2 && ys[4] == 1) {
      for (int64_t x = 0; x < pixels; x += 2 * n) {
        const C* even = sums + x / 2;
        const auto [first, second] =
            at::vec::interleave2(Lanes<C>::loadu(even), Lanes<C>::loadu(even + out_pitch_));
        store_part(x, first);
        store_part(x + n, second);
      }
    } else {
      for (int64_t phase = 0; phase < step; phase++, sums += out_pitch_) {
        for (int64_t x = phase, i = 0; x < pixels; x += step, i++)
          to[x * ys[4]] = convert<T>(sums[i]);
      }
    }
  }

  const ConvProblem& p_;
  const Epilogue<T> epilogue_;
  const PixelLanesPlan plan_;
  const Parts parts_;
  const Scratch<C> weights_, bias_;
  const int64_t phases_; // of columns
  const bool stores_;    // kernels store what is computed where it belongs
  const int64_t out_pitch_;
};

// Backward weights: products of pixels and gradients are summed over a chunk's units lane by lane,
// then over the lanes, then over chunks. The chunks, and with them the order of the sums, depend on
// the problem alone.
template <class T>
class WeightsGradient {
 public:
  explicit WeightsGradient(const ConvProblem& p)
      : p_(p),
        plan_(p, n),
        parts_(plan_),
        grad_pitch_(plan_.vectors * n),
        margin_(parts_.list[0].slides ? parts_.list[0].outputs - 1 : 0),
        grad_rows_(plan_.rows + 2 * margin_),
        units_(plan_.units / p.groups),
        chunks_(std::clamp<int64_t>(kTasks / p.groups, 1, units_)),
        sums_(chunks_ * p.groups * parts_.weights) {}

  // False: values are not finite, see run_pixel_lanes.
  bool run() {
    const int64_t operations = units_ / chunks_ * plan_.block * plan_.rows * plan_.tile *
        plan_.outer * plan_.inner * product(p_.kernel);
    parallel_tasks(p_.groups * chunks_, operations, [&](int64_t begin, int64_t end) {
      PlaneImages<T, C> images(plan_);
      const Scratch<C> grads(plan_.outer * grad_rows_ * grad_pitch_);
      const Scratch<C> lanes(parts_.weights * n);
      for (int64_t task = begin; task < end; task++)
        accumulate(task / chunks_, task % chunks_, images, grads.data(), lanes.data());
    });
    C* const total = sums_.data();
    const int64_t count = p_.groups * parts_.weights;
    for (int64_t chunk = 1; chunk < chunks_; chunk++) {
      for (int64_t i = 0; i < count; i++)
        total[i] += total[chunk * count + i];
    }
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
  void load_grads(const PixelLanesPlan::Unit& unit, int64_t image, C* to) const {
    const int64_t* ys = p_.dst_stride;
    for (int64_t c = 0; c < plan_.outer; c++, to += grad_rows_ * grad_pitch_) {
      const T* from = static_cast<const T*>(p_.dst) + image * ys[0] +
          (unit.group * plan_.outer + c) * ys[1] + unit.d * ys[2] + unit.row * ys[3] +
          unit.first * ys[4];
      C* row = to;
      std::fill(row, row + margin_ * grad_pitch_, C(0));
      row += margin_ * grad_pitch_;
      if (ys[4] != 1)
        std::fill(row, row + unit.rows * grad_pitch_, C(0));
      load_rows(from, ys[3], ys[4], unit.rows, unit.width, row, grad_pitch_);
      row += unit.rows * grad_pitch_;
      std::fill(row, row + margin_ * grad_pitch_, C(0));
    }
  }

  void accumulate(
      const PixelLanesPlan::Unit& unit,
      const Part& part,
      int64_t image,
      PlaneImages<T, C>& images,
      const C* grads,
      C* lanes) const {
    const Phase& f = *part.row;
    const int64_t image_rows = images.rows().end - images.rows().begin;
    const int64_t tap_count = static_cast<int64_t>(part.taps.size());
    plan_.for_each_plane(unit.d, [&](int64_t d, int64_t tap) {
      C* sums = lanes + (part.weights + tap * part.weights_of_plane(plan_.inner)) * n;
      for (int64_t i = 0; i < plan_.inner; i++) {
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
          o.rows = steps.end - steps.begin;
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
  const PixelLanesPlan plan_;
  const Parts parts_;
  const int64_t grad_pitch_, margin_; // margin_: rows of zeros on either side of gradients
  const int64_t grad_rows_, units_, chunks_;
  const Scratch<C> sums_;
};

} // namespace

bool supports_pixel_lanes(const ConvProblem& problem) {
  const ConvProblem p = with_long_rows(problem);
  const int64_t lanes = p.dtype == c10::ScalarType::Double ? kLanes<double> : kLanes<float>;
  const PixelLanesPlan plan(p, lanes);
  const double sums = 1.0 * plan.inner * plan.outer * product(p.kernel) * lanes; // of a gradient
  return std::max(plan.scratch, sums) <= kMostScratch;
}

bool run_pixel_lanes(const ConvProblem& problem) {
  const ConvProblem p = with_long_rows(problem);
  bool is_done = false;
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    is_done =
        p.pass == ConvPass::backward_weights ? WeightsGradient<T>(p).run() : Gather<T>(p).run();
  });
  return is_done;
}

} // namespace torch_dnnl
