// What both kernels of depthwise convolution do with a unit of outputs: its rows of inputs and
// blocks of pixels are listed, and its outputs lie in the image or in scratch memory.
#pragma once

#include <type_traits>

#include "conv/cpu/channel_lanes/blocks.h"
#include "conv/cpu/channel_lanes/plan.h"
#include "conv/cpu/channel_lanes/rows.h"
#include "core/cpu/scratch.h"
#include "core/numeric.h"

namespace torch_dnnl {

// Whether there are kernels for vectors of T that stay where they are in channels-last images.
// Half types are widened for each row of taps: of few rows that takes less than to copy them.
template <class T>
inline constexpr bool kStays = std::is_same_v<T, compute_t<T>> || kRegisters == 32;

// The plan for images of T; may_use_outputs: as in plan_channel_lanes.
template <class T>
ChannelLanesPlan plan_channel_lanes(const ConvProblem& p, bool may_use_outputs) {
  using C = compute_t<T>;
  const auto plan = [&](bool may_read_image, bool may_use) {
    return plan_channel_lanes(p, kLanes<C>, sizeof(T), may_read_image, may_use);
  };
  if constexpr (std::is_same_v<T, C>)
    return plan(true, may_use_outputs);
  if (kStays<T> && may_use_outputs) {
    const ChannelLanesPlan in_place = plan(true, true);
    if (in_place.reads_image && in_place.uses_outputs)
      return in_place;
  }
  return plan(false, false);
}

// The output vectors of a unit, each of n channels.
template <class P, int64_t n>
struct UnitOutputs {
  P* data;
  int64_t vector_stride, row_stride;

  // `shift` channels behind the first one: whole vectors or, in an image, where vectors lie next to
  // each other, any number.
  P* at(int64_t shift, int64_t row) const {
    return data + shift / n * vector_stride + shift % n + row * row_stride;
  }
};

// f(offset, index) for the weights of a vector of output channels, from the channel `begin` on:
// where a weight is in the tensor, and where in a packed array [tap][input channel][lane].
template <int64_t lanes, class F>
void for_each_weight(const ChannelLanesPlan& plan, int64_t vector, int64_t begin, const F& f) {
  const ConvProblem& p = plan.p;
  const int64_t* ws = p.weights_stride;
  const int64_t first = plan.first_channel(vector);
  const int64_t last = std::min(first + lanes, plan.channels);
  const int64_t width = p.kernel[2], inputs = plan.in_channels, step = inputs * lanes; // of a tap
  for (int64_t c = begin; c < last; c++) {
    const int64_t group = c / plan.out_channels, channel = c - group * plan.out_channels;
    const int64_t from = group * p.weights_group + channel * plan.weights_out_stride;
    int64_t index = c - first;
    for (int64_t d = 0; d < p.kernel[0]; d++) {
      for (int64_t h = 0; h < p.kernel[1]; h++) {
        const int64_t row = from + d * ws[2] + h * ws[3];
        // A row of taps in the innermost loop, as there is mostly one input channel.
        for (int64_t i = 0; i < inputs; i++) {
          int64_t offset = row + i * plan.weights_in_stride, at = index + i * lanes;
          for (int64_t w = 0; w < width; w++, offset += ws[4], at += step)
            f(offset, at);
        }
        index += width * step;
      }
    }
  }
}

// What a thread keeps from one task to the next.
template <class T>
class UnitWorker {
 public:
  using C = compute_t<T>;
  using Unit = ChannelLanesPlan::Unit;
  static constexpr int64_t n = kLanes<C>;

  explicit UnitWorker(const ChannelLanesPlan& plan) : plan_(plan) {}

  void select_block(int64_t block) {
    input_.select_block(block);
    first = block * plan_.block;
    vectors = std::min(plan_.block, plan_.vectors - first);
    channel = first * n;
    channels = std::min(vectors * n, plan_.channels - channel);
  }
  int64_t first = 0, vectors = 0;    // of the block
  int64_t channel = 0, channels = 0; // of the block: the first one, and how many the image has

  // Where the outputs of a unit are, if they stay in the image.
  template <class Image>
  UnitOutputs<Image, n> outputs(Image* image) const {
    return {image, n, plan_.out_stride[3]};
  }
  // In scratch memory: [vector][row][pixel][lane].
  UnitOutputs<C, n> scratch_outputs(const Unit& unit) const {
    return {scratch_.data(), unit.rows * unit.width * n, unit.width * n};
  }

  // f(operands, row, block, shift, vector, count) for the blocks of pixels of a unit and some
  // vectors, which are `shift` channels behind the first one of the block. `weights`: of all
  // vectors of the block, [vector][tap][input channel][lane]. by_pixels: all channels of some
  // pixels, which lie together in a channels-last image, before the next pixels; otherwise the
  // other way around, which reads all weights of a vector while they are in the cache.
  template <class F>
  void for_each_block(const Unit& unit, C* weights, bool by_pixels, const F& f) {
    blocks_.select_tile(unit);
    input_.list(unit, weights, rows_);
    const auto call = [&](int64_t r, const PixelBlock& block, int64_t v, int64_t count) {
      const int64_t shift = plan_.first_channel(first + v) - channel;
      const auto rows = static_cast<int64_t>(rows_[r].size());
      const int64_t of_vector = v * plan_.vector_weights;
      f(TapOperands<C>{blocks_.runs.data(), rows_[r].data(), rows, shift, of_vector},
        r,
        block,
        shift,
        v,
        count);
    };
    // Vectors end with the regular ones, or with one that overlaps the last of them.
    const int64_t regular = std::min(vectors, plan_.overlap_from - first);
    for (int64_t begin = 0, end; begin < vectors; begin = end) {
      end = by_pixels ? vectors : begin + 1;
      const int64_t count = std::min(end, regular) - begin;
      for (int64_t r = 0; r < unit.rows; r++) {
        for (const PixelBlock& block : blocks_.blocks) {
          if (count > 0)
            call(r, block, begin, count);
          if (end > regular)
            call(r, block, end - 1, 1);
        }
      }
    }
  }

 private:
  const ChannelLanesPlan& plan_;
  InputRows<T, C> input_{plan_};
  TapRows<C> rows_ = TapRows<C>(plan_.rows);
  RowBlocks blocks_{plan_, kBlockPixels<C>};
  const Scratch<C> scratch_{plan_.uses_outputs ? 0 : plan_.block * plan_.rows * plan_.width * n};
};

} // namespace torch_dnnl
