// From sums to outputs: the steps of conv/quantized/problem.h for runs of pixels, in vectors, and
// the layout of the result.
#pragma once

#include "conv/cpu/shared/products/register_tiles.h"
#include "conv/quantized/problem.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// Sums of some channels of neighbouring pixels of a row, [pixel][channel] with `pitch` sums from a
// pixel to the next. `channel`: the first one, among those of all groups.
struct QuantizedRun {
  const int32_t* sums;
  int64_t pitch;
  int64_t n, channel, d, h, w;
  int64_t channels, pixels;
  const int32_t* excess; // which the sums of each channel have too much
};

class QuantizedEpilogue {
 public:
  // The first steps, for the channels of a run.
  struct Channels {
    const float *scale, *bias;
    const int32_t* excess;

    // Modulo 2^32: the result is in range where the terms are not.
    int32_t sum(int32_t products, int64_t c) const {
      return static_cast<int32_t>(
          static_cast<uint32_t>(products) - static_cast<uint32_t>(excess[c]));
    }
    float value(int32_t products, int64_t c) const {
      return QuantizedSteps::value(static_cast<float>(sum(products, c)), scale[c], bias[c]);
    }
  };

  explicit QuantizedEpilogue(const QuantizedProblem& p);

  static constexpr int64_t kRest = 16; // of a vector
  // Memory for runs of so many outputs. Whole vectors are read of the last values.
  struct Workspace {
    explicit Workspace(int64_t most) : values(most + kRest), bytes(4 * most) {}
    Scratch<float> values;
    Scratch<char> bytes;
  };
  void store(const QuantizedRun& run, const Workspace& own) const;

  // Whether results can be made of sums in registers. Then multiply() makes those of a product of
  // all pixels of a run, without sums, with a panel.
  bool takes_tiles() const;
  void multiply(
      const TileProduct<ByteProducts>& product,
      const QuantizedRun& run,
      const Workspace& own) const;

  // Whether results can be made of sums in the order of TapColumns, which begin with what takes
  // their excess away. `in_order`: scales and biases in this order, for the channels of a run.
  bool takes_lanes() const;
  void store_lanes(
      const QuantizedRun& run,
      bool in_halves,
      const Channels& in_order,
      const Workspace& own) const;
  // Of all channels, which sums that begin so have no excess of.
  Channels all_channels() const {
    return {scales_.data(), biases_.data(), nullptr};
  }

 private:
  Channels channels_of(const QuantizedRun& run) const {
    return {scales_.data() + run.channel, biases_.data() + run.channel, run.excess};
  }
  template <class T>
  void add_residual(const QuantizedRun& run, const Workspace& own) const;
  template <class Dst, class Residual, bool is_bounded>
  void store_bytes(const QuantizedRun& run, const Workspace& own) const;
  bool try_store_bytes(const QuantizedRun& run, const Workspace& own) const;
  bool has_simple_activation() const;
  bool returns_floats() const;
  bool takes_bytes() const;
  template <class Dst, class Residual, class F>
  void with_places(const QuantizedRun& run, const Workspace& own, const F& f) const;
  template <class Dst, class Residual>
  void multiply_as(
      const TileProduct<ByteProducts>& product,
      const QuantizedRun& run,
      const Workspace& own) const;
  template <class Dst>
  void store_as(const QuantizedRun& run, const Workspace& own) const;

  const QuantizedProblem& p_;
  const QuantizedSteps steps_{p_};
  const int64_t channels_ = p_.conv.groups * p_.conv.oc;
  // A vector is read at any channel.
  const Scratch<float> scales_{channels_ + kRest}, biases_{channels_ + kRest};
  // Whether no sum can make a quotient that is not finite, or not below 2^30.
  bool is_bounded_ = true;
};

} // namespace torch_dnnl
