// What the products of direct convolution take: blocks of channels of pixels, and weights in the
// order in which products read them, which is panels of output channels, and in them blocks of
// input channels.
#pragma once

#include <algorithm>
#include <numeric>

#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/microkernel.h"
#include "conv/cpu/shared/panels.h"
#include "conv/cpu/shared/pixels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/math.h"

namespace torch_dnnl {

// Sizes of the blocks that a matrix product works on: b, kChannels x kPanel<C>, and c,
// kPixels x kPanel<C>, are in the first-level cache together.
inline constexpr int64_t kPixels = 64;
inline constexpr int64_t kChannels = 64;

// Channels of pixels as they are computed with, and their strides.
template <class C>
struct Block {
  const C* data;
  int64_t pixel_stride, channel_stride;
};

// Pixels of a line in memory that copies of it have. Where pixels are near each other, vectors
// widen those between them as well, and products leave these out; others are widened one by one.
inline int64_t copied_pixels(int64_t pixels, int64_t channel_stride, int64_t pixel_stride) {
  constexpr int64_t near = 4;
  const bool are_near = pixels > 0 && channel_stride != 1 && pixel_stride <= near;
  return are_near ? (pixels - 1) * pixel_stride + 1 : pixels;
}

// Widens a run into `buffer`, in the order it lies in.
template <class T, class C = compute_t<T>>
Block<C> copy_block(const ImageRun<const T>& from, C* buffer) {
  const auto [data, channels, pixels, channel_stride, pixel_stride] = from;
  if (channel_stride == 1) {
    for (int64_t x = 0; x < pixels; x++)
      widen(data + x * pixel_stride, channels, buffer + x * channels);
    return {buffer, channels, 1};
  }
  const int64_t copied = copied_pixels(pixels, channel_stride, pixel_stride);
  const bool is_whole = copied == (pixels - 1) * pixel_stride + 1;
  for (int64_t c = 0; c < channels; c++) {
    const T* line = data + c * channel_stride;
    C* to = buffer + c * copied;
    if (is_whole)
      widen(line, copied, to);
    else
      for (int64_t x = 0; x < pixels; x++)
        to[x] = static_cast<C>(line[x * pixel_stride]);
  }
  return {buffer, is_whole ? pixel_stride : 1, copied};
}

// The same, but a run stays where it is if it is computed with as it is.
template <class T, class C = compute_t<T>>
Block<C> load_block(const ImageRun<const T>& from, C* buffer) {
  if constexpr (std::is_same_v<T, C>)
    return {from.data, from.pixel_stride, from.channel_stride};
  else
    return copy_block(from, buffer);
}

// How the channels that a product computes are cut into panels of whole vectors.
struct Panels {
  int64_t channels, lanes;
  int64_t width = std::min(kGemmVectors * lanes, round_up(channels, lanes));
  int64_t count = ceil_div(channels, width);

  int64_t size(int64_t panel) const {
    return std::min(width, channels - panel * width);
  }
  int64_t vectors(int64_t panel) const {
    return ceil_div(size(panel), lanes);
  }
};

// Input channels of a product.
inline constexpr int64_t kDirectDepth = 128;

// Sums are made in steps: the products of a block of input channels with a tap. The taps of a block
// follow one another. Panels of all groups are one series. `element_size`: bytes of a number as
// it is computed with.
struct DirectSteps {
  const GatherImages& images;
  int64_t element_size;
  Panels panels{images.out_channels, int64_t(sizeof(Lanes<float>)) / element_size};
  int64_t groups = images.p.groups, channels = images.in_channels, taps = product(images.p.kernel);
  int64_t count = ceil_div(channels, kDirectDepth) * taps;

  // Where the block of a step begins, and its channels.
  int64_t channel(int64_t step) const {
    return std::min(step / taps * kDirectDepth, channels);
  }
  int64_t block(int64_t step) const {
    return std::min(kDirectDepth, channels - channel(step));
  }
  // Bytes of the weights of a panel in one step, at most, and of all weights of a group.
  int64_t bytes() const {
    return block(0) * panels.width * element_size;
  }
  int64_t group_bytes() const {
    return panels.count * panels.width * channels * taps * element_size;
  }
  // Where a step begins in a panel of all steps; that of the step past the last is the panel's
  // size.
  int64_t begin_of(int64_t step) const {
    return (channel(step) * taps + step % taps * block(step)) * panels.width;
  }
};

// Packs some taps of a block of input channels of a panel.
template <class T, class C = compute_t<T>>
class DirectPacking {
 public:
  DirectPacking(const GatherImages& images, int64_t most_taps)
      : images_(images), most_taps_(most_taps) {}

  // from: weights of the group.
  void pack(const T* from, const Panels& panels, int64_t panel, Range channels, Range taps, C* to)
      const {
    const int64_t first = panel * panels.width;
    const Offsets rows = across_.offsets({first, first + panels.size(panel)}, rows_.data());
    if (in_stride_ == 1 && panels.width == kPanel<C>)
      return pack_taps(from + channels.begin, rows, channels.count(), taps, to);
    const int64_t tap_count = taps.count(), block = channels.count();
    for (int64_t c = 0; c < block; c += channels_at_once_) {
      const int64_t count = std::min(channels_at_once_, block - c);
      const int64_t term = (channels.begin + c) * taps_ + taps.begin;
      const Offsets columns = terms_.offsets({term, term + count * tap_count}, columns_.data());
      pack_panels<kPanel<C>>(from, rows, columns, part_.data(), 0);
      // From the order that they lie in to that of products.
      for (int64_t tap = 0; tap < tap_count; tap++) {
        C* line = to + (tap * block + c) * panels.width;
        for (int64_t i = 0; i < count; i++, line += panels.width)
          std::copy_n(part_.data() + (i * tap_count + tap) * kPanel<C>, panels.width, line);
      }
    }
  }

 private:
  static constexpr int64_t kTermsAtOnce = 128; // of an output channel

  // The same where input channels lie next to each other.
  void pack_taps(const T* from, Offsets rows, int64_t block, Range taps, C* to) const {
    const Offsets columns(columns_.data(), block);
    std::iota(columns_.data(), columns_.data() + block, 0);
    for (int64_t tap = taps.begin; tap < taps.end; tap++, to += block * kPanel<C>) {
      int64_t offset;
      terms_.offsets({tap, tap + 1}, &offset);
      pack_panels<kPanel<C>>(from + offset, rows, columns, to, 0);
    }
  }

  const GatherImages& images_;
  const int64_t most_taps_, *const kernel_ = images_.p.kernel, taps_ = product(kernel_);
  // What is packed of several channels is contiguous only if it is all of their taps.
  const int64_t channels_at_once_ =
      most_taps_ < taps_ ? 1 : std::max<int64_t>(kTermsAtOnce / taps_ / 4 * 4, 4);
  const int64_t *const strides_ = images_.p.weights_stride, in_stride_ = images_.weights_in_stride;
  const Axis across_{{1, 1, 1, images_.out_channels}, {0, 0, 0, images_.weights_out_stride}};
  const Axis terms_{
      // input channels, then taps
      {images_.in_channels, kernel_[0], kernel_[1], kernel_[2]},
      {in_stride_, strides_[2], strides_[3], strides_[4]}};
  const Scratch<int64_t> rows_{kPanel<C>};
  const Scratch<int64_t> columns_{std::max(channels_at_once_ * most_taps_, kDirectDepth)};
  const Scratch<C> part_{channels_at_once_ * most_taps_ * kPanel<C>};
};

template <class T>
class DirectWeights {
  using C = compute_t<T>;

 public:
  explicit DirectWeights(const GatherImages& images) : images_(images) {}

  // Of all groups, unless the problem brings them.
  void pack_all() {
    if (images_.p.packed != nullptr) {
      packed_ = static_cast<C*>(const_cast<void*>(images_.p.packed));
      panel_size_ = steps_.begin_of(steps_.count);
      return;
    }
    memory_ = Scratch<C>(steps_.groups * steps_.group_bytes() / sizeof(C));
    pack_all(memory_.data());
  }
  void pack_all(C* to) {
    packed_ = to;
    pack({0, steps_.groups * steps_.panels.count}, {0, steps_.count});
  }

  // Of these panels, and of as many steps as fit into so many bytes, but at least one: steps of
  // whole blocks of input channels, or else of one block. The first call has the most panels.
  Range pack_some(Range panels, int64_t first_step, int64_t most) {
    const int64_t bytes = panels.count() * steps_.bytes();
    const int64_t fitting = std::max<int64_t>(most / bytes, 1), taps = steps_.taps;
    const int64_t end = fitting < taps
        ? std::min(first_step + fitting, round_up(first_step + 1, taps))
        : std::min(first_step + fitting / taps * taps, steps_.count);
    if (packed_ == nullptr) {
      memory_ = Scratch<C>(std::max(most, bytes) / sizeof(C));
      packed_ = memory_.data();
    }
    pack(panels, {first_step, end});
    return {first_step, end};
  }

  const DirectSteps& steps() const {
    return steps_;
  }

  // Of a step: [channel][output channel of the panel]. The next step follows.
  C* at(int64_t group, int64_t panel, int64_t step) const {
    const int64_t index = group * steps_.panels.count + panel - first_panel_;
    return packed_ + index * panel_size_ + steps_.begin_of(step) - begin_;
  }

 private:
  // Tasks are blocks of input channels of a panel.
  void pack(Range panels, Range steps) {
    first_panel_ = panels.begin;
    begin_ = steps_.begin_of(steps.begin);
    panel_size_ = steps_.begin_of(steps.end) - begin_;
    const int64_t taps = steps_.taps, most_taps = std::min(taps, steps.count());
    const int64_t first_block = steps.begin / taps;
    const int64_t blocks = ceil_div(steps.end, taps) - first_block;
    const int64_t operations = most_taps * steps_.block(0) * steps_.panels.width * 32;
    const int64_t tasks = panels.count() * blocks;
    parallel_tasks(tasks, operations, [&](SharedTasks::OfThread mine) {
      const DirectPacking<T> packing(images_, most_taps);
      for (const int64_t task : mine) {
        const int64_t index = panels.begin + task / blocks;
        const int64_t group = index / steps_.panels.count, panel = index % steps_.panels.count;
        const int64_t first = (first_block + task % blocks) * taps; // step of the block
        const Range of_block{
            std::max<int64_t>(steps.begin - first, 0), std::min(steps.end - first, taps)};
        const int64_t channel = steps_.channel(first);
        packing.pack(
            static_cast<const T*>(images_.p.weights) + group * images_.p.weights_group,
            steps_.panels,
            panel,
            {channel, channel + steps_.block(first)},
            of_block,
            at(group, panel, first + of_block.begin));
      }
    });
  }

  const GatherImages& images_;
  const DirectSteps steps_{images_, sizeof(C)};
  // What is packed, [panel][step][channel][width]. begin: of its first step, in a panel of all
  // steps.
  int64_t first_panel_ = 0, begin_ = 0, panel_size_ = 0;
  C* packed_ = nullptr;
  Scratch<C> memory_{0};
};

} // namespace torch_dnnl
