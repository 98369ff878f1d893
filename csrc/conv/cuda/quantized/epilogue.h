// The end of a quantized convolution in a CUDA kernel: the steps of conv/quantized/problem.h for
// four neighbouring outputs, whose sums are in registers.
#pragma once

#include "conv/quantized/problem.h"
#include "core/cuda/vector.h"
#include "core/math.h"

namespace torch_dnnl::cuda {

// Outputs next to each other, which are completed by one thread.
constexpr int kRun = 4;

// f(tag) for the type of a result or a residual.
template <class F>
TORCH_DNNL_HD inline void with_result_type(c10::ScalarType type, F&& f) {
  switch (type) {
    case c10::ScalarType::Byte:
      return f(uint8_t{});
    case c10::ScalarType::Char:
      return f(int8_t{});
    case c10::ScalarType::Int:
      return f(int32_t{});
    case c10::ScalarType::BFloat16:
      return f(c10::BFloat16{});
    case c10::ScalarType::Half:
      return f(c10::Half{});
    default:
      return f(float{});
  }
}

// Runs are along channels or, where these are not contiguous, along the pixels of an image.
struct QuantizedRuns {
  bool along_pixels;
  bool dst_is_whole, residual_is_whole; // whether a run is moved as one

  // `channels`: those that are divided into runs, of a group or of all groups.
  QuantizedRuns(const QuantizedProblem& q, int64_t channels)
      : along_pixels(q.conv.dst_stride[1] != 1 || q.conv.groups * q.conv.oc == 1),
        dst_is_whole(is_whole(q.conv, channels, q.conv.out, q.dst_dtype, q.conv.dst_stride)),
        residual_is_whole(
            is_whole(q.conv, channels, q.conv.residual, q.residual_dtype, q.conv.residual_stride)) {
  }

 private:
  // Whether runs are contiguous and begin at multiples of their size.
  bool is_whole(
      const ConvProblem& p,
      int64_t channels,
      const void* data,
      c10::ScalarType dtype,
      const int64_t* stride) const {
    const int64_t size[5] = {p.n, p.groups * p.oc, p.dst_size[0], p.dst_size[1], p.dst_size[2]};
    const int first = along_pixels ? 2 : 1, end = along_pixels ? 5 : 2; // the axes of runs
    int64_t elements = 1;
    for (int a = end - 1; a >= first; a--) {
      if (size[a] != 1 && stride[a] != elements)
        return false;
      elements *= size[a];
    }
    for (int a = 0; a < 5; a++)
      if ((a < first || a >= end) && size[a] != 1 && stride[a] % kRun != 0)
        return false;
    return (along_pixels ? elements : channels) % kRun == 0 &&
        is_aligned(data, kRun * c10::elementSize(dtype));
  }
};

// What the sums of an output channel are completed with.
struct ChannelSteps {
  float scale, bias;
  int32_t excess; // what they have too much, modulo 2^32

  TORCH_DNNL_HD ChannelSteps(
      const QuantizedProblem& q,
      const QuantizedSteps& steps,
      int64_t channel,
      int32_t excess)
      : scale(steps.scale(q, channel)), bias(QuantizedSteps::bias(q, channel)), excess(excess) {}

  // The result is in range where the products are not.
  TORCH_DNNL_HD int32_t sum(int32_t products) const {
    return static_cast<int32_t>(static_cast<uint32_t>(products) - static_cast<uint32_t>(excess));
  }
};

// A call and not inlined: in float64, this is far more code than the kernel around it.
__device__ __attribute__((noinline)) inline float
activated_portably(Activation activation, const ActivationParameters& parameters, float x) {
  return with_activation(activation, [&](auto tag) {
    return activate_portably<decltype(tag)::value>(x, parameters, 0);
  });
}

// Where a run is in a tensor.
struct RunOffsets {
  int64_t at[kRun];
};

// Completes the first `count` sums of a run, which lack nothing but the steps, and stores them.
__device__ __forceinline__ void complete_run(
    const QuantizedProblem& q,
    const QuantizedSteps& steps,
    const QuantizedRuns& runs,
    const int32_t (&sums)[kRun],
    const float (&scale)[kRun],
    const float (&bias)[kRun],
    int count,
    const RunOffsets& dst,
    const RunOffsets& residual) {
  float v[kRun];
#pragma unroll
  for (int e = 0; e < kRun; e++)
    v[e] = QuantizedSteps::value(static_cast<float>(sums[e]), scale[e], bias[e]);
  if (q.conv.residual != nullptr) {
    with_result_type(q.residual_dtype, [&](auto tag) {
      using T = decltype(tag);
      const T* from = static_cast<const T*>(q.conv.residual);
      Vector<T, kRun> values{};
      if (runs.residual_is_whole && count == kRun) {
        values = load_vector<kRun>(from + residual.at[0]);
      } else {
#pragma unroll
        for (int e = 0; e < kRun; e++)
          if (e < count)
            values.at[e] = from[residual.at[e]];
      }
#pragma unroll
      for (int e = 0; e < kRun; e++)
        v[e] = steps.with_residual(v[e], widened<float>(values.at[e]));
    });
  }
  if (q.conv.activation == Activation::relu) {
#pragma unroll
    for (int e = 0; e < kRun; e++)
      v[e] = activate_portably<Activation::relu>(v[e], q.conv.parameters, 0);
  } else if (q.conv.activation != Activation::none) {
#pragma unroll
    for (int e = 0; e < kRun; e++)
      v[e] = activated_portably(q.conv.activation, q.conv.parameters, v[e]);
  }
  with_result_type(q.dst_dtype, [&](auto tag) {
    using T = decltype(tag);
    T* const to = static_cast<T*>(q.conv.out);
    Vector<T, kRun> values;
#pragma unroll
    for (int e = 0; e < kRun; e++)
      if constexpr (std::is_same_v<T, int32_t>)
        values.at[e] = q.returns_sums ? sums[e] : steps.rounded<T>(v[e]);
      else
        values.at[e] = steps.rounded<T>(v[e]);
    if (runs.dst_is_whole && count == kRun) {
      store_vector(to + dst.at[0], values);
    } else {
#pragma unroll
      for (int e = 0; e < kRun; e++)
        if (e < count)
          to[dst.at[e]] = values.at[e];
    }
  });
}

} // namespace torch_dnnl::cuda
