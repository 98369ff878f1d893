// Backward weights by Winograd's F(4x4, 3x3). The forward pass is, for one tile and two channels,
//   Y = A^T [(G g G^T) * (B^T d B)] A,
// and its adjoint in g
//   dg = G^T [(A dY A^T) * (B^T d B)] G,
// so that the products of all tiles are summed before the one transform to taps: in each of the 36
// positions they are a matrix product, output channels x tiles by tiles x input channels.
#include <algorithm>

#include "conv/cpu/shared/microkernel.h"
#include "conv/cpu/winograd/inputs.h"
#include "conv/cpu/winograd/winograd.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/math.h"

namespace torch_dnnl {
namespace {

using F = F4x4;
constexpr int64_t kPositions = F::kPositions;
constexpr int64_t kTaps = 9;
constexpr int64_t kChannels = 64;    // sums of a task, 36 x 64 x 64, stay in the second-level cache
constexpr int64_t kBlock = 32;       // tiles at a time, which stay there too
constexpr int64_t kTasks = 16;       // for threads to share; each may keep 9 x 64 x 64 floats
constexpr int64_t kTilesOfSum = 512; // the error of longer sums grows with the root of their length
constexpr int64_t kTilesOfTask = 64; // that make up for the transform to taps

// src or dst: its channels are the rows or the columns of the products, in panels of equal width.
struct Side {
  bool is_src;
  const void* data;
  const int64_t *stride, *size; // N, C, D, H, W; D, H, W
  int64_t pad_y, pad_x;         // where the first tile begins
  int64_t weights_stride;
  int64_t channels, panels, width; // channels of a group; width: channels of a panel

  int64_t channels_from(int64_t begin) const {
    return std::min(width, channels - begin);
  }
  // From the transformed pixels of a tile, [position][channel], to the pixels of the next tile. One
  // position more than there are, lest tiles in one position share a few places in the first-level
  // cache.
  int64_t tile_step() const {
    return (kPositions + 1) * width;
  }
};

Side side_of(const ConvProblem& p, bool is_src) {
  const int64_t channels = is_src ? p.ic : p.oc, panels = ceil_div(channels, kChannels);
  return {
      .is_src = is_src,
      .data = is_src ? p.src : p.dst,
      .stride = is_src ? p.src_stride : p.dst_stride,
      .size = is_src ? p.src_size : p.dst_size,
      .pad_y = is_src ? p.pad[1] : 0,
      .pad_x = is_src ? p.pad[2] : 0,
      .weights_stride = p.weights_stride[is_src ? 1 : 0],
      .channels = channels,
      .panels = panels,
      .width = round_up(ceil_div(channels, panels), kLanes<float>)};
}

// What a task computes, and the order of its sums, depend on the problem alone: the result is the
// same for any number of threads.
struct WeightsGradientPlan {
  Tiles<F> tiles;
  Side rows, columns; // columns: the side whose channels' weights lie closer together
  int64_t outputs;    // pairs of a panel of rows and one of columns, of all groups
  int64_t chunks;     // parts of the tiles: tasks of an output
  int64_t size, step; // floats of an output; from one position of its sums to the next
};

WeightsGradientPlan plan_weights_gradient(const ConvProblem& p) {
  const bool are_rows_src = p.weights_stride[0] < p.weights_stride[1];
  const Tiles<F> tiles(p.n, p.dst_size);
  const Side rows = side_of(p, are_rows_src), columns = side_of(p, !are_rows_src);
  const int64_t outputs = p.groups * rows.panels * columns.panels;
  const int64_t most_chunks = std::max<int64_t>(tiles.count / kTilesOfTask, 1);
  const int64_t size = rows.width * columns.width;
  return {
      .tiles = tiles,
      .rows = rows,
      .columns = columns,
      .outputs = outputs,
      .chunks = std::clamp<int64_t>(kTasks / outputs, 1, most_chunks),
      .size = size,
      .step = size + kApart};
}

// The weights of the channels from `row` and from `column` on.
struct Output {
  int64_t group, row, column;
};

Output output_of(const WeightsGradientPlan& plan, int64_t index) {
  const Side &rows = plan.rows, &columns = plan.columns;
  const int64_t panel = index / columns.panels;
  return {
      panel / rows.panels,
      panel % rows.panels * rows.width,
      index % columns.panels * columns.width};
}

// Transforms tiles, to [tile][position][channel].
template <class T>
void transform_side(
    const Tiles<F>& all,
    const Side& side,
    int64_t group,
    int64_t channel,
    Range tiles,
    float* to) {
  const TiledImages<T> images{
      static_cast<const T*>(side.data) + (group * side.channels + channel) * side.stride[1],
      side.stride,
      side.size,
      side.pad_y,
      side.pad_x};
  const int64_t channels = side.channels_from(channel), count = tiles.count();
  if (side.is_src) {
    transform_tiles<F, F::transform_input, F::kInput, kBlock>(
        images, all, tiles.begin, count, channels, to, side.tile_step(), side.width);
  } else {
    transform_tiles<F, F::transform_output_gradient, F::kTile, kBlock>(
        images, all, tiles.begin, count, channels, to, side.tile_step(), side.width);
  }
}

// Sums of products, to [position][row][column]. rows, columns: memory for a block of tiles.
template <class T>
void multiply_tiles(
    const WeightsGradientPlan& plan,
    const Output& o,
    Range tiles,
    float* rows,
    float* columns,
    float* sums) {
  const Side &a = plan.rows, &b = plan.columns;
  const int64_t channels = b.channels_from(o.column);
  std::fill_n(sums, kPositions * plan.step, 0.0f);
  for (int64_t t = tiles.begin; t < tiles.end; t += kBlock) {
    const Range block{t, std::min(t + kBlock, tiles.end)};
    transform_side<T>(plan.tiles, a, o.group, o.row, block, rows);
    transform_side<T>(plan.tiles, b, o.group, o.column, block, columns);
    for (int64_t k = 0; k < kPositions; k++) {
      const float *in_rows = rows + k * a.width, *in_columns = columns + k * b.width;
      for (int64_t c = 0; c < channels; c += kPanel<float>) {
        gemm<float>(
            a.channels_from(o.row),
            ceil_div(std::min(kPanel<float>, channels - c), kLanes<float>),
            block.count(),
            {in_rows,
             1,
             a.tile_step(),
             in_columns + c,
             b.tile_step(),
             sums + k * plan.step + c,
             b.width});
      }
    }
  }
}

// Adds what the sums of products are transformed to, [tap][row][column].
void add_to_taps(const WeightsGradientPlan& plan, const Output& o, const float* sums, float* taps) {
  for (int64_t r = 0; r < plan.rows.channels_from(o.row); r++) {
    for (int64_t c = 0; c < plan.columns.channels_from(o.column); c += kLanes<float>) {
      const int64_t at = r * plan.columns.width + c;
      Lanes<float> g[3][3];
      load_positions<F, F::transform_weights_gradient>(sums + at, plan.step, g);
      for (int64_t tap = 0; tap < kTaps; tap++) {
        float* sum = taps + tap * plan.size + at;
        (load_lanes<float>(sum) + g[tap / 3][tap % 3]).store(sum);
      }
    }
  }
}

template <class T>
void store_taps(
    const ConvProblem& p,
    const WeightsGradientPlan& plan,
    const Output& o,
    const float* taps) {
  const int64_t row_stride = plan.rows.weights_stride, stride = plan.columns.weights_stride;
  const int64_t columns = plan.columns.channels_from(o.column);
  T* out = static_cast<T*>(p.out) + o.group * p.weights_group + o.column * stride;
  const auto position = [&](int64_t tap) {
    return tap / 3 * p.weights_stride[3] + tap % 3 * p.weights_stride[4];
  };
  for (int64_t r = 0; r < plan.rows.channels_from(o.row); r++) {
    const float* from = taps + r * plan.columns.width;
    T* to = out + (o.row + r) * row_stride;
    if (stride == 1) {
      for (int64_t tap = 0; tap < kTaps; tap++)
        at::vec::convert(from + tap * plan.size, to + position(tap), columns);
      continue;
    }
    for (int64_t c = 0; c < columns; c++) {
      for (int64_t tap = 0; tap < kTaps; tap++)
        to[c * stride + position(tap)] = convert<T>(from[tap * plan.size + c]);
    }
  }
}

template <class T>
void run(const ConvProblem& p) {
  const WeightsGradientPlan plan = plan_weights_gradient(p);
  const int64_t tiles = plan.tiles.count, chunks = plan.chunks, size = kTaps * plan.size;
  const Scratch<float> partial(chunks == 1 ? 0 : plan.outputs * chunks * size);
  const int64_t operations = tiles / chunks * kPositions * plan.size;
  parallel_tasks(plan.outputs * chunks, operations, [&](int64_t begin, int64_t end) {
    const Scratch<float> rows(kBlock * plan.rows.tile_step());
    const Scratch<float> columns(kBlock * plan.columns.tile_step());
    const Scratch<float> sums(kPositions * plan.step);
    const Scratch<float> local(chunks == 1 ? size : 0);
    for (int64_t task = begin; task < end; task++) {
      const Output output = output_of(plan, task / chunks);
      float* taps = chunks == 1 ? local.data() : partial.data() + task * size;
      const int64_t chunk = task % chunks, last = tiles * (chunk + 1) / chunks;
      std::fill_n(taps, size, 0.0f);
      for (int64_t t = tiles * chunk / chunks; t < last; t += kTilesOfSum) {
        const Range part{t, std::min(t + kTilesOfSum, last)};
        multiply_tiles<T>(plan, output, part, rows.data(), columns.data(), sums.data());
        add_to_taps(plan, output, sums.data(), taps);
      }
      if (chunks == 1)
        store_taps<T>(p, plan, output, taps);
    }
  });
  if (chunks == 1)
    return;
  parallel_tasks(plan.outputs, chunks * size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      float* taps = partial.data() + i * chunks * size;
      for (int64_t chunk = 1; chunk < chunks; chunk++) {
        for (int64_t j = 0; j < size; j++)
          taps[j] += taps[chunk * size + j];
      }
      store_taps<T>(p, plan, output_of(plan, i), taps);
    }
  });
}

} // namespace

void run_winograd_weights(const ConvProblem& p) {
  dispatch(TypeList<float, c10::BFloat16, c10::Half>{}, p.dtype, [&](auto tag) {
    run<typename decltype(tag)::type>(p);
  });
}

} // namespace torch_dnnl
