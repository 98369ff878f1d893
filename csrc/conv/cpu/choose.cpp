// When each kernel is the best choice for a problem that it supports: one rule for each row of the
// table in conv_cpu.cpp, in the same order. The rules were fitted to timings; `make bench-choices`
// shows where another kernel is faster.
#include <algorithm>

#include "conv/cpu/igemm/types.h"
#include "conv/cpu/pixel_lanes/plan.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/winograd/tiles.h"
#include "conv/reference.h"
#include "core/cpu/vectors.h"
#include "core/math.h"

namespace torch_dnnl {
namespace {

// Products of a channel with a channel, over all taps, that fill a vector of sums.
constexpr int64_t kFullVector = 16;

int64_t channel_pairs(const ConvProblem& p) {
  return p.ic * p.oc;
}

// The part of vectors of `lanes` that n values fill.
double filled(int64_t n, int64_t lanes) {
  return 1.0 * n / round_up(n, lanes);
}

// Of Winograd's algorithm and of the direct kernel, in products of two channels, of which the
// definition has nine for each output.
struct WinogradCosts {
  static constexpr int64_t kernels_in_tiles = 4;  // tiles that take as long as the kernels
  static constexpr int64_t packed_in_tiles = 5;   // as reading kernels that are transformed already
  static constexpr int64_t direct_pixel = 6;      // of those that meet data
  static constexpr int64_t half_pixel = 4;        // with dot2 of 16-bit floats
  static constexpr int64_t packed_half_pixel = 3; // the same with packed weights
  static constexpr int64_t direct_weights = 100;  // if the second-level cache does not hold them
  static constexpr int64_t cached_weights = int64_t(1) << 20;
};

template <class F>
int64_t cost_of_tiles(const ConvProblem& p) {
  using Costs = WinogradCosts;
  const int64_t tiles = Tiles<F>(p.n, GatherImages{p}.out_size).count;
  const int64_t weights = p.packed == nullptr ? Costs::kernels_in_tiles : Costs::packed_in_tiles;
  return F::kPositions * (tiles + weights);
}

int64_t cost_of_direct(const ConvProblem& p, int64_t of_pixel) {
  const int64_t pixels = p.n * std::min(product(p.src_size), product(p.dst_size));
  const bool are_cached =
      p.packed != nullptr || p.groups * channel_pairs(p) * 9 < WinogradCosts::cached_weights;
  return of_pixel * pixels + (are_cached ? 0 : WinogradCosts::direct_weights);
}

bool prefers_winograd(const ConvProblem& p, int64_t direct_pixel = WinogradCosts::direct_pixel) {
  // What takes less than a tenth of a millisecond is computed with the smaller error of direct
  // sums.
  constexpr int64_t few = int64_t(1) << 22;
  const int64_t products = p.n * p.groups * channel_pairs(p) * 9 * product(p.dst_size);
  if (std::min(p.ic, p.oc) < 16 || products < few)
    return false;
  if (p.pass == ConvPass::backward_weights) {
    // Of images of one row or column, a tile takes few of the products that it is made for.
    return Tiles<F4x4>(p.n, p.dst_size).count >= 16 && std::min(p.dst_size[1], p.dst_size[2]) > 1;
  }
  return std::min(cost_of_tiles<F2x2>(p), cost_of_tiles<F4x4>(p)) <=
      cost_of_direct(p, direct_pixel);
}

} // namespace

bool prefers_reference(const ConvProblem& p) {
  constexpr int64_t few = 1024; // multiply-adds, and outputs
  const int64_t products =
      p.n * p.groups * channel_pairs(p) * product(p.kernel) * product(p.dst_size);
  // Strides may leave outputs of backward data without any product.
  return products == 0 || (products <= few && output_elements(p) <= few);
}

bool prefers_channel_lanes(const ConvProblem& p) {
  // Matrix products are faster for more channels, and where a channel is read for one tap only.
  const int64_t pairs = channel_pairs(p);
  return pairs < kFullVector ||
      (p.groups > 1 && (p.ic == 1 || (pairs <= 64 && product(p.kernel) > 1)));
}

// AMX is so fast that its tiles may be almost empty. (channel_lanes computes groups of few
// channels.)
bool prefers_amx(const ConvProblem& p) {
  const int64_t inputs = p.pass == ConvPass::backward_data ? p.oc : p.ic;
  return p.dtype == c10::kBFloat16 && p.pass != ConvPass::backward_weights &&
      std::min(p.ic, p.oc) > 1 && inputs * product(p.kernel) >= kFullVector &&
      uses_amx<Float16Gemm<c10::BFloat16>>();
}

bool prefers_pixel_lanes(const ConvProblem& problem) {
  constexpr double poor = 3; // times as well as channels fill vectors
  constexpr int64_t most_stride = 4, few_taps = 9;
  constexpr int64_t least_pixels = 256; // of a unit
  const ConvProblem p = with_long_rows(problem);
  const int64_t lanes = p.dtype == c10::ScalarType::Double ? kLanes<double> : kLanes<float>;
  const bool has_rows = p.src_stride[4] == 1 && p.dst_stride[4] == 1;
  // Other kernels have vectors of the channels of all groups, or of one.
  const bool has_few_channels = supports_channel_lanes(problem) && prefers_channel_lanes(problem);
  const int64_t outputs = p.pass == ConvPass::backward_data ? p.ic : p.oc;
  const double channels = filled(has_few_channels ? p.groups * outputs : outputs, lanes);
  const bool is_narrow = has_rows && poor * channels <= 1 &&
      std::all_of(p.stride, p.stride + 3, [](int64_t s) { return s <= most_stride; });
  if (!has_few_channels && (!is_narrow || prefers_amx(p)))
    return false;
  const PixelLanesPlan plan = plan_pixel_lanes(p, lanes);
  if (plan.block * plan.rows * plan.tile < least_pixels)
    return false;
  const double pixels = filled(plan.tile, lanes);
  if (pixels >= poor * channels) // vectors of channels would be all but empty
    return true;
  if (!has_few_channels || !has_rows || p.stride[2] > 2)
    return false;
  // Half types take longer to widen where a row is less than a vector.
  if (c10::elementSize(p.dtype) == 2 && p.dst_size[2] < lanes)
    return false;
  const bool is_strided = p.stride[2] > 1, has_few_taps = p.kernel[1] * p.kernel[2] <= few_taps;
  const bool is_forward = p.pass == ConvPass::forward;
  const bool is_summed = p.pass == ConvPass::backward_weights;
  if (plan.out_channels == 1) {
    // A vector that is loaded should be multiplied for several rows, or there be few products.
    const auto& rows = plan.phases[1];
    const bool has_few_rows = std::all_of(rows.begin(), rows.end(), [](const Phase& row) {
      return outputs_of_step(row) <= kPlaneOutputs;
    });
    const bool is_reused = std::any_of(rows.begin(), rows.end(), can_slide);
    if (!has_few_rows || !(is_reused || has_few_taps))
      return false;
    // It takes long to take the pixels of strides apart and together, and to add up many sums.
    if ((is_strided && !is_forward) || (is_summed && !has_few_taps))
      return false;
  }
  if (is_summed && plan.vectors == 1)
    return false;
  return pixels >= (is_strided || is_summed ? 0.75 : 0.625);
}

// Where torch's products of float32 take less time than gemm and blocked, on Zen 3 0.6 to 0.9 of
// it: single taps with strides, and windows that are not Winograd's. Few pixels pay less for
// weights that are packed, all at once, and far taps for pixels that are copied.
bool prefers_float_products(const ConvProblem& p) {
  constexpr int64_t some_channels = 32, many_channels = 64;
  constexpr int64_t some_pixels = 14 * 14, near = 4;
  constexpr int64_t most_weights = int64_t(1) << 22; // 16 MB
  const bool is_forward = p.pass == ConvPass::forward, is_strided = product(p.stride) > 1;
  if (p.dtype != c10::kFloat || p.pass == ConvPass::backward_weights || p.groups > 1 ||
      channel_pairs(p) * product(p.kernel) > most_weights || !Float32Gemm::is_fast())
    return false;
  const int64_t channels = std::min(p.ic, p.oc), pixels = product(p.dst_size);
  if (product(p.kernel) == 1) {
    const bool are_planes = p.src_stride[4] == 1 && p.dst_stride[4] == 1;
    return is_strided && channels >= many_channels && pixels >= some_pixels &&
        (is_forward || are_planes);
  }
  return channels >= some_channels && pixels >= some_pixels && (is_forward || !is_strided) &&
      std::max({p.dilation[0], p.dilation[1], p.dilation[2]}) <= near &&
      !(supports_winograd_4x4(p) && prefers_winograd(p));
}

bool prefers_brgemm(const ConvProblem& p) {
  if (prefers_amx(p) || prefers_float_products(p))
    return true;
  const auto prefers_dot2 = [&]<class T>(std::type_identity<T>) {
    const bool has_channels = std::min(p.ic * product(p.kernel), p.oc) >= kFullVector &&
        (p.pass != ConvPass::backward_data || p.ic >= kFullVector / 2);
    if (p.dtype != c10::CppTypeToScalarType<T>::value || !has_channels)
      return false;
    if (Float16Gemm<T>::has_amx())
      return true;
    const int64_t pixel =
        p.packed == nullptr ? WinogradCosts::half_pixel : WinogradCosts::packed_half_pixel;
    const bool are_tiles_better = supports_winograd_4x4(p) && prefers_winograd(p, pixel);
    return Float16Gemm<T>::is_fast() && !are_tiles_better;
  };
  return prefers_dot2(std::type_identity<c10::BFloat16>()) ||
      prefers_dot2(std::type_identity<c10::Half>());
}

bool prefers_gemm(const ConvProblem& p) {
  // Of fewer sums over so many pixels of an image, copies of the images take longer than products.
  constexpr int64_t few_sums = 4096, many_pixels = 128;
  if (std::min(p.oc, p.ic * product(p.kernel)) < kFullVector)
    return false;
  // Sums that products make of channels-last images where they lie.
  const bool are_innermost = p.src_stride[1] == 1 && p.dst_stride[1] == 1;
  return !(
      p.pass == ConvPass::backward_weights && product(p.kernel) == 1 && are_innermost &&
      channel_pairs(p) <= few_sums && p.dst_size[1] * p.dst_size[2] >= many_pixels);
}

bool prefers_few_outputs(const ConvProblem& p) {
  constexpr int64_t most_channels = 4; // of the output
  const GatherImages images{p};
  return images.out_channels <= most_channels && images.in_channels >= kFullVector &&
      p.kernel[2] > 1;
}

bool prefers_tiles_2x2(const ConvProblem& p) {
  return p.pass != ConvPass::backward_weights && cost_of_tiles<F2x2>(p) <= cost_of_tiles<F4x4>(p);
}

bool prefers_winograd_2x2(const ConvProblem& p) {
  return prefers_tiles_2x2(p) && prefers_winograd(p);
}

bool prefers_winograd_4x4(const ConvProblem& p) {
  return !prefers_tiles_2x2(p) && prefers_winograd(p);
}

bool prefers_few_inputs(const ConvProblem& p) {
  constexpr int64_t few = 16;  // as many input channels and more fill products of one tap
  constexpr int64_t some = 32; // up to which copies may pay all the same
  if (channel_pairs(p) < kFullVector || product(p.kernel) == 1)
    return false;
  const GatherImages images{p};
  const int64_t in = images.in_channels, out = images.out_channels, pixels = images.out_size[2];
  // Channels that lie next to each other are copied faster, if vectors are of channels too. Where
  // rows of one vector of channels have to be transposed, vectors of pixels save more than copies
  // take.
  const bool is_one_vector =
      out <= few && images.out_stride[4] == 1 && round_up(pixels, few) * out <= pixels * few;
  const bool are_joined = images.in_stride[1] == 1 && images.out_stride[4] != 1;
  return in < few || (in <= some && (are_joined || is_one_vector));
}

bool prefers_blocked(const ConvProblem& p) {
  return channel_pairs(p) >= kFullVector;
}

} // namespace torch_dnnl
