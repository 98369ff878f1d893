// Depthwise convolution on CUDA, and grouped convolution with few channels in a group. These are
// too few products for matrices, so the aim is to read and write memory once: a thread keeps the
// sums of neighbouring outputs in registers, and each input that it loads goes into all of them
// that it belongs to.
//
//   depthwise.cu         which problems these kernels take, and which of them takes a problem
//   depthwise.h          results and data gradients as one problem; the taps of a row
//   nxc.cu               the kernel for channels innermost
//   ncx.cu               the kernel for every other layout
//   ncx_tile.h           what its blocks have in shared memory
//   weights_gradient.cu  the gradient of the weights
//   weights_plan.h       how its work is cut into blocks
#include <algorithm>
#include <numeric>

#include "conv/cuda/depthwise/depthwise.h"
#include "conv/cuda/kernels.h"

namespace torch_dnnl::cuda {
namespace {

// Positions along an axis are computed in 32 bits, with room for sums of three of them, and offsets
// within a row too.
bool has_small_positions(const ConvProblem& p) {
  constexpr int64_t kMost = int64_t(1) << 28;
  for (int a = 0; a < 3; a++) {
    for (const int64_t reach :
         {p.src_size[a], p.dst_size[a] * p.stride[a], p.kernel[a] * p.dilation[a], p.pad[a]}) {
      if (reach > kMost)
        return false;
    }
  }
  const bool has_residual = p.residual != nullptr;
  return p.src_size[2] * p.src_stride[4] <= kMost && p.dst_size[2] * p.dst_stride[4] <= kMost &&
      (!has_residual || p.dst_size[2] * p.residual_stride[4] <= kMost) &&
      p.groups * p.ic * p.oc <= kMost && p.ic * p.oc * product(p.kernel) <= kMost;
}

GatherAxis gather_axis(const ConvProblem& p, int a) {
  const auto src = static_cast<int>(p.src_size[a]), dst = static_cast<int>(p.dst_size[a]);
  const bool gradient = p.pass == ConvPass::backward_data;
  GatherAxis axis{};
  axis.in = gradient ? dst : src;
  axis.out = gradient ? src : dst;
  axis.taps = static_cast<int>(p.kernel[a]);
  axis.stride = static_cast<int>(p.stride[a]);
  axis.dilation = axis.taps == 1 ? 1 : static_cast<int>(p.dilation[a]);
  axis.pad = static_cast<int>(p.pad[a]);
  axis.transposed = gradient && axis.stride > 1;
  axis.tap_step = axis.transposed ? axis.stride / std::gcd(axis.stride, axis.dilation) : 1;
  if (gradient && !axis.transposed)
    axis.pad = (axis.taps - 1) * axis.dilation - axis.pad;
  axis.by_stride = Divisor(axis.stride);
  axis.pad_phase = (axis.pad % axis.stride + axis.stride) % axis.stride;
  axis.dilation_phase = axis.dilation % axis.stride;
  return axis;
}

DepthwiseGather depthwise_gather(const ConvProblem& p) {
  const bool gradient = p.pass == ConvPass::backward_data;
  DepthwiseGather gather{};
  gather.in = gradient ? p.dst : p.src;
  gather.bias = p.bias;
  gather.bias_stride = p.bias_stride;
  gather.epilogue = Epilogue::of(p);
  gather.n = p.n;
  gather.out_channels = static_cast<int>(gradient ? p.ic : p.oc);
  gather.in_channels = static_cast<int>(gradient ? p.oc : p.ic);
  gather.channels = static_cast<int>(p.groups) * gather.out_channels;
  std::copy_n(gradient ? p.dst_stride : p.src_stride, 5, gather.in_stride);
  std::copy_n(gradient ? p.src_stride : p.dst_stride, 5, gather.out_stride);
  std::copy_n(p.residual_stride, 5, gather.residual_stride);
  gather.weights_group = p.weights_group;
  gather.weights_out = p.weights_stride[gradient ? 1 : 0];
  gather.weights_in = p.weights_stride[gradient ? 0 : 1];
  int64_t mirrored = 0; // where the weights begin, in elements
  for (int a = 0; a < 3; a++) {
    GatherAxis& axis = gather.axis[a] = gather_axis(p, a);
    gather.weights_stride[a] = p.weights_stride[2 + a];
    if (gradient && !axis.transposed) {
      mirrored += (axis.taps - 1) * gather.weights_stride[a];
      gather.weights_stride[a] *= -1;
    }
  }
  gather.weights = static_cast<const char*>(p.weights) +
      mirrored * static_cast<int64_t>(c10::elementSize(p.dtype));
  // With an even pad, whether a tap meets an output depends on the two being even alone.
  GatherAxis& row = gather.axis[2];
  if (row.transposed && row.stride == 2 && row.dilation == 1 && row.pad % 2 != 0) {
    row.pad++;
    row.pad_phase = 0;
    row.taps++;
    row.first = 1;
  }
  return gather;
}

} // namespace

bool supports_depthwise(const ConvProblem& p) {
  if (p.n == 0 || p.ic == 0 || !contains(DepthwiseTypes{}, p.dtype) || !has_small_positions(p))
    return false;
  if (p.pass == ConvPass::backward_weights)
    return supports_depthwise_weights(p);
  const DepthwiseGather gather = depthwise_gather(p);
  return supports_depthwise_nxc(gather) || supports_depthwise_ncx(gather, p.dtype);
}

void run_depthwise(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights)
    return depthwise_weights(p);
  const DepthwiseGather gather = depthwise_gather(p);
  supports_depthwise_nxc(gather) ? depthwise_nxc(gather, p.dtype) : depthwise_ncx(gather, p.dtype);
}

} // namespace torch_dnnl::cuda
