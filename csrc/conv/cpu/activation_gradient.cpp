// The derivative of a fused activation, and the sums that are the gradient of the bias, in one
// pass: a part of the result at a time. A loop for each type and activation multiplies elements
// that follow one another, and what has been written is summed while it is still in the cache.
#include <array>
#include <vector>

#include "conv/cpu/shared/activation_lanes.h"
#include "conv/cpu/shared/kernels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/math.h"
#include "core/numeric.h"

namespace torch_dnnl {
namespace {

// Elements of a part of the result: what is summed is still in the first-level cache, and a sum in
// float32 is one of so few.
constexpr int64_t kPart = 4096;
// Pixels of a part where channels are innermost. The sums of a part take memory too.
constexpr int64_t kFewestPixels = 64, kMostPixels = 1024;
// Elements that are multiplied at once where a tensor has a stride.
constexpr int64_t kGathered = 256;
// Of an element, in multiply-adds.
constexpr int64_t kCost = 16;

struct Offsets {
  int64_t grad, value, out;

  Offsets plus(int64_t steps, const Offsets& step) const {
    return {grad + steps * step.grad, value + steps * step.value, out + steps * step.out};
  }
  bool operator==(const Offsets&) const = default;
};

// An axis of all three tensors.
struct CommonAxis {
  int64_t size;
  Offsets step;
};

CommonAxis axis_of(const ActivationGradient& p, int index) { // of N, C, D, H, W
  const int64_t size = index == 0 ? p.n : index == 1 ? p.channels : p.size[index - 2];
  return {size, {p.grad_stride[index], p.value_stride[index], p.out_stride[index]}};
}

// Axes of which the last one runs fastest; neighbours that are one axis in all tensors are merged.
struct MergedAxes {
  CommonAxis inner{1, {1, 1, 1}};
  int64_t lines = 1; // along the inner axis

  void add(const CommonAxis& axis) {
    if (axis.size == 1)
      return;
    if (inner.size == 1 || inner.step == Offsets{}.plus(axis.size, axis.step)) {
      inner = {inner.size * axis.size, axis.step};
      return;
    }
    outer_[count_++] = inner;
    lines *= inner.size;
    inner = axis;
  }

  // Where a line begins.
  Offsets line(int64_t index) const {
    Offsets at{};
    Digits digits{index};
    for (int a = count_ - 1; a >= 0; a--)
      at = at.plus(digits.next(outer_[a].size), outer_[a].step);
    return at;
  }

 private:
  std::array<CommonAxis, 4> outer_;
  int count_ = 0;
};

// `count` elements that follow one another in all tensors.
template <class T>
using Multiply = void (*)(
    const T* grad,
    const T* value,
    T* out,
    int64_t count,
    const ActivationParameters& parameters);

// Flattened, so that derivatives are computed in registers, without a call.
template <class T, Activation activation>
[[gnu::flatten]] void multiply(
    const T* grad,
    const T* value,
    T* out,
    int64_t count,
    const ActivationParameters& parameters) {
  using C = compute_t<T>;
  const Lanes<C> alpha(static_cast<C>(parameters.alpha)), beta(static_cast<C>(parameters.beta));
  for (int64_t i = 0; i < count; i += kLanes<C>) {
    const int64_t part = count - i;
    const auto g = load_up_to<C>(grad + i, part);
    const auto v = load_up_to<C>(value + i, part);
    store_up_to<C>(out + i, times_derivative<activation>(g, v, alpha, beta), part);
  }
}

template <class T>
struct Pass {
  using C = compute_t<T>;

  const ActivationGradient& p;
  Multiply<T> multiply;

  T* out(const Offsets& at) const {
    return static_cast<T*>(p.out) + at.out;
  }

  // Along an axis on which elements of the result follow one another. What has another stride goes
  // through dense buffers.
  void run(const Offsets& at, const Offsets& step, int64_t count) const {
    const T* grad = static_cast<const T*>(p.grad) + at.grad;
    const T* value = static_cast<const T*>(p.value) + at.value;
    if (step.grad == 1 && step.value == 1)
      return multiply(grad, value, out(at), count, p.parameters);
    T grads[kGathered], values[kGathered];
    const auto gather = [](const T* from, int64_t stride, int64_t n, T* to) {
      if (stride == 1)
        return from;
      for (int64_t i = 0; i < n; i++)
        to[i] = from[i * stride];
      return static_cast<const T*>(to);
    };
    for (int64_t i = 0; i < count; i += kGathered) {
      const int64_t part = std::min(kGathered, count - i);
      multiply(
          gather(grad + i * step.grad, step.grad, part, grads),
          gather(value + i * step.value, step.value, part, values),
          out(at) + i,
          part,
          p.parameters);
    }
  }
};

template <class T>
compute_t<T> sum(const T* from, int64_t count) {
  using C = compute_t<T>;
  constexpr int64_t n = kLanes<C>, chains = 4; // additions that do not wait for one another
  Lanes<C> sums[chains] = {Lanes<C>(0), Lanes<C>(0), Lanes<C>(0), Lanes<C>(0)};
  int64_t i = 0;
  for (; i + chains * n <= count; i += chains * n)
    for (int64_t c = 0; c < chains; c++)
      sums[c] = sums[c] + load_lanes<C>(from + i + c * n);
  C lanes[n], total = 0;
  ((sums[0] + sums[1]) + (sums[2] + sums[3])).store(lanes);
  for (; i < count; i++)
    total += static_cast<C>(from[i]);
  for (const C lane : lanes)
    total += lane;
  return total;
}

// The sums of images, or of parts of them, [part][channel], are added one part after the other.
void add_to_sums(const std::vector<double>& of_parts, int64_t channels, double* sums) {
  for (size_t i = 0; i < of_parts.size(); i++)
    sums[i % channels] += of_parts[i];
}

template <class T>
void with_pixels_innermost(const Pass<T>& pass, double* sums) {
  const ActivationGradient& p = pass.p;
  MergedAxes pixels;
  for (const int a : {2, 3, 4})
    pixels.add(axis_of(p, a));
  const Offsets image = axis_of(p, 0).step, channel = axis_of(p, 1).step;
  const CommonAxis& line = pixels.inner;
  const int64_t images = p.n * p.channels;
  std::vector<double> of_images(sums == nullptr ? 0 : images);
  parallel_tasks(images, pixels.lines * line.size * kCost, [&](SharedTasks::OfThread mine) {
    for (const int64_t task : mine) {
      const Offsets plane =
          Offsets{}.plus(task / p.channels, image).plus(task % p.channels, channel);
      for (int64_t l = 0; l < pixels.lines; l++) {
        const Offsets first = plane.plus(1, pixels.line(l));
        for (int64_t x = 0; x < line.size; x += kPart) {
          const Offsets at = first.plus(x, line.step);
          const int64_t count = std::min(kPart, line.size - x);
          pass.run(at, line.step, count);
          if (sums != nullptr)
            of_images[task] += sum(pass.out(at), count);
        }
      }
    }
  });
  add_to_sums(of_images, p.channels, sums);
}

template <class T>
void with_channels_innermost(const Pass<T>& pass, double* sums) {
  using C = compute_t<T>;
  const CommonAxis channels = axis_of(pass.p, 1);
  MergedAxes pixels;
  for (const int a : {0, 2, 3, 4})
    pixels.add(axis_of(pass.p, a));
  const CommonAxis& line = pixels.inner;
  const bool is_dense = channels.step == Offsets{1, 1, 1} &&
      line.step == Offsets{}.plus(channels.size, channels.step);
  const int64_t part = std::clamp(kPart / channels.size, kFewestPixels, kMostPixels);
  const int64_t parts = ceil_div(line.size, part), tasks = pixels.lines * parts;
  std::vector<double> of_parts(sums == nullptr ? 0 : tasks * channels.size);
  parallel_tasks(tasks, part * channels.size * kCost, [&](SharedTasks::OfThread mine) {
    std::vector<C> of_part(channels.size);
    for (const int64_t task : mine) {
      const int64_t x = task % parts * part, count = std::min(part, line.size - x);
      const Offsets first = pixels.line(task / parts).plus(x, line.step);
      if (is_dense)
        pass.run(first, channels.step, count * channels.size);
      else
        for (int64_t i = 0; i < count; i++)
          pass.run(first.plus(i, line.step), channels.step, channels.size);
      if (sums == nullptr)
        continue;
      std::fill(of_part.begin(), of_part.end(), C(0));
      const T* pixel = pass.out(first);
      for (int64_t i = 0; i < count; i++, pixel += line.step.out)
        for (int64_t c = 0; c < channels.size; c++)
          of_part[c] += static_cast<C>(pixel[c]);
      std::copy(of_part.begin(), of_part.end(), of_parts.begin() + task * channels.size);
    }
  });
  add_to_sums(of_parts, channels.size, sums);
}

} // namespace

void activation_gradient(const ActivationGradient& p, double* sums) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    const auto multiply_by = with_activation(
        p.activation, [](auto activation) -> Multiply<T> { return multiply<T, activation.value>; });
    const Pass<T> pass{p, multiply_by};
    if (p.channels > 1 && p.out_stride[1] == 1)
      with_channels_innermost(pass, sums);
    else
      with_pixels_innermost(pass, sums);
  });
}

} // namespace torch_dnnl
