// Convolution with few channels per group on the CPU, of channels-first images above all: the lanes
// of a vector are neighbouring pixels of a row. Each vector that is loaded is multiplied for
// several outputs: the channels of a group or, of depthwise convolution, rows.
// Here are forward and backward data; weights_gradient.cpp has the other pass.
#include "conv/cpu/pixel_lanes/images.h"
#include "conv/cpu/pixel_lanes/kernels.h"
#include "conv/cpu/pixel_lanes/parts.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/finite.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/packed/packed.h"
#include "core/cpu/parallel.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Elements of scratch memory: rows of inputs, or sums of weights; and outputs.
constexpr double kMostScratch = 1 << 20;
constexpr int64_t kMostOutputs = 1 << 24;

// packed: for_each_weight for each group.
template <class T, class C>
void pack_weights(const PixelLanesPlan& plan, const Parts& parts, C* packed) {
  const int64_t groups = plan.p.groups;
  std::fill(packed, packed + groups * parts.weights, C(0));
  parallel_tasks(groups, parts.weights * 32, [&](SharedTasks::OfThread mine) {
    for (const int64_t group : mine) {
      const T* from = static_cast<const T*>(plan.p.weights) + group * plan.p.weights_group;
      C* to = packed + group * parts.weights;
      for_each_weight(plan, parts, [&](int64_t offset, int64_t index) {
        to[index] = static_cast<C>(from[offset]);
      });
    }
  });
}

// The steps of a single row are whole blocks of its pixels.
template <class C>
void make_line(std::vector<PlaneRow<C>>& rows, PlaneOperands<C>& o, int64_t steps, int64_t pixels) {
  std::erase_if(rows, [&](const PlaneRow<C>& row) { return row.row < 0 || row.row >= o.last_row; });
  for (PlaneRow<C>& row : rows) {
    row.pixels += row.row * o.row_pitch;
    row.row = 0;
  }
  o.count = static_cast<int64_t>(rows.size());
  o.last_row = steps;
  o.row_step = 1;
  o.row_pitch = o.out_row = pixels;
}

// A row of outputs, whose phases lie one after the other.
template <class T, class C>
void store_row(const PixelLanesPlan& plan, const C* sums, int64_t pixels, T* to) {
  constexpr int64_t n = kLanes<C>;
  const int64_t pitch = plan.out_pitch(), step = plan.phases[2][0].out_step;
  const int64_t stride = plan.out_stride[4];
  const auto store_part = [&](int64_t x, const Lanes<C>& lanes) {
    if (x < pixels)
      store_up_to<C>(to + x, lanes, pixels - x);
  };
  if (step == 1 && stride == 1) {
    for (int64_t x = 0; x < pixels; x += n)
      store_part(x, Lanes<C>::loadu(sums + x));
  } else if (plan.phases[2].size() == 2 && stride == 1) {
    for (int64_t x = 0; x < pixels; x += 2 * n) {
      const C* even = sums + x / 2;
      const auto [first, second] =
          interleave_lanes(Lanes<C>::loadu(even), Lanes<C>::loadu(even + pitch));
      store_part(x, first);
      store_part(x + n, second);
    }
  } else {
    for (int64_t phase = 0; phase < step; phase++, sums += pitch)
      for (int64_t x = phase, i = 0; x < pixels; x += step, i++)
        to[x * stride] = convert<T>(sums[i]);
  }
}

// Completes rows whose pixels lie apart by phases.
template <class T, class C>
void store_phases(
    const PixelLanesPlan& plan,
    const Epilogue<T>& epilogue,
    OutputRun run,
    int64_t rows,
    const C* sums) {
  constexpr int64_t most = 256;
  const int64_t phases = plan.phases[2].size(), pitch = plan.out_pitch();
  const int64_t pixels = run.pixels, first = run.w;
  C line[most];
  for (int64_t r = 0; r < rows; r++, run.h++, sums += phases * pitch) {
    for (int64_t x = 0; x < pixels; x += run.pixels) {
      run.w = first + x;
      run.pixels = std::min(most, pixels - x);
      for (int64_t i = 0; i < run.pixels; i++)
        line[i] = sums[(x + i) % phases * pitch + (x + i) / phases];
      epilogue.store_line(line, run);
    }
  }
}

// Completes the sums of a unit. sums: in scratch memory, or null if the sums lie where the results
// will be.
template <class T, class C>
void store_unit(
    const PixelLanesPlan& plan,
    const Epilogue<T>& epilogue,
    const PixelLanesPlan::Unit& unit,
    const C* sums) {
  const int64_t row_step = plan.phases[1][0].out_step, step = plan.phases[2][0].out_step;
  const int64_t phases = plan.phases[2].size(), row = plan.out_stride[3];
  const int64_t pitch = sums == nullptr ? row : phases * plan.out_pitch();
  const int64_t h = unit.row * row_step, w = unit.first * step;
  const int64_t rows = std::min(unit.rows * row_step, plan.out_size[1] - h);
  const int64_t pixels = std::min(unit.width * step, plan.out_size[2] - w);
  for (int64_t i = 0; i < unit.images * plan.out_channels; i++) {
    const int64_t channel = unit.group * plan.out_channels + i % plan.out_channels;
    const OutputRun run{unit.n + i / plan.out_channels, channel, unit.d, h, w, 1, pixels};
    T* const to = epilogue.output(run);
    const C* from =
        sums == nullptr ? reinterpret_cast<const C*>(to) : sums + i * plan.out_rows() * pitch;
    if (epilogue.is_clamp())
      for (int64_t r = 0; r < rows; r++)
        store_row(plan, from + r * pitch, pixels, to + r * row);
    else if (phases == 1)
      epilogue.store_lines(from, pitch, rows, run);
    else
      store_phases(plan, epilogue, run, rows, from);
  }
}

template <class T>
class Gather {
 public:
  explicit Gather(const ConvProblem& p) : p_(p) {}

  // False: values are not finite, see run_pixel_lanes.
  bool run() {
    // Zeros around an image are multiplied, too.
    if (!all_finite(weights_.data(), plan_.p.groups * parts_.weights))
      return false;
    parallel_tasks(plan_.units(), plan_.operations(), [&](SharedTasks::OfThread mine) {
      PlaneImages<T, C> images(plan_);
      std::vector<PlaneRow<C>> rows;
      const Scratch<C> out(is_stored_ ? 0 : plan_.out_elements());
      for (const int64_t i : mine)
        compute(plan_.unit(i), images, rows, out.data());
    });
    return true;
  }

 private:
  using C = compute_t<T>;
  using Unit = PixelLanesPlan::Unit;
  static constexpr int64_t n = kLanes<C>;

  void compute(
      const Unit& unit,
      PlaneImages<T, C>& images,
      std::vector<PlaneRow<C>>& rows,
      C* scratch) const {
    images.select(unit);
    for (const Part& part : parts_.list) {
      list_rows(unit, part, images, rows);
      compute_part(unit, part, images, rows, scratch);
    }
    if (!is_stored_)
      store_unit(plan_, epilogue_, unit, scratch);
    else if (!epilogue_.is_clamp())
      store_unit<T, C>(plan_, epilogue_, unit, nullptr);
  }

  // The rows of taps of a part.
  void list_rows(
      const Unit& unit,
      const Part& part,
      PlaneImages<T, C>& images,
      std::vector<PlaneRow<C>>& rows) const {
    rows.clear();
    const Phase& f = *part.row;
    const int64_t first = f.in + unit.row * f.in_step - images.rows().begin;
    const C* const weights = weights_.data() + unit.group * parts_.weights + part.weights;
    for_each_tap(plan_.phases[0], unit.d, plan_.in_size[0], [&](int64_t d, int64_t tap) {
      const C* w = weights + tap * part.plane_weights;
      for (int64_t i = 0; i < plan_.in_channels; i++) {
        for (int64_t run = 0; run < part.runs; run++) {
          const int64_t row = first + run * (part.slides ? 1 : f.tap_in_step);
          rows.push_back({images.plane(d, i), w, row, part.meets_first(run)});
          w += static_cast<int64_t>(part.taps.size()) * part.outputs;
        }
      }
    });
  }

  void compute_part(
      const Unit& unit,
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
    PlaneOperands<C> o = operands(unit, part, images, scratch);
    o.rows = rows.data();
    o.count = static_cast<int64_t>(rows.size());
    o.steps = part.slides ? steps + part.outputs - 1 : steps;
    const bool is_narrow = plan_.vectors == 1;
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

  // All but rows of taps, steps and vectors.
  PlaneOperands<C>
  operands(const Unit& unit, const Part& part, const PlaneImages<T, C>& images, C* scratch) const {
    const Phase &f = *part.row, &g = *part.column;
    const bool is_narrow = plan_.vectors == 1;
    const int64_t c = unit.group * plan_.out_channels + part.channel;
    PlaneOperands<C> o;
    o.taps = part.taps.data();
    o.tap_count = static_cast<int64_t>(part.taps.size());
    o.first_row = 0;
    o.last_row = images.rows().count();
    o.row_pitch = plan_.row_pitch();
    o.row_step = f.in_step;
    o.pixel_step = is_narrow ? images.image_step() : n;
    o.bias = bias_.at(unit.group, part.channel);
    if (epilogue_.is_clamp())
      o.bounds = epilogue_.bounds();
    if (is_stored_) {
      const int64_t* ys = plan_.out_stride;
      if constexpr (std::is_same_v<T, C>) {
        const int64_t h = f.out + unit.row * f.out_step;
        o.out = epilogue_.output({unit.n, c, unit.d, h, unit.first, 1, 1});
      }
      o.out_row = f.out_step * ys[3];
      o.out_channel = ys[1];
      o.out_step = is_narrow ? ys[0] : n;
    } else {
      const int64_t row = phases_ * out_pitch_;
      o.out = scratch + (part.channel * plan_.out_rows() + f.out) * row + g.out * out_pitch_;
      o.out_row = f.out_step * row;
      o.out_channel = plan_.out_rows() * row;
      o.out_step = is_narrow ? plan_.out_channels * o.out_channel : n;
    }
    return o;
  }

  const ConvProblem& p_;
  const Epilogue<T> epilogue_{p_};
  const PixelLanesPlan plan_ = plan_pixel_lanes(p_, n);
  const Parts parts_{plan_};
  const PackedWeights<C> weights_{p_, p_.groups * parts_.weights, [&](C* to) {
                                    pack_weights<T>(plan_, parts_, to);
                                  }};
  const Bias<T> bias_{p_, plan_.out_channels};
  const int64_t phases_ = plan_.phases[2].size(); // of columns
  // Whether kernels store sums where results belong.
  const bool is_stored_ = std::is_same_v<T, C> && phases_ == 1 && plan_.out_stride[4] == 1;
  const int64_t out_pitch_ = plan_.out_pitch();
};

int64_t packed_size(const ConvProblem& problem) {
  const ConvProblem p = with_long_rows(problem);
  const bool is_double = p.dtype == c10::kDouble;
  const PixelLanesPlan plan = plan_pixel_lanes(p, is_double ? kLanes<double> : kLanes<float>);
  return p.groups * Parts(plan).weights * int64_t(is_double ? sizeof(double) : sizeof(float));
}

bool pack(const ConvProblem& problem, void* to) {
  const ConvProblem p = with_long_rows(problem);
  bool are_finite = false; // see run()
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    const PixelLanesPlan plan = plan_pixel_lanes(p, kLanes<C>);
    const Parts parts(plan);
    pack_weights<T>(plan, parts, static_cast<C*>(to));
    are_finite = all_finite(static_cast<const C*>(to), p.groups * parts.weights);
  });
  return are_finite;
}

// The images decide which axes of the kernel run along rows and columns, and whether a part slides.
int64_t layout(const ConvProblem& problem) {
  const ConvProblem p = with_long_rows(problem);
  const int64_t step = slides({p}, phases_of(p, 1)[0]) ? p.stride[1] : 0;
  return step << 48 | p.kernel[1] << 24 | p.kernel[2];
}

} // namespace

const Packing<ConvProblem> pixel_lanes_packing{packed_size, pack, layout};

bool supports_pixel_lanes(const ConvProblem& problem) {
  const ConvProblem p = with_long_rows(problem);
  const int64_t lanes = p.dtype == c10::ScalarType::Double ? kLanes<double> : kLanes<float>;
  const PixelLanesPlan plan = plan_pixel_lanes(p, lanes);
  const double sums =
      1.0 * plan.in_channels * plan.out_channels * product(p.kernel) * lanes; // of a gradient
  return std::max(plan.scratch, sums) <= kMostScratch && plan.out_elements() <= kMostOutputs;
}

bool run_pixel_lanes(const ConvProblem& problem) {
  const ConvProblem p = with_long_rows(problem);
  if (p.pass == ConvPass::backward_weights)
    return pixel_lanes_weights_gradient(p);
  bool is_done = false;
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    is_done = Gather<T>(p).run();
  });
  return is_done;
}

} // namespace torch_dnnl
