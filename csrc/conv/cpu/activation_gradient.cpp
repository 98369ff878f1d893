#include "conv/cpu/activation_gradient.h"

#include <array>
#include <vector>

#include "conv/cpu/shared/activation_lanes.h"
#include "conv/cpu/shared/pixels.h"
#include "conv/reference.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/math.h"

namespace torch_dnnl {
namespace {

// Elements of a part of the result: what is summed is still in the first-level cache, and a sum in
// float32 is one of so few.
constexpr int64_t kPart = 4096;
// Pixels of a part where channels are innermost. The sums of a part take memory too.
constexpr int64_t kFewestPixels = 64, kMostPixels = 1024;

struct Offsets {
  int64_t grad, value, out;

  Offsets plus(int64_t steps, const Offsets& step) const {
    return {grad + steps * step.grad, value + steps * step.value, out + steps * step.out};
  }
};

struct Axis {
  int64_t size;
  Offsets step;
};

// Axes of the three tensors, the last one runs fastest; neighbours that are one axis in all of them
// are merged.
class Axes {
 public:
  void add(const Axis& axis) {
    if (axis.size == 1)
      return;
    const auto continues = [&](int64_t Offsets::* of) {
      return inner_.step.*of == axis.size * axis.step.*of;
    };
    if (inner_.size == 1 ||
        (continues(&Offsets::grad) && continues(&Offsets::value) && continues(&Offsets::out))) {
      inner_ = {inner_.size * axis.size, axis.step};
      return;
    }
    outer_[count_++] = inner_;
    lines_ *= inner_.size;
    inner_ = axis;
  }

  const Axis& inner() const {
    return inner_;
  }
  // The number of lines along the inner axis, and where one begins.
  int64_t lines() const {
    return lines_;
  }
  Offsets line(int64_t index) const {
    Offsets at{};
    Digits digits{index};
    for (int a = count_ - 1; a >= 0; a--)
      at = at.plus(digits.next(outer_[a].size), outer_[a].step);
    return at;
  }

 private:
  std::array<Axis, 4> outer_;
  int count_ = 0;
  int64_t lines_ = 1;
  Axis inner_{1, {1, 1, 1}};
};

template <class T, Activation activation>
class Pass {
  using C = compute_t<T>;

 public:
  Pass(const ActivationGradient& p, double* sums) : p_(p), sums_(sums) {}

  void run() const {
    if (p_.channels > 1 && p_.out_stride[1] == 1) {
      with_channels_innermost();
    } else {
      with_pixels_innermost();
    }
  }

 private:
  Axis axis(int index) const { // of N, C, D, H, W
    const int64_t size = index == 0 ? p_.n : index == 1 ? p_.channels : p_.size[index - 2];
    return {size, {p_.grad_stride[index], p_.value_stride[index], p_.out_stride[index]}};
  }

  void with_pixels_innermost() const {
    Axes pixels;
    for (const int a : {2, 3, 4})
      pixels.add(axis(a));
    const int64_t images = p_.n * p_.channels, length = pixels.inner().size;
    std::vector<double> of_planes(sums_ == nullptr ? 0 : images);
    parallel_tasks(images, pixels.lines() * length * kCost, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; task++) {
        const Offsets plane =
            Offsets{}.plus(task / p_.channels, axis(0).step).plus(task % p_.channels, axis(1).step);
        for (int64_t line = 0; line < pixels.lines(); line++) {
          const Offsets first = plane.plus(1, pixels.line(line));
          for (int64_t x = 0; x < length; x += kPart) {
            const Offsets at = first.plus(x, pixels.inner().step);
            const int64_t count = std::min(kPart, length - x);
            multiply(at, pixels.inner().step, count);
            if (sums_ != nullptr)
              of_planes[task] += sum(out(at), count);
          }
        }
      }
    });
    add_to_sums(of_planes);
  }

  void with_channels_innermost() const {
    const Axis channels = axis(1);
    Axes pixels;
    for (const int a : {0, 2, 3, 4})
      pixels.add(axis(a));
    const Axis& line = pixels.inner();
    const auto follow = [&](int64_t Offsets::* of) {
      return channels.step.*of == 1 && line.step.*of == channels.size;
    };
    const bool is_dense =
        follow(&Offsets::grad) && follow(&Offsets::value) && follow(&Offsets::out);
    const int64_t part = std::clamp(kPart / channels.size, kFewestPixels, kMostPixels);
    const int64_t parts = ceil_div(line.size, part), tasks = pixels.lines() * parts;
    std::vector<double> of_parts(sums_ == nullptr ? 0 : tasks * channels.size);
    parallel_tasks(tasks, part * channels.size * kCost, [&](int64_t begin, int64_t end) {
      std::vector<C> of_part(channels.size);
      for (int64_t task = begin; task < end; task++) {
        const int64_t x = task % parts * part, count = std::min(part, line.size - x);
        const Offsets first = pixels.line(task / parts).plus(x, line.step);
        if (is_dense) {
          multiply(first, channels.step, count * channels.size);
        } else {
          for (int64_t i = 0; i < count; i++)
            multiply(first.plus(i, line.step), channels.step, channels.size);
        }
        if (sums_ == nullptr)
          continue;
        std::fill(of_part.begin(), of_part.end(), C(0));
        const T* pixel = out(first);
        for (int64_t i = 0; i < count; i++, pixel += line.step.out) {
          for (int64_t c = 0; c < channels.size; c++)
            of_part[c] += static_cast<C>(pixel[c]);
        }
        std::copy(of_part.begin(), of_part.end(), of_parts.begin() + task * channels.size);
      }
    });
    add_to_sums(of_parts);
  }

  T* out(const Offsets& at) const {
    return static_cast<T*>(p_.out) + at.out;
  }

  // `count` elements along an axis on which those of the result follow one another.
  void multiply(const Offsets& at, const Offsets& step, int64_t count) const {
    const T* grad = static_cast<const T*>(p_.grad) + at.grad;
    const T* value = static_cast<const T*>(p_.value) + at.value;
    if (step.grad == 1 && step.value == 1) {
      multiply<true>(grad, 1, value, 1, out(at), count);
    } else {
      multiply<false>(grad, step.grad, value, step.value, out(at), count);
    }
  }

  // Activations too have to be in registers.
  template <bool dense>
  [[gnu::flatten]] static void multiply(
      const T* grad,
      int64_t grad_step,
      const T* value,
      int64_t value_step,
      T* out,
      int64_t count) {
    const auto load = [](const T* from, int64_t step, int64_t part) {
      if (!dense && step == 0)
        return Lanes<C>(static_cast<C>(*from));
      return dense ? pixels_detail::load_part<C>(from, part)
                   : pixels_detail::load_strided<C>(from, step, part);
    };
    const auto multiply_part = [&](int64_t i, int64_t part) {
      const Lanes<C> g = load(grad + i * grad_step, grad_step, part);
      const Lanes<C> v = load(value + i * value_step, value_step, part);
      pixels_detail::store_part<C>(out + i, times_derivative<activation>(g, v), part);
    };
    constexpr int64_t n = kLanes<C>;
    int64_t i = 0;
    for (; i + n <= count; i += n)
      multiply_part(i, n);
    if (i < count)
      multiply_part(i, count - i);
  }

  static C sum(const T* from, int64_t count) {
    constexpr int64_t n = kLanes<C>, chains = 4; // additions that do not wait for one another
    Lanes<C> sums[chains] = {Lanes<C>(0), Lanes<C>(0), Lanes<C>(0), Lanes<C>(0)};
    int64_t i = 0;
    for (; i + chains * n <= count; i += chains * n) {
      for (int64_t c = 0; c < chains; c++)
        sums[c] = sums[c] + load_lanes<C>(from + i + c * n);
    }
    C lanes[n], total = 0;
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).store(lanes);
    for (; i < count; i++)
      total += static_cast<C>(from[i]);
    for (const C lane : lanes)
      total += lane;
    return total;
  }

  // One for each channel, of one part after the other.
  void add_to_sums(const std::vector<double>& of_parts) const {
    if (sums_ == nullptr)
      return;
    for (size_t i = 0; i < of_parts.size(); i++)
      sums_[i % p_.channels] += of_parts[i];
  }

  static constexpr int64_t kCost = 16; // in multiply-adds

  const ActivationGradient& p_;
  double* sums_;
};

} // namespace

void activation_gradient(const ActivationGradient& p, double* sums) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto type) {
    with_activation(p.activation, [&](auto activation) {
      Pass<typename decltype(type)::type, activation.value>(p, sums).run();
    });
  });
}

} // namespace torch_dnnl
