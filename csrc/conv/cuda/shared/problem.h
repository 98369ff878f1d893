// The dense convolution as matrix products, for all three passes.
//
// In each pass one image is gathered: to pixel j of the other one, the straight image, and tap i
// belongs the pixel start + j * step + i * dilation of the gathered one, along each axis. Rows are
// pixels of the straight image, columns pairs (tap, channel of the gathered image):
//
//   pass       G: gathered  straight  the product
//   forward    src          dst       dst[pixel][oc] = G[pixel][tap, ic] weights[tap, ic][oc]
//   data       dst          src       src[pixel][ic] = G[pixel][tap, oc] weights[tap, oc][ic]
//   weights    src          dst       weights[tap, ic][oc] = G^T[tap, ic][pixel] dst[pixel][oc]
//
// G is never stored: tiles of it are made in shared memory. In the data gradient a pixel of src
// meets only the taps k with (pixel + pad - k * dilation) divisible by the stride: pixels of equal
// remainder meet the same taps and make up a problem of their own, without gaps and with steps
// of 1.
#pragma once

#include <limits>

#include "conv/problem.h"
#include "conv/reference.h"
#include "core/cuda/vector.h"
#include "core/host_device.h"

namespace torch_dnnl::cuda {

// What is moved at once: channels next to each other.
template <class T>
constexpr int kChunk = kWidestAccess / sizeof(T);
template <class T>
using Chunk = Vector<T, kChunk<T>>;

// What is summed between two barriers.
template <class T>
constexpr int kDepth = 64 / sizeof(T);

// A tensor of pixels.
struct ImageView {
  const void* data;
  int64_t stride[5]; // N, C, D, H, W, in elements
  int size[3];
  int channels; // of a group
};

// What the kernels get.
struct DenseProblem {
  ConvProblem conv;
  ImageView gathered, straight;
  // Forward and data: of the straight image's channel, tap and gathered channel. The last is 1.
  const void* weights;
  int64_t weights_group_stride, weights_channel_stride, weights_tap_stride[3];
  int padded_channels;  // of the gathered image, up to a multiple of 16 bytes
  int block_channels;   // what they are summed by: see TapChannels
  int residues[3];      // data: how many remainders there are, else 1
  int tap_step[3];      // data: from a tap that a pixel meets to the next one, else 1
  int64_t column_tiles; // of the grid's tiles, those of one row of tiles
  bool stores_whole;    // forward and data: the straight image is written by chunks of 16 bytes
  // The sums of each split. Weights: [split][group][oc][tap][padded channel]; a block is the pixels
  // of one stage. Forward and data, if there are several splits: [group and remainder][split][pixel
  // of partial_pixels][channel]; a block is a stage.
  void* partial;
  int64_t splits, blocks_per_split, partial_pixels;
};

// One spatial axis of the pixels and taps that belong together.
struct DenseAxis {
  int pixels, first_pixel, pixel_step; // of the straight image
  int taps, first_tap, tap_step;
  int start, step, dilation; // of pixels in the gathered image
};

// `residue`: the remainder of the pixels' positions in the data gradient.
TORCH_DNNL_HD inline DenseAxis dense_axis(const DenseProblem& p, int a, int residue) {
  const ConvProblem& c = p.conv;
  const int stride = static_cast<int>(c.stride[a]), dilation = static_cast<int>(c.dilation[a]);
  const int kernel = static_cast<int>(c.kernel[a]), pad = static_cast<int>(c.pad[a]);
  if (c.pass != ConvPass::backward_data)
    return {p.straight.size[a], 0, 1, kernel, 0, 1, -pad, stride, dilation};
  // x = (y + pad - k dilation) / stride
  const int step = p.tap_step[a];
  int tap = 0;
  while (tap < step && tap < kernel && (residue + pad - tap * dilation) % stride != 0)
    tap++;
  const int taps = tap < step && tap < kernel ? (kernel - tap + step - 1) / step : 0;
  return {
      (p.straight.size[a] - residue + stride - 1) / stride,
      residue,
      stride,
      taps,
      tap,
      step,
      (residue + pad - tap * dilation) / stride,
      1,
      -(dilation / (stride / step))};
}

// All axes of one problem: group `z / residues`, remainders `z % residues`.
struct Geometry {
  int group;
  DenseAxis axes[3];

  TORCH_DNNL_HD Geometry(const DenseProblem& p, int z) {
#pragma unroll
    for (int a = 2; a >= 0; a--) {
      axes[a] = dense_axis(p, a, z % p.residues[a]);
      z /= p.residues[a];
    }
    group = z;
  }

  TORCH_DNNL_HD int64_t pixels(const DenseProblem& p) const {
    return p.conv.n * axes[0].pixels * axes[1].pixels * axes[2].pixels;
  }

  TORCH_DNNL_HD int taps() const {
    return axes[0].taps * axes[1].taps * axes[2].taps;
  }
};

// A pixel of the straight image, counted along each axis in those of its problem.
struct PixelIndex {
  int64_t n;
  int x[3];
};

// Pixel `index` in the order N, D, H, W.
TORCH_DNNL_HD inline PixelIndex pixel_index(const Geometry& g, int64_t index) {
  PixelIndex pixel{};
#pragma unroll
  for (int a = 2; a >= 0; a--) {
    const int pixels = g.axes[a].pixels;
    // 32-bit division is several times faster.
    const int64_t quotient = index >> 32 == 0
        ? static_cast<int64_t>(static_cast<uint32_t>(index) / static_cast<uint32_t>(pixels))
        : index / pixels;
    pixel.x[a] = static_cast<int>(index - quotient * pixels);
    index = quotient;
  }
  pixel.n = index;
  return pixel;
}

// Where the pixel's first channel of the group is in a tensor of the straight image's sizes.
TORCH_DNNL_HD inline int64_t straight_offset(
    const DenseProblem& p,
    const Geometry& g,
    const PixelIndex& pixel,
    const int64_t* stride) {
  int64_t offset = pixel.n * stride[0] + g.group * (p.straight.channels * stride[1]);
#pragma unroll
  for (int a = 0; a < 3; a++) {
    const DenseAxis& axis = g.axes[a];
    offset += (axis.first_pixel + pixel.x[a] * axis.pixel_step) * stride[2 + a];
  }
  return offset;
}

// Added to a position, it is outside of every image.
constexpr int kOutside = std::numeric_limits<int>::min() / 2;

// A pixel: where its first tap is in the gathered image, and where it is in the straight one
// itself. Offsets are in elements, of the group's first channel.
struct PixelRow {
  struct alignas(kWidestAccess) {
    int64_t offset;
    int d, h;
  } gathered;
  struct alignas(kWidestAccess) {
    int64_t offset;
    int w;      // in the gathered image, too
    int inside; // whether there is such a pixel
  } straight;
};

// Beyond the last pixel every tap is outside.
TORCH_DNNL_HD inline PixelRow pixel_row(const DenseProblem& p, const Geometry& g, int64_t index) {
  if (index >= g.pixels(p))
    return {{0, kOutside, kOutside}, {0, kOutside, false}};
  const PixelIndex pixel = pixel_index(g, index);
  const ImageView& from = p.gathered;
  int64_t gathered = pixel.n * from.stride[0] + g.group * (from.channels * from.stride[1]);
  int x[3];
#pragma unroll
  for (int a = 0; a < 3; a++) {
    x[a] = g.axes[a].start + pixel.x[a] * g.axes[a].step;
    gathered += x[a] * from.stride[2 + a];
  }
  return {{gathered, x[0], x[1]}, {straight_offset(p, g, pixel, p.straight.stride), x[2], true}};
}

// What a column of G stands for: a tap, and 16 bytes of channels of the gathered image from
// `channel` on. Columns are ordered by blocks of channels; in a block by taps; for a tap by
// channel.
struct TapChannels {
  int tap[3];
  int channel, block; // block: its first channel
  bool inside;        // whether there is such a column

  TORCH_DNNL_HD TapChannels(const DenseProblem& p, const Geometry& g, int64_t index) {
    const int64_t runs = index / p.block_channels, taps = g.taps();
    const int64_t blocks = taps == 0 ? 0 : runs / taps, run = runs - blocks * taps;
    block = static_cast<int>(blocks * p.block_channels);
    channel = static_cast<int>(block + index - runs * p.block_channels);
    inside = taps != 0 && block < p.padded_channels;
    int64_t stride = 1;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
      tap[a] = inside ? static_cast<int>(position(run, g.axes[a].taps, stride)) : 0;
      stride *= g.axes[a].taps;
    }
  }

  // Goes on by `channels` columns.
  TORCH_DNNL_HD void advance(const DenseProblem& p, const Geometry& g, int channels) {
    channel += channels;
    while (channel - block >= p.block_channels && inside) {
      channel -= p.block_channels;
      if (++tap[2] < g.axes[2].taps)
        continue;
      tap[2] = 0;
      if (++tap[1] < g.axes[1].taps)
        continue;
      tap[1] = 0;
      if (++tap[0] < g.axes[0].taps)
        continue;
      tap[0] = 0;
      block += p.block_channels;
      channel += p.block_channels;
      inside = block < p.padded_channels;
    }
  }

  TORCH_DNNL_HD int64_t weights_offset(const DenseProblem& p, const Geometry& g) const {
    int64_t offset = channel;
#pragma unroll
    for (int a = 0; a < 3; a++)
      offset += (g.axes[a].first_tap + tap[a] * g.axes[a].tap_step) * p.weights_tap_stride[a];
    return offset;
  }
};

// How far a tap is from the first one in the gathered image.
struct Shift {
  int d, h, w;
  int64_t offset; // in elements, to the first of the channels

  TORCH_DNNL_HD Shift(const DenseProblem& p, const Geometry& g, const TapChannels& at)
      : d(at.tap[0] * g.axes[0].dilation),
        h(at.tap[1] * g.axes[1].dilation),
        w(at.tap[2] * g.axes[2].dilation) {
    const int64_t* stride = p.gathered.stride;
    offset = at.channel * stride[1] + d * stride[2] + h * stride[3] + w * stride[4];
    if (!at.inside)
      d = kOutside;
  }
};

constexpr int64_t kMaxGridX = std::numeric_limits<int32_t>::max(), kMaxGridZ = 65535;

// Runs a problem whose weights are placed: run.h, compiled for each type in a file of its own. On
// tensor cores, float32 is rounded to TF32. `vectors`: the images that are read have channels in
// chunks of 16 bytes.
template <class T, bool tensor_cores>
void run_dense_product(const DenseProblem& p, bool vectors);

} // namespace torch_dnnl::cuda
