// Where kernels compute offsets in 64 bits and divide in 31, against plain arithmetic: for results
// that are too large to be allocated in a test, and for counts of blocks, pixels and sums that
// would take too long (far_apart.cu has large strides of few elements, in whole kernels); and what
// large problems ask of shared memory. A program that ends with 0 when all are right.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "conv/cuda/depthwise/depthwise.h"
#include "conv/cuda/shared/problem.h"
#include "core/cuda/divide.h"
#include "reorder/cuda/rows.h"
#include "reorder/cuda/tile.h"
#include "resample/cuda/kernel_arguments.h"

using namespace torch_dnnl;

namespace {

int failures = 0;

void expect(const char* what, int64_t actual, int64_t expected) {
  if (actual != expected && failures++ < 20)
    std::printf("wrong: %s is %ld, expected %ld\n", what, long(actual), long(expected));
}

std::mt19937_64 random_bits(0);

int64_t below(int64_t limit) {
  return static_cast<int64_t>(random_bits() % limit);
}

// Up to 2^44, and never a multiple of 2^31.
int64_t far_stride() {
  return below(int64_t(1) << 44) | 1;
}

void divisions() {
  constexpr int64_t kEnd = int64_t(1) << 31;
  for (int i = 0; i < 20'000; i++) {
    const int64_t divisor = 1 + below(i % 2 == 0 ? kEnd - 1 : int64_t(1) << (1 + i % 30));
    const cuda::Divisor by(divisor);
    const int64_t multiple = below(kEnd / divisor + 1) * divisor;
    for (const int64_t n :
         {below(kEnd), multiple - 1, multiple, multiple + divisor - 1, kEnd - 1}) {
      if (n < 0 || n >= kEnd)
        continue;
      auto quotient = static_cast<uint32_t>(n);
      const uint32_t rest = by.split(quotient);
      expect("quotient", quotient, n / divisor);
      expect("remainder", rest, n % divisor);
    }
  }
}

void places_of_resample() {
  cuda::KernelArguments<float> args{};
  const int64_t columns = 1023, strips = 57, d = 3, c = 5, n = 511;
  args.height = strips * 16 - 5;
  args.rows_per_strip = 16;
  args.by_columns = cuda::Divisor(columns);
  args.by_strips = cuda::Divisor(strips);
  args.by_d = cuda::Divisor(d);
  args.by_c = cuda::Divisor(c);
  for (int i = 0; i < 4; i++)
    args.src_stride[i] = far_stride(), args.dst_stride[i] = far_stride();
  for (int i = 0; i < 10'000; i++) {
    const int64_t worker = below(columns * strips * d * c * n);
    const cuda::Place at = cuda::place(args, static_cast<uint32_t>(worker));
    const int64_t strip = worker / columns % strips, plane = worker / columns / strips;
    const int64_t channel = plane / d % c, image = plane / d / c;
    expect("column", at.column, worker % columns);
    expect("first row", at.begin, strip * 16);
    expect("last row", at.end, std::min<int64_t>(strip * 16 + 16, args.height));
    expect("plane", at.d, plane % d);
    expect("offset in src", at.src, image * args.src_stride[0] + channel * args.src_stride[1]);
    expect(
        "offset in dst",
        at.dst,
        image * args.dst_stride[0] + channel * args.dst_stride[1] + plane % d * args.dst_stride[2]);
  }
}

void packs_of_reorder() {
  constexpr int64_t kWidth = 16, kSrcSize = 4, kDstSize = 2;
  const int64_t extents[] = {3, 70'001, 5, 83};
  boxes::Box box;
  for (const int64_t extent : extents) {
    box.axes.push_back({extent, {}});
    for (int64_t& stride : box.axes.back().stride)
      stride = far_stride();
  }
  for (int64_t& offset : box.offset)
    offset = far_stride();
  const auto rows = reorder_cuda::row_box(box, kWidth, kSrcSize, kDstSize);
  const int64_t of_row = (extents[3] + kWidth - 1) / kWidth;
  expect("packs", rows.packs, extents[0] * extents[1] * extents[2] * of_row);
  for (int i = 0; i < 10'000; i++) {
    const int64_t pack = below(rows.packs);
    reorder_cuda::PackPosition position;
    const int count = rows.locate(static_cast<uint32_t>(pack), /*has_tensors=*/true, position);
    const int64_t first = pack % of_row * kWidth;
    expect("elements", count, std::min(kWidth, extents[3] - first));
    const int64_t rest = pack / of_row;
    const int64_t at[] = {
        rest / extents[2] / extents[1], rest / extents[2] % extents[1], rest % extents[2], first};
    for (int array = 0; array < boxes::kArrays; array++) {
      int64_t offset = box.offset[array];
      for (int a = 0; a < 4; a++)
        offset += at[a] * box.axes[a].stride[array];
      const int64_t size = array == boxes::kSrc ? kSrcSize : array == boxes::kDst ? kDstSize : 1;
      expect("offset", position.at[array], offset * size);
    }
  }
}

void pixels_of_convolution() {
  cuda::DenseProblem p{};
  p.conv.pass = ConvPass::forward;
  p.conv.n = 1'000'003;
  p.gathered.channels = 40;
  p.straight.channels = 72;
  const int sizes[] = {7, 301, 1013};
  for (int a = 0; a < 3; a++) {
    p.straight.size[a] = sizes[a];
    p.conv.stride[a] = 1 + a, p.conv.dilation[a] = 2, p.conv.kernel[a] = 3, p.conv.pad[a] = a;
    p.residues[a] = p.tap_step[a] = 1;
  }
  for (int i = 0; i < 5; i++)
    p.gathered.stride[i] = far_stride(), p.straight.stride[i] = far_stride();
  const cuda::Geometry g(p, 3); // group 3
  expect("pixels", g.pixels(p), p.conv.n * sizes[0] * sizes[1] * sizes[2]);
  for (int i = 0; i < 10'000; i++) {
    const int64_t index = below(g.pixels(p));
    const cuda::PixelRow row = cuda::pixel_row(p, g, index);
    int64_t rest = index, straight = 3 * 72 * p.straight.stride[1],
            gathered = 3 * 40 * p.gathered.stride[1];
    for (int a = 2; a >= 0; a--) {
      const int64_t x = rest % sizes[a];
      rest /= sizes[a];
      straight += x * p.straight.stride[2 + a];
      gathered += (x * p.conv.stride[a] - p.conv.pad[a]) * p.gathered.stride[2 + a];
    }
    expect("offset in dst", row.straight.offset, straight + rest * p.straight.stride[0]);
    expect("offset in src", row.gathered.offset, gathered + rest * p.gathered.stride[0]);
  }
  expect("beyond the last pixel", cuda::pixel_row(p, g, g.pixels(p)).straight.inside, 0);
}

// More runs or tiles of outputs than 2^31, and the outputs themselves.
void outputs_of_depthwise() {
  const int sizes[] = {1013, 7, 301, 40};
  int64_t strides[5];
  for (int i = 0; i < 10'000; i++) {
    for (int64_t& stride : strides)
      stride = far_stride();
    const int64_t index = below(int64_t(1) << 60);
    int64_t rest = index, x[4];
    Digits digits{index};
    for (int a = 0; a < 4; a++) {
      x[a] = digits.next(sizes[a]);
      expect("digit", x[a], rest % sizes[a]);
      rest /= sizes[a];
    }
    expect("the other digits", digits.rest, rest);
    const int64_t n = below(1'000'003);
    const cuda::ImageIndex output{n, int(x[3]), int(x[2]), int(x[1]), int(x[0])};
    int64_t offset = n * strides[0];
    for (int a = 0; a < 4; a++)
      offset += x[3 - a] * strides[1 + a];
    expect("offset of an output", output.offset(strides), offset);
  }
}

// More sums of weights than 2^31.
void sums_of_depthwise() {
  const int64_t taps = 49'001, pairs = 500'009;
  const cuda::PartialSums sums{taps, pairs, nullptr};
  expect("sums of a slice", sums.elements(), taps * pairs);
  for (int i = 0; i < 10'000; i++) {
    const int64_t slice = below(1056), tap = below(taps);
    expect("offset of sums", sums.offset(slice, tap), (slice * taps + tap) * pairs);
  }
}

// Of images of any sizes, in any order of axes, with gaps: GPUs have 99 KB or more for a block.
void memory_of_tiles() {
  constexpr int64_t kMost = 99 << 10;
  for (int i = 0; i < 20'000; i++) {
    const int axes = 2 + static_cast<int>(below(3));
    const int64_t size = int64_t(1) << below(4);
    boxes::Box box;
    int64_t stride = 1;
    for (int a = 0; a < axes; a++) {
      box.axes.insert(box.axes.begin(), {2 + below(int64_t(1) << below(19)), {}});
      box.axes.front().stride[boxes::kDst] = stride;
      stride *= box.axes.front().extent;
    }
    std::vector<int> order(axes);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_bits);
    stride = 1;
    for (const int a : order) {
      box.axes[a].stride[boxes::kSrc] = below(8) == 0 ? 0 : stride;
      stride *= box.axes[a].extent + below(2) * below(9);
    }
    int64_t pack = 16 / size; // as rows of dst are aligned
    while (box.axes.back().extent % pack != 0)
      pack /= 2;
    const auto tiles = reorder_cuda::plan_tiles({boxes::BoxGroup(box), nullptr, size, size, pack});
    expect("more than the memory of a block", tiles.box.shared_bytes > kMost, false);
  }
}

} // namespace

int main() {
  memory_of_tiles();
  divisions();
  places_of_resample();
  packs_of_reorder();
  pixels_of_convolution();
  outputs_of_depthwise();
  sums_of_depthwise();
  std::printf("%d wrong\n", failures);
  return failures != 0;
}
