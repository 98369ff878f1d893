// Backward weights by Winograd's F(4x4, 3x3). The forward pass is, for one tile and two channels,
//   Y = A^T [(G g G^T) * (B^T d B)] A,
// and its adjoint in g
//   dg = G^T [(A dY A^T) * (B^T d B)] G,
// so that the products of all tiles are summed before the one transform to taps: in each of the 36
// positions they are a matrix product, output channels x tiles by tiles x input channels.
#include <algorithm>

#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/microkernel.h"
#include "conv/cpu/shared/reduce.h"
#include "conv/cpu/winograd/tiles.h"
#include "core/cpu/transpose.h"
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
  int64_t channels, weights_stride; // channels of a group
  int64_t panels = ceil_div(channels, kChannels);
  int64_t width = round_up(ceil_div(channels, panels), kLanes<float>); // channels of a panel

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
  const Side src{true, p.ic, p.weights_stride[1]}, dst{false, p.oc, p.weights_stride[0]};
  const Side &rows = are_rows_src ? src : dst, &columns = are_rows_src ? dst : src;
  const int64_t outputs = p.groups * rows.panels * columns.panels;
  const int64_t most_chunks = std::max<int64_t>(tiles.count / kTilesOfTask, 1);
  const int64_t chunks = std::clamp<int64_t>(kTasks / outputs, 1, most_chunks);
  const int64_t size = rows.width * columns.width;
  return {tiles, rows, columns, outputs, chunks, size, size + kApart};
}

template <class T>
class WeightsGradient {
 public:
  explicit WeightsGradient(const ConvProblem& p) : p_(p) {}

  void run() const {
    const int64_t tiles = plan_.tiles.count, size = kTaps * plan_.size;
    const auto workspace = [&] {
      return Workspace{
          Scratch<float>(kBlock * plan_.rows.tile_step()),
          Scratch<float>(kBlock * plan_.columns.tile_step()),
          Scratch<float>(kPositions * plan_.step)};
    };
    const auto accumulate = [&](const Workspace& own, int64_t i, int64_t chunk, float* taps) {
      const int64_t last = tiles * (chunk + 1) / plan_.chunks;
      std::fill_n(taps, size, 0.0f);
      for (int64_t t = tiles * chunk / plan_.chunks; t < last; t += kTilesOfSum) {
        multiply_tiles(output(i), {t, std::min(t + kTilesOfSum, last)}, own);
        add_to_taps(output(i), own.sums.data(), taps);
      }
    };
    sum_in_chunks<float>(
        {plan_.outputs, plan_.chunks, size, tiles * kPositions * plan_.size},
        workspace,
        accumulate,
        [&](int64_t i, const float* taps) { store_taps(output(i), taps); });
  }

 private:
  // Memory of a thread: for a block of tiles of either side, and for sums of products.
  struct Workspace {
    Scratch<float> rows, columns, sums;
  };

  // The weights of the channels from `row` and from `column` on.
  struct Output {
    int64_t group, row, column;
  };
  Output output(int64_t index) const {
    Digits digits{index};
    const int64_t column = digits.next(plan_.columns.panels) * plan_.columns.width;
    const int64_t row = digits.next(plan_.rows.panels) * plan_.rows.width;
    return {digits.rest, row, column};
  }

  // Transforms tiles, to [tile][position][channel].
  void
  transform_side(const Side& side, int64_t group, int64_t channel, Range tiles, float* to) const {
    auto transform = transform_tiles<F, F::transform_input, F::kInput, kBlock, T>;
    TiledImages<T> images{
        static_cast<const T*>(p_.src), p_.src_stride, p_.src_size, p_.pad[1], p_.pad[2]};
    if (!side.is_src) {
      transform = transform_tiles<F, F::transform_output_gradient, F::kTile, kBlock, T>;
      images = {static_cast<const T*>(p_.dst), p_.dst_stride, p_.dst_size, 0, 0};
    }
    images.data += (group * side.channels + channel) * images.stride[1];
    const int64_t channels = side.channels_from(channel);
    transform(images, plan_.tiles, tiles, channels, to, side.tile_step(), side.width);
  }

  // Sums of products, to [position][row][column].
  void multiply_tiles(const Output& o, Range tiles, const Workspace& own) const {
    const Side &a = plan_.rows, &b = plan_.columns;
    const int64_t channels = b.channels_from(o.column);
    float* const sums = own.sums.data();
    std::fill_n(sums, kPositions * plan_.step, 0.0f);
    for (int64_t t = tiles.begin; t < tiles.end; t += kBlock) {
      const Range block{t, std::min(t + kBlock, tiles.end)};
      transform_side(a, o.group, o.row, block, own.rows.data());
      transform_side(b, o.group, o.column, block, own.columns.data());
      for (int64_t k = 0; k < kPositions; k++) {
        const float* rows = own.rows.data() + k * a.width;
        const float* columns = own.columns.data() + k * b.width;
        float* to = sums + k * plan_.step;
        for (int64_t c = 0; c < channels; c += kPanel<float>) {
          gemm<float>(
              a.channels_from(o.row),
              ceil_div(std::min(kPanel<float>, channels - c), kLanes<float>),
              block.count(),
              {{rows, {1}, {a.tile_step()}},
               {columns + c, {b.tile_step()}},
               {to + c, b.width, kLanes<float>},
               {to + c, b.width}});
        }
      }
    }
  }

  // Adds what the sums of products are transformed to, [tap][row][column].
  void add_to_taps(const Output& o, const float* sums, float* taps) const {
    for (int64_t r = 0; r < plan_.rows.channels_from(o.row); r++) {
      for (int64_t c = 0; c < plan_.columns.channels_from(o.column); c += kLanes<float>) {
        const int64_t at = r * plan_.columns.width + c;
        Lanes<float> g[3][3];
        load_positions<F, F::transform_weights_gradient>(sums + at, plan_.step, g);
        for (int64_t tap = 0; tap < kTaps; tap++) {
          float* sum = taps + tap * plan_.size + at;
          (load_lanes<float>(sum) + g[tap / 3][tap % 3]).store(sum);
        }
      }
    }
  }

  // The taps of two channels lie together, or the channels of a tap do.
  void store_taps(const Output& o, const float* taps) const {
    const int64_t row_stride = plan_.rows.weights_stride, stride = plan_.columns.weights_stride;
    const int64_t columns = plan_.columns.channels_from(o.column);
    T* const out = static_cast<T*>(p_.out) + o.group * p_.weights_group + o.column * stride;
    const bool are_together = stride != 1;
    T rounded[kTaps * kChannels]; // [tap][column]
    for (int64_t r = 0; r < plan_.rows.channels_from(o.row); r++) {
      T* const to = out + (o.row + r) * row_stride;
      for (int64_t tap = 0; tap < kTaps; tap++) {
        T* const at = to + tap / 3 * p_.weights_stride[3] + tap % 3 * p_.weights_stride[4];
        at::vec::convert(
            taps + tap * plan_.size + r * plan_.columns.width,
            are_together ? rounded + tap * columns : at,
            columns);
      }
      if (are_together)
        transpose_numbers(rounded, columns, kTaps, to, stride, columns);
    }
  }

  const ConvProblem& p_;
  const WeightsGradientPlan plan_ = plan_weights_gradient(p_);
};

} // namespace

void winograd_weights_gradient(const ConvProblem& p) {
  dispatch(TypeList<float, c10::BFloat16, c10::Half>{}, p.dtype, [&](auto tag) {
    WeightsGradient<typename decltype(tag)::type>(p).run();
  });
}

} // namespace torch_dnnl
