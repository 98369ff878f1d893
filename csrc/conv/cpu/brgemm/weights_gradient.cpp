// Backward weights of 16-bit floats, and of float32, as GEMMs through torch's brgemm.
//
// The gradient of the weights of a tap is src^T dst, summed over pixels. Lines of dst are packed at
// a pitch with room for the shift of all taps along a line, filled with zeros. Lines of src have
// the same pitch. So the pixels of several lines are the k of one GEMM, and a tap is an offset in
// src. With strides, a tap meets the pixels of one phase: src is packed phase by phase.
#include <algorithm>
#include <atomic>
#include <vector>

#include "conv/cpu/brgemm/packed_images.h"
#include "conv/cpu/brgemm/tap_products.h"
#include "conv/cpu/brgemm/weights_plan.h"
#include "conv/cpu/shared/finite.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/pixels.h"
#include "conv/cpu/shared/problems/canonical.h"
#include "conv/cpu/shared/reduce.h"
#include "core/cpu/transpose.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kMostPacked = int64_t(1) << 28; // elements
constexpr int64_t kMostGrowth = 8;                // of src, above kFewPacked elements
constexpr int64_t kFewPacked = int64_t(1) << 22;

template <class T>
class BrgemmWeights {
  using Gemm = GemmOf<T>;

 public:
  BrgemmWeights(const ConvProblem& p, const BrgemmWeightsPlan& plan) : p_(p), plan_(plan) {}

  // False: sums are not finite. Pixels are multiplied by the zeros between lines, too.
  bool run() const {
    PackedImages<T> images(p_, plan_);
    std::atomic<bool> are_finite = true;
    struct Workspace {};
    const auto output = [&](int64_t i) { return weights_output(p_, plan_, i); };
    const int64_t pixels = p_.n * product(p_.dst_size);
    sum_in_waves<float>(
        plan_.waves,
        [&](int64_t wave) { images.pack(plan_.images(p_, wave)); },
        {plan_.outputs, plan_.chunks, plan_.sums(), pixels * plan_.sums() / 4},
        [] { return Workspace{}; },
        [&](const Workspace& /*own*/, int64_t i, int64_t chunk, float* sums) {
          accumulate(output(i), chunk, images, sums);
          Gemm::release();
        },
        [&](int64_t i, const float* sums) {
          if (!store(output(i), sums))
            are_finite = false;
        });
    return are_finite;
  }

 private:
  void accumulate(const WeightsOutput& o, int64_t chunk, const PackedImages<T>& images, float* sums)
      const {
    const int64_t of_plane = p_.kernel[1] * p_.kernel[2]; // taps
    const Range depths{o.taps.begin / of_plane, ceil_div(o.taps.end, of_plane)};
    const auto taps_of = [&](int64_t kd) {
      return Range{
          std::max(o.taps.begin, kd * of_plane), std::min(o.taps.end, (kd + 1) * of_plane)};
    };
    const TapProducts<T> products(p_, plan_, images, o, sums);
    // Sums of a depth that no wave has met yet are not initialised.
    const bool is_first = images.images().begin == 0;
    std::vector<char> has_sums(p_.kernel[0], !is_first);
    const int64_t before = images.images().begin * plan_.tiles;
    const Range tiles = nth_part(chunk, plan_.chunks, images.images().count() * plan_.tiles);
    for (int64_t i = tiles.begin; i < tiles.end; i++) {
      const GradientTile tile = tile_of(p_, plan_, before + i);
      for (int64_t kd = depths.begin; kd < depths.end; kd++) {
        const int64_t d = tile.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
        if (d < 0 || d >= p_.src_size[0])
          continue;
        const T* const src = images.src(tile.n, d, o.group, o.channels.begin);
        for (int64_t panel = o.panels.begin; panel < o.panels.end; panel++)
          products.multiply(tile, panel, taps_of(kd), src, has_sums[kd]);
        has_sums[kd] = true;
      }
    }
    for (int64_t kd = depths.begin; kd < depths.end; kd++)
      for (int64_t panel = o.panels.begin; panel < o.panels.end && !has_sums[kd]; panel++)
        products.clear(panel, taps_of(kd));
  }

  // Whether the sums are finite.
  bool store(const WeightsOutput& o, const float* sums) const {
    const int64_t *ws = p_.weights_stride, *kernel = p_.kernel;
    const auto follow = [&](int axis, int64_t taps) { // those of a row, or of a plane
      return kernel[axis] == 1 || ws[2 + axis] == taps;
    };
    // The taps of two channels.
    const bool are_together = follow(2, 1) && follow(1, kernel[2]) &&
        follow(0, kernel[1] * kernel[2]) && ws[1] == plan_.taps && o.taps.count() == plan_.taps;
    bool are_finite = true;
    for (int64_t panel = o.panels.begin; panel < o.panels.end; panel++) {
      const int64_t first = panel * kPanelColumns;
      const int64_t channels = std::min(kPanelColumns, p_.oc - first);
      const float* const from = sums + plan_.sums_at(o, panel, o.taps.begin);
      T* const to = static_cast<T*>(p_.out) + o.group * p_.weights_group + first * ws[0] +
          o.channels.begin * ws[1];
      if (are_together && plan_.taps > 1)
        store_together(from, channels, o.channels.count(), to);
      for (int64_t tap = o.taps.begin; tap < o.taps.end; tap++) {
        Digits digits{tap};
        const int64_t kw = digits.next(kernel[2]), kh = digits.next(kernel[1]);
        const float* const of_tap = from + (tap - o.taps.begin) * of_tap_;
        T* const at = to + digits.rest * ws[2] + kh * ws[3] + kw * ws[4];
        if (!are_together || plan_.taps == 1)
          store_tap(of_tap, {at, channels, o.channels.count(), ws[0], ws[1]});
        for (int64_t c = 0; c < o.channels.count(); c++)
          are_finite &= all_finite(of_tap + c * kPanelColumns, channels);
      }
    }
    return are_finite;
  }
  // Channels of the output are channels of this image, and those of the input its pixels.
  void store_tap(const float* sums, const ImageRun<T>& to) const {
    store_pixels(LaneRun<const float>{sums, kLanes<float>, kPanelColumns}, to);
  }
  // All taps of some channels, [output channel][input channel][tap].
  void store_together(const float* sums, int64_t outputs, int64_t inputs, T* to) const {
    const int64_t taps = plan_.taps, size = outputs * inputs;
    const Scratch<T> rounded(taps * size); // [tap][output channel][input channel]
    for (int64_t tap = 0; tap < taps; tap++)
      store_tap(sums + tap * of_tap_, {rounded.data() + tap * size, outputs, inputs, inputs, 1});
    for (int64_t c = 0; c < outputs; c++)
      transpose_numbers(
          rounded.data() + c * inputs, size, taps, to + c * p_.weights_stride[0], taps, inputs);
  }

  const ConvProblem& p_;
  const BrgemmWeightsPlan& plan_;
  const int64_t of_tap_ = plan_.block * kPanelColumns; // sums
};

} // namespace

// Distant taps make packed lines much longer than those of the image.
bool supports_brgemm_weights(const ConvProblem& problem) {
  const ConvProblem p = with_joined_pixels(problem);
  const BrgemmWeightsPlan plan = plan_brgemm_weights(p);
  const int64_t pixels = p.n * p.groups * p.ic * product(p.src_size);
  const int64_t packed = plan.src_elements(p);
  return p.n * packed <= std::max(kMostGrowth * pixels, kFewPacked) &&
      packed + plan.dst_elements(p) <= kMostPacked;
}

bool brgemm_weights_gradient(const ConvProblem& problem) {
  const ConvProblem p = with_joined_pixels(problem);
  const BrgemmWeightsPlan plan = plan_brgemm_weights(p);
  bool is_done = false;
  dispatch(IgemmTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    is_done = BrgemmWeights<T>(p, plan).run();
  });
  return is_done;
}

} // namespace torch_dnnl
