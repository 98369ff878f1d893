// GEMMs of a tile of gradients with the pixels of src that some taps meet.
#pragma once

#include <algorithm>

#include "conv/cpu/brgemm/packed_images.h"
#include "conv/cpu/brgemm/weights_plan.h"

namespace torch_dnnl {

template <class T>
class TapProducts {
  using Gemm = GemmOf<T>;

 public:
  TapProducts(
      const ConvProblem& p,
      const BrgemmWeightsPlan& plan,
      const PackedImages<T>& images,
      const WeightsOutput& output,
      float* sums)
      : p_(p), plan_(plan), images_(images), o_(output), sums_(sums) {}

  // Of taps of one depth and a panel; `src`: the plane that they meet. Unless they are added, they
  // are the first ones, and taps that meet pads only are 0.
  void
  multiply(const GradientTile& tile, int64_t panel, Range taps, const T* src, bool adds) const {
    const int64_t together = plan_.joins_taps ? p_.kernel[2] : 1;
    for (int64_t end, tap = taps.begin; tap < taps.end; tap = end) {
      end = std::min(taps.end, round_up(tap + 1, together));
      const int64_t kh = tap / p_.kernel[2] % p_.kernel[1];
      const Part part{
          tile, panel, rows_inside(p_, kh * p_.dilation[1] - p_.pad[1], tile.rows), adds};
      const T* const lines = src + lines_at(tap);
      float* const sums = sums_ + plan_.sums_at(o_, panel, tap);
      if (part.rows.count() == 0) {
        if (!adds)
          clear(panel, {tap, end});
      } else if (plan_.joins_taps) {
        for (int64_t c = 0; c < o_.channels.count(); c++)
          multiply(
              part,
              {lines + c * plan_.plane, end - tap, plan_.phase_at(p_, 0, 1)},
              sums + c * kPanelColumns,
              of_tap_);
      } else {
        multiply(part, {lines, o_.channels.count(), plan_.plane}, sums, kPanelColumns);
      }
    }
  }
  void clear(int64_t panel, Range taps) const {
    std::fill_n(sums_ + plan_.sums_at(o_, panel, taps.begin), taps.count() * of_tap_, 0.0f);
  }

 private:
  // Some rows of a tile of gradients.
  struct Part {
    const GradientTile& tile;
    int64_t panel;
    Range rows;
    bool adds;
  };
  // Lines of src, of channels or of taps, that begin `pitch` apart.
  struct Lines {
    const T* data;
    int64_t count, pitch;
  };

  void multiply(const Part& part, const Lines& lines, float* sums, int64_t sums_pitch) const {
    const int64_t row = part.rows.begin, pixel = part.tile.pixels.begin;
    Gemm::multiply(
        {lines.count,
         plan_.columns_of(part.panel),
         plan_.depth(part.tile, part.rows),
         lines.pitch,
         sums_pitch,
         lines.data + row * plan_.pitch + pixel,
         images_.panel(part.tile.n, part.tile.d, o_.group, part.panel, row, pixel),
         sums,
         part.adds});
  }
  // Where a tap meets row 0 of dst, in a channel of src.
  int64_t lines_at(int64_t tap) const {
    Digits digits{tap};
    const int64_t kw = digits.next(p_.kernel[2]), kh = digits.next(p_.kernel[1]);
    return plan_.phase_at(p_, plan_.rows.phase(kh), plan_.pixels.phase(kw)) +
        plan_.rows.offset(kh) * plan_.pitch + plan_.pixels.offset(kw);
  }

  const ConvProblem& p_;
  const BrgemmWeightsPlan& plan_;
  const PackedImages<T>& images_;
  const WeightsOutput& o_;
  float* const sums_;
  const int64_t of_tap_ = plan_.block * kPanelColumns; // sums
};

} // namespace torch_dnnl
