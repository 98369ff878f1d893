// Dense convolution: which problems it takes, and how they become matrix products.
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <optional>

#include "conv/cuda/kernels.h"
#include "conv/cuda/shared/plan.h"
#include "conv/cuda/shared/prepare.h"
#include "core/cuda/vector.h"
#include "core/dispatch.h"

namespace torch_dnnl::cuda {
namespace {

// What reading by elements costs more than reading by chunks, in cycles of the whole GPU: some 9
// instructions for each (614 for a stage of 128 x 32 of NCX in bfloat16, and 328 for one of NXC;
// sm_90a), of which a multiprocessor issues those of 128 threads a cycle.
int64_t cycles_of_elements(int64_t elements) {
  return elements * 9 / (128 * kMultiprocessors);
}

template <class T>
int64_t packed_bytes(const ImageView& image, const ConvProblem& p) {
  return p.n * packed_chunks<T>(image, p.groups) * kWidestAccess;
}

template <class T>
int64_t cycles_of_packing(const ImageView& image, const ConvProblem& p) {
  const int64_t bytes = p.n * p.groups * product(image.size) * image.channels * int64_t(sizeof(T));
  return (bytes + packed_bytes<T>(image, p)) / kBytesPerCycle + kLaunchCycles;
}

// Straight channels are not padded where those of another group follow: the product counts those
// that it writes. Few channels are not padded in large images.
template <class T>
bool may_pack(const ImageView& image, bool is_straight, const ConvProblem& p) {
  constexpr int64_t many_bytes = 256 << 20;
  const int64_t padded = round_up(image.channels, kChunk<T>);
  return can_pack<T>(image, p.groups) &&
      !(is_straight && padded != image.channels && p.groups > 1) &&
      (padded <= 2 * image.channels || packed_bytes<T>(image, p) <= many_bytes);
}

// How many elements of images a product reads: a tile has 128 columns at most and, where gradients
// of weights are computed by elements, of both images, 64 rows and columns.
template <class T>
int64_t elements_read(const DenseProblem& d) {
  constexpr int64_t most_columns = 128, tile = 64;
  const ConvProblem& p = d.conv;
  const int64_t pixels = p.n * p.groups * product(d.straight.size);
  const int64_t columns = product(p.kernel) * d.padded_channels / product(d.residues);
  if (p.pass != ConvPass::backward_weights)
    return pixels * columns * ceil_div(d.straight.channels, most_columns);
  const int64_t channels = d.straight.channels;
  return pixels * (columns * ceil_div(channels, tile) + channels * ceil_div(columns, tile));
}

// Packs images whose elements would be read one by one, if they are read often.
template <class T>
c10::SmallVector<Scratch, 2> place_images(DenseProblem& d) {
  const ConvProblem& p = d.conv;
  c10::SmallVector<ImageView*, 2> images;
  for (ImageView* image : {&d.gathered, &d.straight}) {
    const bool is_read = image == &d.gathered || p.pass == ConvPass::backward_weights;
    if (is_read && !has_chunks<T>(*image, p.n))
      images.push_back(image);
  }
  int64_t cycles = 0;
  for (const ImageView* image : images)
    cycles += cycles_of_packing<T>(*image, p);
  const bool can = std::all_of(images.begin(), images.end(), [&](const ImageView* image) {
    return may_pack<T>(*image, image == &d.straight, p);
  });
  c10::SmallVector<Scratch, 2> packed;
  if (can && cycles < cycles_of_elements(elements_read<T>(d)))
    for (ImageView* image : images)
      packed.push_back(pack_pixels<T>(*image, p.n, p.groups));
  return packed;
}

template <class T>
void run(const ConvProblem& p) {
  DenseProblem d = make_problem<T>(p);
  std::optional<Scratch> weights;
  if (p.pass != ConvPass::backward_weights)
    weights = place_weights<T>(d);
  d.stores_whole = has_chunks<T>(d.straight, p.n);
  if (p.preactivation != nullptr) // has the strides of the straight image
    d.stores_whole &= is_aligned(p.preactivation, kWidestAccess);
  if (p.residual != nullptr) {
    const int64_t* size = is_data(p) ? p.src_size : p.dst_size;
    d.stores_whole &=
        has_chunks<T>(make_image(p.residual, p.residual_stride, size, d.straight.channels), p.n);
  }
  const int channels = d.straight.channels;
  const auto images = place_images<T>(d);
  const bool vectors = has_chunks<T>(d.gathered, p.n) &&
      (p.pass != ConvPass::backward_weights || has_chunks<T>(d.straight, p.n));
  d.straight.channels = channels; // those that are written
  if constexpr (std::is_same_v<T, float>) {
    if (allows_tf32())
      return run_dense_product<T, true>(d, vectors);
  }
  run_dense_product<T, sizeof(T) == 2>(d, vectors);
}

} // namespace

bool supports_dense(const ConvProblem& p) {
  return p.n > 0 && fits(p);
}

void run_dense(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) { run<typename decltype(tag)::type>(p); });
}

} // namespace torch_dnnl::cuda
