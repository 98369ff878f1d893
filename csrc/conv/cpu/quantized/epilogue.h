// From sums to outputs: the steps of conv/quantized/problem.h for runs of pixels, in vectors, and
// the layout of the result.
#pragma once

#include <variant>

#include "conv/cpu/igemm/compensation.h"
#include "conv/cpu/quantized/tile_steps.h"
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
  const int32_t* compensation; // of each channel, subtracted from its sums
};

class QuantizedEpilogue {
 public:
  // The first steps, for the channels of a run.
  struct Channels {
    const float *scale, *bias;
    const int32_t* compensation;

    int32_t sum(int32_t acc, int64_t c) const {
      return wrapping_sub(acc, compensation[c]);
    }
    float value(int32_t acc, int64_t c) const {
      return QuantizedSteps::value(static_cast<float>(sum(acc, c)), scale[c], bias[c]);
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

  // Whether the epilogue can complete register tiles.
  bool takes_tiles() const;
  bool takes_parts_of_tiles() const;
#if defined(CPU_CAPABILITY_AVX512)
  using TileOutput = std::variant<
      TileSteps<uint8_t, void>,
      TileSteps<uint8_t, uint8_t>,
      TileSteps<uint8_t, int8_t>,
      TileSteps<int8_t, void>,
      TileSteps<int8_t, uint8_t>,
      TileSteps<int8_t, int8_t>,
      TileSteps<float, void>>;
  // The steps for all pixels of a run, which has no sums.
  TileOutput tile_output(const QuantizedRun& run, const Workspace& own) const;
  // After the last tile: copies outputs from the workspace to images that are not channels-last.
  void finish(const QuantizedRun& run, const Workspace& own) const;
#endif

  // Whether the epilogue can complete sums in the order of TapColumns, from which the compensation
  // has been subtracted. in_order: scales and biases in this order, for the channels of a run.
  bool takes_lanes() const;
  void store_lanes(
      const QuantizedRun& run,
      bool in_halves,
      const Channels& in_order,
      const Workspace& own) const;
  // Of all channels, without compensation.
  Channels all_channels() const {
    return {scales_.data(), biases_.data(), nullptr};
  }

 private:
  Channels channels_of(const QuantizedRun& run) const {
    return {scales_.data() + run.channel, biases_.data() + run.channel, run.compensation};
  }
  template <class T>
  void add_residual(const QuantizedRun& run, const Workspace& own) const;
  template <class Dst, class Residual, bool is_bounded>
  void store_bytes(const QuantizedRun& run, const Workspace& own) const;
  bool try_store_bytes(const QuantizedRun& run, const Workspace& own) const;
  bool has_simple_activation() const;
  bool returns_floats() const;
  bool takes_bytes() const;
#if defined(CPU_CAPABILITY_AVX512)
  template <class Dst, class Residual>
  TilePlaces<Dst, Residual> tile_places(const QuantizedRun& run, const Workspace& own) const;
  template <class Dst>
  void copy_to_image(const QuantizedRun& run, const Workspace& own) const;
#endif
  template <class Dst>
  void store_as(const QuantizedRun& run, const Workspace& own) const;

  const QuantizedProblem& p_;
  const QuantizedSteps steps_{p_};
  const int64_t channels_ = p_.conv.groups * p_.conv.oc;
  // A vector is read at any channel.
  const Scratch<float> scales_{channels_ + 2 * kRest}, biases_{channels_ + 2 * kRest};
  // Whether no sum can make a quotient that is not finite, or not below 2^30.
  bool is_bounded_ = true;
};

} // namespace torch_dnnl
