#include "conv/cpu/epilogue.h"

#include <algorithm>

#include "conv/cpu/pixels.h"

namespace torch_dnnl {

template <class T>
struct Elementary<at::vec::Vectorized<T>> {
  using V = at::vec::Vectorized<T>;

  static V exp(const V& x) {
    return x.exp();
  }
  static V erf(const V& x) {
    return x.erf();
  }
  static V tanh(const V& x) {
    return x.tanh();
  }
  static V at_least(const V& x, const V& bound) {
    return at::vec::clamp_min(x, bound);
  }
  static V at_most(const V& x, const V& bound) {
    return at::vec::clamp_max(x, bound);
  }
};

namespace {

constexpr int64_t kRunPixels = 32; // that are completed at a time

// Where a run begins in a tensor with the strides [N, C, D, H, W].
int64_t offset_of(const OutputRun& run, const int64_t* stride) {
  return run.n * stride[0] + run.channel * stride[1] + run.d * stride[2] + run.h * stride[3] +
      run.w * stride[4];
}

template <class T>
ImageRun<T> in_image(T* image, const OutputRun& run, const int64_t* stride) {
  return {image + offset_of(run, stride), run.channels, run.pixels, stride[1], stride[4]};
}

// Vectors of values, `step` apart.
template <class C>
void activate_vectors(Activation activation, C* values, int64_t step, int64_t count) {
  with_activation(activation, [&](auto tag) {
    if constexpr (tag.value != Activation::none) {
      for (int64_t i = 0; i < count; i++, values += step)
        activate<tag.value>(Lanes<C>::loadu(values)).store(values);
    }
  });
}

} // namespace

template <class T>
void Epilogue<T>::store_pixels(
    C* sums,
    int64_t vector_stride,
    int64_t pixel_stride,
    const OutputRun& run) const {
  constexpr int64_t n = kLanes<C>;
  alignas(64) C residual[kRunPixels * n];
  for (int64_t x = 0; x < run.pixels; x += kRunPixels) {
    OutputRun part = run;
    part.w += x;
    part.pixels = std::min(kRunPixels, run.pixels - x);
    for (int64_t c = 0; c < run.channels; c += n) {
      part.channel = run.channel + c;
      part.channels = std::min(n, run.channels - c);
      C* lanes = sums + c / n * vector_stride + x * pixel_stride;
      const LaneRun<const C> values{lanes, vector_stride, pixel_stride};
      if (p_.residual != nullptr) {
        load_pixels(
            in_image(static_cast<const T*>(p_.residual), part, p_.residual_stride),
            LaneRun<C>{residual, n, n});
        for (int64_t i = 0; i < part.pixels; i++) {
          C* pixel = lanes + i * pixel_stride;
          (Lanes<C>::loadu(pixel) + Lanes<C>::loadu(residual + i * n)).store(pixel);
        }
      }
      if (p_.preactivation != nullptr)
        torch_dnnl::store_pixels(
            values, in_image(static_cast<T*>(p_.preactivation), part, p_.dst_stride));
      activate_vectors(p_.activation, lanes, pixel_stride, part.pixels);
      torch_dnnl::store_pixels(values, in_image(static_cast<T*>(p_.out), part, p_.dst_stride));
    }
  }
}

namespace {

template <class T, class C>
void store_strided(const C* from, int64_t count, T* to, int64_t stride) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; i += kLanes<C>) {
      const int64_t rest = count - i;
      if (rest >= kLanes<C>) {
        store_lanes<C>(to + i, Lanes<C>::loadu(from + i));
      } else {
        store_lanes<C>(to + i, load_lanes<C>(from + i, rest), rest);
      }
    }
    return;
  }
  for (int64_t i = 0; i < count; i++)
    to[i * stride] = convert<T>(from[i]);
}

} // namespace

template <class T>
void Epilogue<T>::store_line(C* sums, const OutputRun& run) const {
  constexpr int64_t n = kLanes<C>;
  const int64_t whole = run.pixels / n * n, rest = run.pixels - whole;
  if (p_.residual != nullptr) {
    const int64_t step = p_.residual_stride[4];
    const T* residual = static_cast<const T*>(p_.residual) + offset_of(run, p_.residual_stride);
    if (step == 1) {
      for (int64_t i = 0; i < whole; i += n)
        (Lanes<C>::loadu(sums + i) + load_lanes<C>(residual + i)).store(sums + i);
    }
    for (int64_t i = step == 1 ? whole : 0; i < run.pixels; i++)
      sums[i] += static_cast<C>(residual[i * step]);
  }
  const int64_t to = offset_of(run, p_.dst_stride), step = p_.dst_stride[4];
  if (p_.preactivation != nullptr)
    store_strided(sums, run.pixels, static_cast<T*>(p_.preactivation) + to, step);
  activate_vectors(p_.activation, sums, n, whole / n);
  if (rest > 0) {
    // Through whole vectors too: each value has the same bits wherever it is in a line.
    alignas(64) C last[n] = {};
    std::copy(sums + whole, sums + run.pixels, last);
    activate_vectors(p_.activation, last, n, 1);
    std::copy(last, last + rest, sums + whole);
  }
  store_strided(sums, run.pixels, static_cast<T*>(p_.out) + to, step);
}

template class Epilogue<double>;
template class Epilogue<float>;
template class Epilogue<c10::BFloat16>;
template class Epilogue<c10::Half>;

} // namespace torch_dnnl
