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

// Each output goes through a vector, and so has the same bits wherever it is. Flattened, so that
// activations are computed in registers, without a call.
template <class T, Activation activation>
[[gnu::flatten]] void complete(const EpilogueRows<T>& all) {
  using C = compute_t<T>;
  constexpr int64_t n = kLanes<C>;
  const EpilogueRows<T> r = all;
  Lanes<C> alpha(static_cast<C>(r.parameters.alpha));
  const Lanes<C> beta(static_cast<C>(r.parameters.beta));
  for (int64_t row = 0; row < r.rows; row++) {
    const C* const sums = r.sums.data + row * r.sums.row_step;
    // The outputs from i on: a vector, or the first `part` of one.
    const auto step = [&](int64_t i, auto... part) {
      const C* const panel = sums + i / kPanel<C> * r.sums.panel_step;
      auto x = load_lanes<C>(panel + i % kPanel<C> / n * r.sums.vector_step, part...);
      if (r.residual != nullptr)
        x = x + load_lanes<C>(r.residual + row * r.residual_step + i, part...);
      if (r.preactivation != nullptr)
        store_lanes<C>(r.preactivation + row * r.out_step + i, x, part...);
      if constexpr (activation == Activation::prelu) {
        const T* const slopes = r.slopes + row * r.slope_row_step + i * r.slope_step;
        alpha =
            r.slope_step == 0 ? Lanes<C>(static_cast<C>(*slopes)) : load_lanes<C>(slopes, part...);
      }
      store_lanes<C>(r.out + row * r.out_step + i, activate<activation>(x, alpha, beta), part...);
    };
    int64_t i = 0;
    for (; i + n <= r.count; i += n)
      step(i);
    if (i < r.count)
      step(i, r.count - i);
  }
}

// The same where the outputs of a row are apart: they go through dense buffers.
template <class T>
void complete_apart(
    void (*complete)(const EpilogueRows<T>&),
    const EpilogueRows<T>& r,
    int64_t residual_stride,
    int64_t out_stride) {
  alignas(64) T residuals[kGathered], preactivations[kGathered], outs[kGathered];
  EpilogueRows<T> dense = r;
  dense.residual = r.residual == nullptr ? nullptr : residuals;
  dense.preactivation = r.preactivation == nullptr ? nullptr : preactivations;
  dense.out = outs;
  dense.rows = 1;
  for (int64_t row = 0; row < r.rows; row++) {
    for (int64_t first = 0; first < r.count; first += kGathered) {
      dense.count = std::min(kGathered, r.count - first);
      dense.sums.data =
          r.sums.data + row * r.sums.row_step + first / kPanel<compute_t<T>> * r.sums.panel_step;
      const int64_t from = row * r.residual_step + first * residual_stride;
      const int64_t to = row * r.out_step + first * out_stride;
      dense.slopes = r.slopes + row * r.slope_row_step + first * r.slope_step;
      for (int64_t i = 0; i < dense.count && r.residual != nullptr; i++)
        residuals[i] = r.residual[from + i * residual_stride];
      complete(dense);
      for (int64_t i = 0; i < dense.count; i++)
        r.out[to + i * out_stride] = outs[i];
      for (int64_t i = 0; i < dense.count && r.preactivation != nullptr; i++)
        r.preactivation[to + i * out_stride] = preactivations[i];
    }
  }
}

} // namespace

template <class T>
Epilogue<T>::Epilogue(const ConvProblem& p)
    : p_(p),
      out_stride_(GatherImages{p}.out_stride),
      complete_(with_activation(p.activation, [](auto tag) -> void (*)(const EpilogueRows<T>&) {
        return complete<T, tag.value>;
      })) {}

// From the first output of a run on, rows along one axis of the tensors and side by side along
// another.
template <class T>
void Epilogue<T>::store_rows(
    const SumVectors<C>& sums,
    const OutputRun& run,
    const Axis& along,
    const Axis& across) const {
  const auto begin = [&](auto* tensor, const int64_t* stride) {
    return tensor == nullptr ? nullptr : tensor + run.offset(stride);
  };
  const int64_t* stride = p_.residual_stride;
  const EpilogueRows<T> rows{
      sums,
      begin(static_cast<const T*>(p_.residual), stride),
      stride[across.index],
      begin(static_cast<T*>(p_.preactivation), out_stride_),
      begin(static_cast<T*>(p_.out), out_stride_),
      out_stride_[across.index],
      along.size,
      across.size,
      p_.parameters,
      p_.slopes == nullptr ? nullptr : static_cast<const T*>(p_.slopes) + run.channel,
      p_.slopes != nullptr && along.index == kChannels,
      p_.slopes != nullptr && across.index == kChannels};
  const int64_t residual_stride = stride[along.index], out_stride = out_stride_[along.index];
  if (out_stride == 1 && (p_.residual == nullptr || residual_stride == 1))
    complete_(rows);
  else
    complete_apart<T>(complete_, rows, residual_stride, out_stride);
}

template <class T>
void Epilogue<T>::store_pixels(
    const C* sums,
    int64_t vector_stride,
    int64_t pixel_stride,
    const OutputRun& run) const {
  constexpr int64_t n = kLanes<C>;
  if (is_empty())
    return store_final_pixels(sums, vector_stride, pixel_stride, run);
  if (out_stride_[1] == 1) {
    const SumVectors<C> vectors{sums, vector_stride, kPanel<C> / n * vector_stride, pixel_stride};
    return store_rows(vectors, run, {kChannels, run.channels}, {kWidth, run.pixels});
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
      store_channels(lines, kLinePixels, part);
    }
  }
}

template <class T>
void Epilogue<T>::store_final_pixels(
    const C* sums,
    int64_t vector_stride,
    int64_t pixel_stride,
    const OutputRun& run) const {
  torch_dnnl::store_pixels(
      LaneRun<const C>{sums, vector_stride, pixel_stride},
      ImageRun<T>{output(run), run.channels, run.pixels, out_stride_[1], out_stride_[4]});
}

template <class T>
void Epilogue<T>::store_panels(const C* sums, int64_t panel_step, const OutputRun& run) const {
  if (out_stride_[1] == 1 && !is_empty()) {
    const SumVectors<C> vectors{sums, kLanes<C>, panel_step, kPanel<C>};
    return store_rows(vectors, run, {kChannels, run.channels}, {kWidth, run.pixels});
  }
  OutputRun part = run;
  for (int64_t c = 0; c < run.channels; c += kPanel<C>, sums += panel_step) {
    part.channel = run.channel + c;
    part.channels = std::min(kPanel<C>, run.channels - c);
    store_pixels(sums, kLanes<C>, kPanel<C>, part);
  }
}

template <class T>
void Epilogue<T>::store_channels(
    const C* sums,
    int64_t pitch,
    const OutputRun& run,
    int64_t panel_step) const {
  const SumVectors<C> vectors{sums, kLanes<C>, panel_step, pitch};
  store_rows(vectors, run, {kWidth, run.pixels}, {kChannels, run.channels});
}

template <class T>
void Epilogue<T>::store_lines(const C* sums, int64_t pitch, int64_t lines, const OutputRun& run)
    const {
  const SumVectors<C> vectors{sums, kLanes<C>, kPanel<C>, pitch};
  if (pitch == run.pixels && has_joined_rows(run.pixels))
    return store_rows(vectors, run, {kWidth, lines * run.pixels}, {kHeight, 1});
  store_rows(vectors, run, {kWidth, run.pixels}, {kHeight, lines});
}

template class Epilogue<double>;
template class Epilogue<float>;
template class Epilogue<c10::BFloat16>;
template class Epilogue<c10::Half>;

} // namespace torch_dnnl
