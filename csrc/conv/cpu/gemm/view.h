// A convolution whose taps never meet in a pixel, as a matrix product for each group:
//
//   out(i, j) = sum over d of left(i, d) right(j, d)
//
// Two of src, weights and dst are multiplied and the third is out. Each of them is a matrix of two
// of three axes: output channels, pixels of dst, and terms, which are the inputs of a pixel of dst:
// its input channels and taps.
//
//   pass               left(i, d)               right(j, d)            out(i, j)
//   forward            weights(channel, term)   src(pixel, term)       dst
//   backward data      weights(term, channel)   dst(pixel, channel)    src
//   backward weights   dst(channel, pixel)      src(term, pixel)       weights
//
// The layouts of tensors are strides of these axes, and change nothing but the order of the terms.
#pragma once

#include <algorithm>
#include <utility>

#include "conv/cpu/shared/panels.h"
#include "conv/problem.h"

namespace torch_dnnl {

// A tensor as a matrix for each group; columns of left and right are the depth.
struct GemmMatrix {
  const void* data;
  int64_t group_step; // in elements
  Axis rows, columns;
  bool is_weights;
};

struct GemmView {
  GemmMatrix left, right, out;
  int64_t groups, rows, columns, depth;
  // Rows and columns have changed places (and so have left and right), since it is rows of the
  // table above that lie next to each other in memory: those of the result are whole vectors now.
  bool is_transposed;

  // Backward weights. The depth, which is pixels, may be long, and out small.
  bool sums_pixels() const {
    return !left.is_weights && !right.is_weights;
  }
};

inline GemmView gemm_view(const ConvProblem& p) {
  const int64_t *xs = p.src_stride, *ys = p.dst_stride, *ws = p.weights_stride;
  const int64_t *y = p.dst_size, *k = p.kernel, *s = p.stride, *d = p.dilation;
  const Axis channels_of_dst{{1, 1, 1, p.oc}, {0, 0, 0, ys[1]}};
  const Axis channels_of_weights{{1, 1, 1, p.oc}, {0, 0, 0, ws[0]}};
  const Axis pixels_of_src{
      {p.n, y[0], y[1], y[2]}, {xs[0], xs[2] * s[0], xs[3] * s[1], xs[4] * s[2]}};
  const Axis pixels_of_dst{{p.n, y[0], y[1], y[2]}, {ys[0], ys[2], ys[3], ys[4]}};
  Axis terms_of_src{{p.ic, k[0], k[1], k[2]}, {xs[1], xs[2] * d[0], xs[3] * d[1], xs[4] * d[2]}};
  Axis terms_of_weights{{p.ic, k[0], k[1], k[2]}, {ws[1], ws[2], ws[3], ws[4]}};
  if (xs[1] == 1) { // channels run fastest
    for (Axis* axis : {&terms_of_src, &terms_of_weights}) {
      std::rotate(axis->size, axis->size + 1, axis->size + 4);
      std::rotate(axis->stride, axis->stride + 1, axis->stride + 4);
    }
  }
  const int64_t src_group = p.ic * xs[1], dst_group = p.oc * ys[1];
  GemmView view{.groups = p.groups};
  switch (p.pass) {
    case ConvPass::forward:
      view.left = {p.weights, p.weights_group, channels_of_weights, terms_of_weights, true};
      view.right = {p.src, src_group, pixels_of_src, terms_of_src, false};
      view.out = {p.out, dst_group, channels_of_dst, pixels_of_dst, false};
      break;
    case ConvPass::backward_data:
      view.left = {p.weights, p.weights_group, terms_of_weights, channels_of_weights, true};
      view.right = {p.dst, dst_group, pixels_of_dst, channels_of_dst, false};
      view.out = {p.out, src_group, terms_of_src, pixels_of_src, false};
      break;
    case ConvPass::backward_weights:
      view.left = {p.dst, dst_group, channels_of_dst, pixels_of_dst, false};
      view.right = {p.src, src_group, terms_of_src, pixels_of_src, false};
      view.out = {p.out, p.weights_group, channels_of_weights, terms_of_weights, true};
      break;
  }
  view.is_transposed = view.out.columns.stride[3] != 1 && view.out.rows.stride[3] == 1;
  if (view.is_transposed) {
    std::swap(view.left, view.right);
    std::swap(view.out.rows, view.out.columns);
  }
  view.rows = view.left.rows.count();
  view.columns = view.right.rows.count();
  view.depth = view.left.columns.count();
  return view;
}

} // namespace torch_dnnl
