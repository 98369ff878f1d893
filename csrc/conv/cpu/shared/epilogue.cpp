// A loop for each type and activation completes outputs that follow one another in all tensors;
// other layouts are brought to it.
#include "conv/cpu/shared/epilogue.h"

#include <algorithm>

#include "conv/cpu/shared/activation_lanes.h"
#include "conv/cpu/shared/pixels.h"

namespace torch_dnnl {

namespace {

constexpr int64_t kLinePixels = 64; // of the lines that pixels are transposed to
constexpr int64_t kGathered = 256;  // elements of tensors with a stride that are completed at once

// Outputs along one axis, of channels or of pixels, and where they are in each tensor.
template <class T>
struct Span {
  Span(const ConvProblem& p, const OutputRun& run, int axis)
      : residual_step(p.residual_stride[axis]),
        out_step(p.dst_stride[axis]),
        residual(at(static_cast<const T*>(p.residual), run, p.residual_stride)),
        preactivation(at(static_cast<T*>(p.preactivation), run, p.dst_stride)),
        out(at(static_cast<T*>(p.out), run, p.dst_stride)) {}

  // To the next span, along another axis.
  void advance(const ConvProblem& p, int axis) {
    if (residual != nullptr)
      residual += p.residual_stride[axis];
    if (preactivation != nullptr)
      preactivation += p.dst_stride[axis];
    out += p.dst_stride[axis];
  }

  int64_t residual_step, out_step;
  const T* residual; // null, as the next, where there is none
  T *preactivation, *out;

 private:
  template <class U>
  static U* at(U* tensor, const OutputRun& run, const int64_t* stride) {
    if (tensor == nullptr)
      return nullptr;
    return tensor + run.n * stride[0] + run.channel * stride[1] + run.d * stride[2] +
        run.h * stride[3] + run.w * stride[4];
  }
};

// Completes `count` outputs that follow one another in all tensors, from vectors of sums that are
// `step` apart. Each output goes through a vector, and so has the same bits wherever it is.
template <class T>
using Complete = void (*)(
    const compute_t<T>* sums,
    int64_t step,
    int64_t count,
    const T* residual,
    T* preactivation,
    T* out);

// Flattened, so that activations are computed in registers, without a call.
template <class T, Activation activation>
[[gnu::flatten]] void complete(
    const compute_t<T>* sums,
    int64_t step,
    int64_t count,
    const T* residual,
    T* preactivation,
    T* out) {
  using C = compute_t<T>;
  constexpr int64_t n = kLanes<C>;
  for (int64_t i = 0; i < count; i += n, sums += step) {
    const int64_t part = count - i;
    auto x = load_up_to<C>(sums, part);
    if (residual != nullptr)
      x = x + load_up_to<C>(residual + i, part);
    if (preactivation != nullptr)
      store_up_to<C>(preactivation + i, x, part);
    store_up_to<C>(out + i, activate<activation>(x), part);
  }
}

template <class T>
Complete<T> complete_with(Activation activation) {
  return with_activation(
      activation, [](auto tag) -> Complete<T> { return complete<T, tag.value>; });
}

// The same for a span of any strides: what has a stride goes through dense buffers.
template <class T>
void complete_span(
    Complete<T> complete,
    const compute_t<T>* sums,
    int64_t step,
    int64_t count,
    const Span<T>& span) {
  if (span.out_step == 1 && (span.residual == nullptr || span.residual_step == 1))
    return complete(sums, step, count, span.residual, span.preactivation, span.out);
  alignas(64) T residual[kGathered], preactivation[kGathered], out[kGathered];
  for (int64_t i = 0; i < count; i += kGathered) {
    const int64_t part = std::min(kGathered, count - i);
    if (span.residual != nullptr) {
      for (int64_t j = 0; j < part; j++)
        residual[j] = span.residual[(i + j) * span.residual_step];
    }
    complete(
        sums + i / kLanes<compute_t<T>> * step,
        step,
        part,
        span.residual == nullptr ? nullptr : residual,
        span.preactivation == nullptr ? nullptr : preactivation,
        out);
    for (int64_t j = 0; j < part; j++)
      span.out[(i + j) * span.out_step] = out[j];
    if (span.preactivation != nullptr) {
      for (int64_t j = 0; j < part; j++)
        span.preactivation[(i + j) * span.out_step] = preactivation[j];
    }
  }
}

} // namespace

template <class T>
void Epilogue<T>::store_pixels(
    const C* sums,
    int64_t vector_stride,
    int64_t pixel_stride,
    const OutputRun& run) const {
  constexpr int64_t n = kLanes<C>;
  const Complete<T> complete = complete_with<T>(p_.activation);
  if (p_.dst_stride[1] == 1) {
    Span<T> channels(p_, run, /*axis=*/1);
    for (int64_t x = 0; x < run.pixels; x++, channels.advance(p_, 4))
      complete_span(complete, sums + x * pixel_stride, vector_stride, run.channels, channels);
    return;
  }
  alignas(64) C lines[n * kLinePixels];
  OutputRun part = run;
  for (int64_t x = 0; x < run.pixels; x += kLinePixels) {
    part.w = run.w + x;
    part.pixels = std::min(kLinePixels, run.pixels - x);
    for (int64_t c = 0; c < run.channels; c += n) {
      part.channel = run.channel + c;
      part.channels = std::min(n, run.channels - c);
      torch_dnnl::store_pixels(
          LaneRun<const C>{
              sums + c / n * vector_stride + x * pixel_stride, vector_stride, pixel_stride},
          ImageRun<C>{lines, part.channels, part.pixels, kLinePixels, 1});
      Span<T> line(p_, part, /*axis=*/4);
      for (int64_t i = 0; i < part.channels; i++, line.advance(p_, 1))
        complete_span(complete, lines + i * kLinePixels, n, part.pixels, line);
    }
  }
}

template <class T>
void Epilogue<T>::store_lines(const C* sums, int64_t pitch, int64_t lines, const OutputRun& run)
    const {
  const Complete<T> complete = complete_with<T>(p_.activation);
  Span<T> line(p_, run, /*axis=*/4);
  for (int64_t i = 0; i < lines; i++, line.advance(p_, 3))
    complete_span(complete, sums + i * pitch, kLanes<C>, run.pixels, line);
}

template class Epilogue<double>;
template class Epilogue<float>;
template class Epilogue<c10::BFloat16>;
template class Epilogue<c10::Half>;

} // namespace torch_dnnl
