#include "conv/cpu/shared/epilogue.h"

#include <algorithm>

#include "conv/cpu/shared/activation_lanes.h"
#include "conv/cpu/shared/pixels.h"

namespace torch_dnnl {

namespace {

constexpr int64_t kLinePixels = 64; // of the lines that pixels are transposed to

// Outputs along one axis, of channels or of pixels, and where they are in each tensor.
template <class T>
struct Span {
  using C = compute_t<T>;

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

  // Completes `count` outputs from vectors that are `step` apart. Each goes through a vector, and
  // so has the same bits wherever it is.
  template <Activation activation>
  void complete(const C* sums, int64_t step, int64_t count) const {
    if (out_step == 1 && (residual == nullptr || residual_step == 1)) {
      complete<activation, true>(sums, step, count);
    } else {
      complete<activation, false>(sums, step, count);
    }
  }

 private:
  // Activations too have to be in registers.
  template <Activation activation, bool dense>
  [[gnu::flatten]] void complete(const C* sums, int64_t step, int64_t count) const {
    constexpr int64_t n = kLanes<C>;
    const Span s = *this; // in registers: stores might overwrite members, for all that is known
    const auto load = [](const T* from, int64_t stride, int64_t part) {
      return dense ? pixels_detail::load_part<C>(from, part)
                   : pixels_detail::load_strided<C>(from, stride, part);
    };
    const auto store = [](T* to, int64_t stride, const Lanes<C>& lanes, int64_t part) {
      return dense ? pixels_detail::store_part<C>(to, lanes, part)
                   : pixels_detail::store_strided<C>(to, stride, lanes, part);
    };
    const auto complete_part = [&](int64_t i, int64_t part) {
      auto x = pixels_detail::load_part<C>(sums, part);
      if (s.residual != nullptr)
        x = x + load(s.residual + i * s.residual_step, s.residual_step, part);
      if (s.preactivation != nullptr)
        store(s.preactivation + i * s.out_step, s.out_step, x, part);
      store(s.out + i * s.out_step, s.out_step, activate<activation>(x), part);
    };
    int64_t i = 0;
    for (; i + n <= count; i += n, sums += step)
      complete_part(i, n);
    if (i < count)
      complete_part(i, count - i);
  }

  int64_t residual_step, out_step;
  const T* residual;
  T *preactivation, *out;

  template <class U>
  static U* at(U* tensor, const OutputRun& run, const int64_t* stride) {
    if (tensor == nullptr)
      return nullptr;
    return tensor + run.n * stride[0] + run.channel * stride[1] + run.d * stride[2] +
        run.h * stride[3] + run.w * stride[4];
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
  with_activation(p_.activation, [&](auto tag) {
    if (p_.dst_stride[1] == 1) {
      Span<T> channels(p_, run, /*axis=*/1);
      for (int64_t x = 0; x < run.pixels; x++, channels.advance(p_, 4))
        channels.template complete<tag.value>(sums + x * pixel_stride, vector_stride, run.channels);
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
          line.template complete<tag.value>(lines + i * kLinePixels, n, part.pixels);
      }
    }
  });
}

template <class T>
void Epilogue<T>::store_lines(const C* sums, int64_t pitch, int64_t lines, const OutputRun& run)
    const {
  with_activation(p_.activation, [&](auto tag) {
    Span<T> line(p_, run, /*axis=*/4);
    for (int64_t i = 0; i < lines; i++, line.advance(p_, 3))
      line.template complete<tag.value>(sums + i * pitch, kLanes<C>, run.pixels);
  });
}

template class Epilogue<double>;
template class Epilogue<float>;
template class Epilogue<c10::BFloat16>;
template class Epilogue<c10::Half>;

} // namespace torch_dnnl
