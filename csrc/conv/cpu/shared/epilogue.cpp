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

// Where outputs are in each tensor. residual and preactivation are null where there is none.
template <class T>
struct Places {
  const T* residual;
  T *preactivation, *out;
};

// Completes `count` outputs that follow one another in all tensors, from vectors of sums that are
// `step` apart. Each output goes through a vector, and so has the same bits wherever it is.
template <class T>
using Complete =
    void (*)(const compute_t<T>* sums, int64_t step, int64_t count, const Places<T>& at);

// Flattened, so that activations are computed in registers, without a call.
template <class T, Activation activation>
[[gnu::flatten]] void
complete(const compute_t<T>* sums, int64_t step, int64_t count, const Places<T>& at) {
  using C = compute_t<T>;
  constexpr int64_t n = kLanes<C>;
  const auto [residual, preactivation, out] = at;
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

// Outputs along an axis, of channels or of pixels.
template <class T>
struct Span : Places<T> {
  Span(const ConvProblem& p, const int64_t* out_stride, const OutputRun& run, int axis)
      : Places<T>{
            at(static_cast<const T*>(p.residual), run, p.residual_stride),
            at(static_cast<T*>(p.preactivation), run, out_stride),
            at(static_cast<T*>(p.out), run, out_stride)},
        residual_step(p.residual_stride[axis]),
        out_step(out_stride[axis]),
        p_(p),
        out_stride_(out_stride) {}

  // To the next span, along another axis.
  void advance(int axis) {
    if (this->residual != nullptr)
      this->residual += p_.residual_stride[axis];
    if (this->preactivation != nullptr)
      this->preactivation += out_stride_[axis];
    this->out += out_stride_[axis];
  }

  // The same for outputs of any strides: what has a stride goes through dense buffers.
  void complete(Complete<T> complete, const compute_t<T>* sums, int64_t step, int64_t count) const {
    const auto& [residual, preactivation, out] = static_cast<const Places<T>&>(*this);
    if (out_step == 1 && (residual == nullptr || residual_step == 1))
      return complete(sums, step, count, *this);
    alignas(64) T residuals[kGathered], preactivations[kGathered], outs[kGathered];
    const Places<T> dense{
        residual == nullptr ? nullptr : residuals,
        preactivation == nullptr ? nullptr : preactivations,
        outs};
    for (int64_t i = 0; i < count; i += kGathered) {
      const int64_t part = std::min(kGathered, count - i);
      for (int64_t j = 0; j < part && residual != nullptr; j++)
        residuals[j] = residual[(i + j) * residual_step];
      complete(sums + i / kLanes<compute_t<T>> * step, step, part, dense);
      for (int64_t j = 0; j < part; j++)
        out[(i + j) * out_step] = outs[j];
      for (int64_t j = 0; j < part && preactivation != nullptr; j++)
        preactivation[(i + j) * out_step] = preactivations[j];
    }
  }

  int64_t residual_step, out_step;

 private:
  const ConvProblem& p_;
  const int64_t* out_stride_;

  template <class U>
  static U* at(U* tensor, const OutputRun& run, const int64_t* stride) {
    return tensor == nullptr ? nullptr : tensor + run.offset(stride);
  }
};

} // namespace

template <class T>
void Epilogue<T>::store_pixels(
    const C* sums,
    int64_t vector_stride,
    int64_t pixel_stride,
    const OutputRun& run) const {
  constexpr int64_t n = kLanes<C>;
  if (is_empty()) {
    return torch_dnnl::store_pixels(
        LaneRun<const C>{sums, vector_stride, pixel_stride},
        ImageRun<T>{output(run), run.channels, run.pixels, out_stride_[1], out_stride_[4]});
  }
  const Complete<T> complete = complete_with<T>(p_.activation);
  if (out_stride_[1] == 1) {
    Span<T> channels(p_, out_stride_, run, /*axis=*/1);
    for (int64_t x = 0; x < run.pixels; x++, channels.advance(4))
      channels.complete(complete, sums + x * pixel_stride, vector_stride, run.channels);
    return;
  }
  OutputRun part = run;
  alignas(64) C lines[n * kLinePixels];
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
      Span<T> line(p_, out_stride_, part, /*axis=*/4);
      for (int64_t i = 0; i < part.channels; i++, line.advance(1))
        line.complete(complete, lines + i * kLinePixels, n, part.pixels);
    }
  }
}

template <class T>
void Epilogue<T>::store_lines(const C* sums, int64_t pitch, int64_t lines, const OutputRun& run)
    const {
  const Complete<T> complete = complete_with<T>(p_.activation);
  Span<T> line(p_, out_stride_, run, /*axis=*/4);
  for (int64_t i = 0; i < lines; i++, line.advance(3))
    line.complete(complete, sums + i * pitch, kLanes<C>, run.pixels);
}

template class Epilogue<double>;
template class Epilogue<float>;
template class Epilogue<c10::BFloat16>;
template class Epilogue<c10::Half>;

} // namespace torch_dnnl
