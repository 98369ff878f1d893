// Images whose channels are not chunks of 16 bytes, made so in memory of their own.
#pragma once

#include <algorithm>
#include <limits>

#include "conv/cuda/shared/problem.h"
#include "core/cuda/divide.h"
#include "core/cuda/launch.h"
#include "core/math.h"

namespace torch_dnnl::cuda {

// Whether the image's channels are contiguous and begin at multiples of 16 bytes in every pixel and
// group.
template <class T>
bool has_chunks(const ImageView& image, int64_t n) {
  const auto is_whole = [](int64_t size, int64_t stride) {
    return size == 1 || stride % kChunk<T> == 0;
  };
  const int64_t* stride = image.stride;
  return stride[1] == 1 && image.channels % kChunk<T> == 0 && is_whole(n, stride[0]) &&
      is_whole(image.size[0], stride[2]) && is_whole(image.size[1], stride[3]) &&
      is_whole(image.size[2], stride[4]) && is_aligned(image.data, kWidestAccess);
}

// The chunks of one image: [d][h][w][group][padded channel].
template <class T>
int64_t packed_chunks(const ImageView& image, int64_t groups) {
  return product(image.size) * groups * ceil_div(image.channels, kChunk<T>);
}

// Copies images, in that order one after another, a chunk a call; channels that are missing are 0.
template <class T>
struct PackPixels {
  ImageView image;
  Chunk<T>* packed;
  uint32_t groups, chunks; // chunks: of a group
  int64_t pixels;
  bool pixels_innermost; // neighbouring threads read what is close in memory: pixels, or chunks
  Divisor by_pixels, by_groups, by_chunks;
  // Of an image, the innermost first; those that lie one behind the other are one axis.
  int axes = 0;
  int64_t stride[3];
  Divisor by_size[3];

  PackPixels(const ImageView& image, int64_t groups, void* packed)
      : image(image),
        packed(static_cast<Chunk<T>*>(packed)),
        groups(static_cast<uint32_t>(groups)),
        chunks(static_cast<uint32_t>(ceil_div(image.channels, kChunk<T>))),
        pixels(product(image.size)),
        pixels_innermost(image.stride[4] < image.stride[1]),
        by_pixels(pixels),
        by_groups(groups),
        by_chunks(chunks) {
    int64_t size = 1;
    for (int a = 2; a >= 0; a--) {
      if (axes > 0 && (image.size[a] == 1 || image.stride[2 + a] == size * stride[axes - 1])) {
        size *= image.size[a];
      } else {
        size = image.size[a];
        stride[axes++] = image.stride[2 + a];
      }
      by_size[axes - 1] = Divisor(size);
    }
  }

  TORCH_DNNL_HD void operator()(int64_t i) const {
    auto rest = static_cast<uint32_t>(i);
    uint32_t pixel = 0;
    if (pixels_innermost)
      pixel = by_pixels.split(rest);
    const uint32_t chunk = by_chunks.split(rest), group = by_groups.split(rest);
    if (!pixels_innermost)
      pixel = by_pixels.split(rest);
    const int64_t to = rest * pixels + pixel;
    const int first = static_cast<int>(chunk) * kChunk<T>;
    const int64_t step = image.stride[1];
    const T* from = static_cast<const T*>(image.data) + rest * image.stride[0] +
        (int64_t(group) * image.channels + first) * step;
    for (int a = 0; a < axes - 1; a++)
      from += by_size[a].split(pixel) * stride[a];
    from += pixel * stride[axes - 1];
    Chunk<T> copied;
    if (first + kChunk<T> <= image.channels) {
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++)
        copied.at[e] = from[e * step];
    } else {
#pragma unroll
      for (int e = 0; e < kChunk<T>; e++)
        copied.at[e] = first + e < image.channels ? from[e * step] : T(0);
    }
    packed[(to * groups + group) * chunks + chunk] = copied;
  }
};

// If there are any; chunks are counted in 31 bits.
template <class T>
bool can_pack(const ImageView& image, int64_t groups) {
  const int64_t chunks = packed_chunks<T>(image, groups);
  return chunks > 0 && chunks <= std::numeric_limits<int32_t>::max();
}

// Copies the images into the scratch that is returned, which `image` describes then.
template <class T>
Scratch pack_pixels(ImageView& image, int64_t images, int64_t groups) {
  const int64_t chunks = packed_chunks<T>(image, groups);
  const int64_t at_once = std::min(images, std::numeric_limits<int32_t>::max() / chunks);
  Scratch packed(images * chunks * sizeof(Chunk<T>));
  PackPixels<T> pack(image, groups, packed.data());
  for (int64_t n = 0; n < images; n += at_once) {
    for_each_element(std::min(at_once, images - n) * chunks, pack);
    pack.image.data = static_cast<const T*>(pack.image.data) + at_once * image.stride[0];
    pack.packed += at_once * chunks;
  }
  image.data = packed.data();
  image.channels = static_cast<int>(round_up(image.channels, kChunk<T>));
  image.stride[1] = 1;
  int64_t step = groups * image.channels;
  for (int a = 2; a >= 0; a--) {
    image.stride[2 + a] = step;
    step *= image.size[a];
  }
  image.stride[0] = step;
  return packed;
}

} // namespace torch_dnnl::cuda
