// The plan of a convolution whose taps never meet in a pixel: a matrix product for each group,
//
//   out(i, j) = sum over d of left(i, d) right(j, d)
//
// and how it is cut: into blocks, which are tasks; into chunks of the depth, which are summed
// apart; and into parts, which are computed one after the other.
//
// Two of src, weights and dst are multiplied and the third is out. Each of them is a matrix of two
// of three axes: output channels, pixels of dst, and terms, which are the inputs of a pixel of dst:
// its input channels and taps.
//
//   pass               left(i, d)               right(j, d)            out(i, j)
//   forward            weights(channel, term)   src(pixel, term)       dst
//   backward data      weights(term, channel)   dst(pixel, channel)    src
//   backward weights   dst(channel, pixel)      src(term, pixel)       weights
//
// The layouts of tensors are strides of these axes, and change nothing but the order of the terms.
#pragma once

#include <algorithm>
#include <utility>

#include "conv/cpu/shared/microkernel.h"
#include "conv/cpu/shared/panels.h"
#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// A tensor as a matrix for each group; columns of left and right are the depth.
struct GemmMatrix {
  const void* data;   // of left and right
  int64_t group_step; // in elements
  Axis rows, columns;
  bool is_weights;
  const void* packed; // the weights in panels of the right, with all of the depth

  GemmMatrix transposed() const {
    return {data, group_step, columns, rows, is_weights, packed};
  }
  // Whether its elements lie in rows, as products read a left matrix of their own type.
  bool lies_in_rows() const {
    return rows.step() && columns.step() == 1;
  }
};

struct GemmView {
  GemmMatrix left, right, out;
  int64_t groups, rows, columns, depth;
  // Rows and columns have changed places (and so have left and right), since it is rows of the
  // table above that lie next to each other in memory: those of the result are whole vectors now.
  bool is_transposed;
  // Products read the left matrix where it lies.
  bool reads_left;

  // Backward weights. The depth, which is pixels, may be long, and out small.
  bool sums_pixels() const {
    return !left.is_weights && !right.is_weights;
  }
};

// The order of the terms: input channels or, if these lie next to each other, taps first.
inline bool are_channels_fastest(const ConvProblem& p) {
  return p.src_stride[1] == 1;
}

// (channel, term)
inline GemmMatrix weights_matrix(const ConvProblem& p) {
  const int64_t *ws = p.weights_stride, *k = p.kernel;
  GemmMatrix weights{p.weights, p.weights_group};
  weights.rows = {{1, 1, 1, p.oc}, {0, 0, 0, ws[0]}};
  weights.columns = {{p.ic, k[0], k[1], k[2]}, {ws[1], ws[2], ws[3], ws[4]}};
  if (are_channels_fastest(p))
    weights.columns.rotate();
  weights.is_weights = true;
  weights.packed = p.packed;
  return weights;
}

inline GemmView gemm_view(const ConvProblem& p) {
  const int64_t *xs = p.src_stride, *ys = p.dst_stride;
  const int64_t *y = p.dst_size, *k = p.kernel, *s = p.stride, *d = p.dilation;
  GemmMatrix src{p.src, p.ic * xs[1]}; // (pixel, term)
  src.rows = {{p.n, y[0], y[1], y[2]}, {xs[0], xs[2] * s[0], xs[3] * s[1], xs[4] * s[2]}};
  src.columns = {{p.ic, k[0], k[1], k[2]}, {xs[1], xs[2] * d[0], xs[3] * d[1], xs[4] * d[2]}};
  GemmMatrix dst{p.dst, p.oc * ys[1]}; // (channel, pixel)
  dst.rows = {{1, 1, 1, p.oc}, {0, 0, 0, ys[1]}};
  dst.columns = {{p.n, y[0], y[1], y[2]}, {ys[0], ys[2], ys[3], ys[4]}};
  if (are_channels_fastest(p))
    src.columns.rotate();
  const GemmMatrix weights = weights_matrix(p);
  GemmView view{weights, src, dst};
  if (p.pass == ConvPass::backward_data)
    view = {weights.transposed(), dst.transposed(), src.transposed()};
  else if (p.pass == ConvPass::backward_weights)
    view = {dst, src.transposed(), weights};
  // Weights of the left are read where they lie. For a few pixels it takes less to bring these, and
  // the results, from one order to the other than to pack the weights.
  const int64_t pixels = src.rows.count(), channels = weights.rows.count(),
                terms = src.columns.count();
  const bool is_widened = c10::isReducedFloatingType(p.dtype);
  const bool are_few = p.pass == ConvPass::forward && !is_widened && weights.lies_in_rows() &&
      p.packed == nullptr && pixels * (channels + terms) < channels * terms;
  view.is_transposed = view.out.columns.stride[3] != 1 && view.out.rows.stride[3] == 1 && !are_few;
  // Vectors of so few pixels would be empty to an eighth and more. The channels of packed panels
  // fill vectors.
  if (p.packed != nullptr && 8 * pixels < 7 * round_up(pixels, kLanes<float>))
    view.is_transposed = true;
  if (view.is_transposed) {
    std::swap(view.left, view.right);
    view.out = view.out.transposed();
  }
  view.reads_left = !is_widened && view.left.lies_in_rows();
  view.groups = p.groups;
  view.rows = view.left.rows.count();
  view.columns = view.right.rows.count();
  view.depth = view.left.columns.count();
  return view;
}

// What a block reads of both matrices in one step, and its sums, stay in the second-level cache.
inline constexpr int64_t kGemmBlockRows = 43 * kGemmRows; // 256, and the rest of a panel
inline constexpr int64_t kGemmBlockColumns = 256;
inline constexpr int64_t kGemmDepth = 256;

// A task computes a block of out for a chunk, one step of kGemmDepth after the other. What it reads
// is in panels: those of a shared matrix are packed once per part for all tasks, others by each
// task.
struct GemmBlocking {
  int64_t rows, columns;             // of a block
  int64_t row_blocks, column_blocks; // of a group's out
  // The sums of each chunk of the depth are made apart. It is one chunk but for backward weights,
  // where the number of chunks depends on the problem alone, as results may not depend on threads.
  int64_t depth, chunks;
  bool shares_left, shares_right;
  int64_t part_rows, part_columns, part_depth; // which bound the memory of shared panels
  bool keeps_sums;                             // until all chunks and parts of the depth are there

  int64_t blocks() const {
    return row_blocks * column_blocks;
  }
  int64_t block_size() const {
    return rows * columns;
  }
  // Where a chunk begins; that of the chunk past the last is the end of the depth.
  int64_t begin_of(int64_t chunk) const {
    return std::min(ceil_div(depth, kGemmDepth) * chunk / chunks * kGemmDepth, depth);
  }
  // The chunks that have some of this depth.
  Range chunks_in(Range of_depth) const {
    Range some{0, 0};
    while (begin_of(some.begin + 1) <= of_depth.begin)
      some.begin++;
    while (some.end < chunks && begin_of(some.end) < of_depth.end)
      some.end++;
    return some;
  }
};

namespace blocking_detail {

// Chunks of backward weights: tasks for the threads to share, of so many pixels at least.
constexpr int64_t kTasks = 32, kTaskPixels = 1024;
// Elements of images that are packed at once for each thread, and for how many threads at least.
constexpr int64_t kSharedElements = int64_t(1) << 18, kFewThreads = 4;
// Tasks that read the same rows of a matrix before these rows are packed once for all tasks.
constexpr int64_t kFewReaders = 2;

// The largest blocks that are equal and fit into the cache.
inline void choose_largest_blocks(const GemmView& v, int64_t panel, GemmBlocking& b) {
  b.rows = round_up(ceil_div(v.rows, ceil_div(v.rows, kGemmBlockRows)), kGemmRows);
  b.columns = round_up(ceil_div(v.columns, ceil_div(v.columns, kGemmBlockColumns)), panel);
  b.row_blocks = ceil_div(v.rows, b.rows);
  b.column_blocks = ceil_div(v.columns, b.columns);
}

// Smaller blocks, which change no sum, so that all threads have work, and equal work.
inline void fit_to_threads(const GemmView& v, int64_t panel, int64_t threads, GemmBlocking& b) {
  const int64_t enough = threads == 1 ? 1 : 4 * threads;
  const auto set_rows = [&](int64_t rows) {
    b.rows = round_up(rows, kGemmRows);
    b.row_blocks = ceil_div(v.rows, b.rows);
  };
  const int64_t equal = round_up(b.row_blocks, threads);
  if (b.chunks == 1 && v.rows >= equal * 16 * kGemmRows)
    set_rows(ceil_div(v.rows, equal));
  while (b.chunks * b.blocks() < enough && b.columns > panel) {
    b.columns = round_up(b.columns / 2, panel);
    b.column_blocks = ceil_div(v.columns, b.columns);
  }
  while (b.chunks * b.blocks() < enough && b.rows > 4 * kGemmRows)
    set_rows(b.rows / 2);
}

// Bytes of weights that are packed at once.
inline constexpr int64_t kMostPacked = int64_t(10) << 20;

// Parts whose shared panels take bounded memory, however large images and weights are.
inline void
choose_parts(const GemmView& v, int64_t element_size, int64_t threads, GemmBlocking& b) {
  const int64_t of_image = kSharedElements * std::max(kFewThreads, threads);
  const int64_t of_weights = kMostPacked / element_size;
  // As many whole units, of `elements` for each of its indices, as `most` elements have.
  const auto fitting = [&](int64_t unit, int64_t elements, int64_t most) {
    return std::max<int64_t>(1, most / std::max<int64_t>(1, v.groups * unit * elements)) * unit;
  };
  b.part_rows = v.rows;
  b.part_columns = v.columns;
  b.part_depth = v.depth;
  if (v.sums_pixels()) {
    const int64_t shared = (b.shares_left ? v.rows : 0) + (b.shares_right ? v.columns : 0);
    b.part_depth = std::min(v.depth, fitting(kGemmDepth, shared, of_image));
    return;
  }
  if (b.shares_left) {
    const int64_t most = v.left.is_weights ? of_weights : of_image;
    b.part_rows = std::min(v.rows, fitting(b.rows, v.depth, most));
  }
  if (b.shares_right) {
    const int64_t most = v.right.is_weights ? of_weights : of_image;
    b.part_columns = std::min(v.columns, fitting(b.columns, v.depth, most));
  }
}

} // namespace blocking_detail

// `element_size`: bytes of a number as it is computed with.
inline GemmBlocking gemm_blocking(const GemmView& v, int64_t threads, int64_t element_size) {
  using namespace blocking_detail;
  const int64_t panel = kPanel<float> * int64_t(sizeof(float)) / element_size;
  GemmBlocking b{.depth = v.depth, .chunks = 1};
  choose_largest_blocks(v, panel, b);
  if (v.sums_pixels()) {
    b.chunks = std::clamp<int64_t>(
        std::min(kTasks / b.blocks(), v.depth / kTaskPixels), 1, ceil_div(v.depth, kGemmDepth));
  }
  fit_to_threads(v, panel, threads, b);
  const auto is_packed = [](const GemmMatrix& matrix) { return matrix.packed != nullptr; };
  b.shares_left =
      !v.reads_left && !is_packed(v.left) && (v.left.is_weights || b.column_blocks > kFewReaders);
  b.shares_right = !is_packed(v.right) && (v.right.is_weights || b.row_blocks > kFewReaders);
  choose_parts(v, element_size, threads, b);
  b.keeps_sums = b.chunks > 1 || b.part_depth < v.depth;
  return b;
}

} // namespace torch_dnnl
