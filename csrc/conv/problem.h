// What a kernel knows of a convolution: plain numbers and raw pointers.
//
// Convolution is one trilinear form in src, weights and dst; each of the three
// operators computes the gradient of that form with respect to one of them:
//   dst[n, o, x]     = sum over i, k of src[n, i, x S + k D - pad] weights[o, i, k]
//   src[n, i, y]     = sum over o, k, x with y = x S + k D - pad of dst[n, o, x] weights[o, i, k]
//   weights[o, i, k] = sum over n, x of dst[n, o, x] src[n, i, x S + k D - pad]
// and all four pairs of formats differ in strides only.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "conv/activation.h"

namespace c10 {
struct TensorImpl;
}

namespace torch_dnnl {

// Which of the three tensors is computed. name_of() names them in this order.
enum class ConvPass { forward, backward_data, backward_weights };

// The operator that computes a pass.
inline const char* name_of(ConvPass pass) {
  constexpr const char* names[] = {
      "convolution", "convolution_backward_data", "convolution_backward_weights"};
  return names[static_cast<int>(pass)];
}

// Missing leading axes have size 1, so that kernels see three axes always.
struct ConvProblem {
  ConvPass pass;
  int64_t n, groups, ic, oc;                   // channels of one group
  int64_t src_size[3], dst_size[3], kernel[3]; // D, H, W
  int64_t stride[3], dilation[3], pad[3];      // pad: at the beginning
  int64_t src_stride[5], dst_stride[5];        // N, C, D, H, W, in elements
  int64_t weights_stride[5];                   // OC, IC, D, H, W
  int64_t weights_group;                       // from the weights of a group to those of the next
  int64_t bias_stride;
  c10::ScalarType dtype;
  const void *src, *weights, *dst; // the one computed is `out`
  void* out;
  c10::TensorImpl* out_tensor; // whose memory it is: a library may put its own result in its place
  const void* packed;          // the weights in the layout of the kernel that runs; null: it packs
  int64_t packed_layout;       // the number of that layout
  // Of the image that is computed, dst or src; any of them may be null.
  const void *bias, *residual; // residual: of the shape of the image
  void* preactivation;         // what the activation is applied to; has the strides of the image
  int64_t residual_stride[5];
  Activation activation;
  ActivationParameters parameters;
  const void* slopes; // of prelu, for each channel of the image; of the type of the bias
};

// Whether there is more to do than to round and store sums.
inline bool has_epilogue(const ConvProblem& p) {
  return p.bias != nullptr || p.residual != nullptr || p.preactivation != nullptr ||
      p.activation != Activation::none;
}

// out = grad a'(u), element by element, of images.
struct ActivationGradient {
  int64_t n, channels, size[3];
  int64_t grad_stride[5], value_stride[5], out_stride[5]; // N, C, D, H, W, in elements
  const void *grad, *value;                               // value: what a' is a function of
  void* out;                                              // dense, pixels or channels innermost
  Activation activation;
  ActivationParameters parameters;
  c10::ScalarType dtype;
};

} // namespace torch_dnnl
