// The steps from accumulators to outputs for register tiles, with the same bits as bytes.h and
// epilogue.cpp.
#pragma once

#include <type_traits>

#include "conv/cpu/igemm/output.h"
#include "conv/cpu/quantized/bytes.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
// The place of the outputs and of the residual for some pixels. Residual is void without one.
template <class Dst, class Residual>
struct TilePlaces {
  int64_t channels, pixels;
  Dst* out;
  const std::conditional_t<std::is_void_v<Residual>, Dst, Residual>* residual;
  int64_t out_step, residual_step; // from a pixel to the next
};

// The first steps, for the channels of a panel.
struct TileChannels {
  const float *scale, *bias;
  const int32_t* compensation;

  TileVector initial(int v) const {
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(compensation + v * 16));
  }
};

// The order of channels in accumulators: vectors of 16; or TapColumns' lanes of four, as packing to
// bytes reads them, of 64 channels or of 32 channels of two pixels.
enum class AccOrder { vectors, lanes, halves };

// To int8 or uint8. Quotients are below 2^31, and scales are positive.
template <class Dst, class Residual, AccOrder order = AccOrder::vectors>
class TileSteps : public TileChannels {
  static_assert(std::is_void_v<Residual> || order == AccOrder::vectors);

 public:
  static constexpr bool kTakesParts = true; // tiles with fewer channels than a panel

  TileSteps(
      const QuantizedSteps& steps,
      bool has_relu,
      const TileChannels& channels,
      const TilePlaces<Dst, Residual>& places)
      : TileChannels(channels),
        places_(places),
        residual_scale_(broadcast(steps.residual_scale)),
        residual_zero_point_(broadcast(steps.residual_zero_point)),
        round_(steps),
        // ReLU after rounding: the output of 0 is the minimum.
        least_(_mm512_set1_epi8(
            has_relu ? steps.rounded<Dst>(0.0f) : std::numeric_limits<Dst>::min())) {}

  template <int mr, int vectors>
  void store(const TileVector (&acc)[mr][vectors], int64_t row) const {
    Ints values[mr][kTileVectors] = {};
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
      const Vector<float> scales = load_vector(scale + v * 16), biases = load_vector(bias + v * 16);
#pragma GCC unroll 6
      for (int r = 0; r < mr; r++) {
        Vector<float> value = _mm512_cvtepi32_ps(acc[r][v]);
        value = value * scales + biases;
        if constexpr (!std::is_void_v<Residual>) {
          const auto* const at = places_.residual + (row + r) * places_.residual_step + v * 16;
          const int64_t channels = std::clamp<int64_t>(places_.channels - v * 16, 0, 16);
          const Vector<float> bytes =
              channels == 16 ? load_lanes<float>(at) : load_lanes<float>(at, channels);
          value = value + residual_scale_ * (bytes - residual_zero_point_);
        }
        values[r][v] = round_(value);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++) {
      __m512i bytes = order == AccOrder::vectors ? saturated_bytes<Dst>(values[r])
                                                 : packed_bytes<Dst>(values[r]);
      bytes =
          std::is_signed_v<Dst> ? _mm512_max_epi8(bytes, least_) : _mm512_max_epu8(bytes, least_);
      if constexpr (order == AccOrder::halves) {
        store_half(_mm512_castsi512_si256(bytes), row + r);
        store_half(_mm512_extracti64x4_epi64(bytes, 1), row + mr + r);
      } else if (is_whole_) {
        _mm512_storeu_si512(out(row + r), bytes);
      } else if constexpr (vectors == 1) {
        _mm_mask_storeu_epi8(out(row + r), are_channels_, _mm512_castsi512_si128(bytes));
      } else if constexpr (vectors == 2) {
        _mm256_mask_storeu_epi8(out(row + r), are_channels_, _mm512_castsi512_si256(bytes));
      } else {
        _mm512_mask_storeu_epi8(out(row + r), are_channels_, bytes);
      }
    }
  }

 private:
  Dst* out(int64_t pixel) const {
    return places_.out + pixel * places_.out_step;
  }
  void store_half(__m256i bytes, int64_t pixel) const {
    if (pixel < places_.pixels)
      std::memcpy(out(pixel), &bytes, sizeof(bytes));
  }

  TilePlaces<Dst, Residual> places_;
  Vector<float> residual_scale_, residual_zero_point_;
  ByReciprocal<Dst, /*is_bounded=*/true> round_;
  __m512i least_;
  bool is_whole_ = places_.channels == kPanelColumns;
  __mmask64 are_channels_ = ~0ull >> (kPanelColumns - places_.channels);
};

// To float32.
template <>
class TileSteps<float, void> : public TileChannels {
 public:
  static constexpr bool kTakesParts = false;

  TileSteps(
      const QuantizedSteps& /*steps*/,
      bool has_relu,
      const TileChannels& channels,
      const TilePlaces<float, void>& places)
      : TileChannels(channels),
        places_(places),
        floor_(broadcast(has_relu ? 0 : -std::numeric_limits<float>::infinity())) {}

  template <int mr>
  void store(const TileVector (&acc)[mr][kTileVectors], int64_t row) const {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; v++) {
      const Vector<float> scales = load_vector(scale + v * 16), biases = load_vector(bias + v * 16);
#pragma GCC unroll 6
      for (int r = 0; r < mr; r++) {
        const Vector<float> value = _mm512_cvtepi32_ps(acc[r][v]);
        float* const to = places_.out + (row + r) * places_.out_step + v * 16;
        store_lanes<float>(to, Lanes<float>(at_least(value * scales + biases, floor_)));
      }
    }
  }

 private:
  TilePlaces<float, void> places_;
  Vector<float> floor_;
};
#endif

} // namespace torch_dnnl
