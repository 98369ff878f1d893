// Backward weights by Winograd's F(4x4, 3x3). The forward pass is, for one tile and two channels,
//   Y = A^T [(G g G^T) * (B^T d B)] A,
// and its adjoint in g
//   dg = G^T [(A dY A^T) * (B^T d B)] G,
// so that the products of all tiles are summed before the one transform to taps: in each of the 36
// positions they are a matrix product, output channels x tiles by tiles x input channels.
#include <algorithm>

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

// src or dst: its channels are the rows or the columns of the products, in blocks of equal width.
struct Side {
  Side(const ConvProblem& p, bool is_src)
      : is_src(is_src),
        data(is_src ? p.src : p.dst),
        stride(is_src ? p.src_stride : p.dst_stride),
        size(is_src ? p.src_size : p.dst_size),
        pad_y(is_src ? p.pad[1] : 0),
        pad_x(is_src ? p.pad[2] : 0),
        weights_stride(p.weights_stride[is_src ? 1 : 0]),
        channels(is_src ? p.ic : p.oc),
        count(ceil_div(channels, kChannels)),
        width(round_up(ceil_div(channels, count))) {}

  int64_t channels_from(int64_t begin) const {
    return std::min(width, channels - begin);
  }
  // From the transformed pixels of a tile, [position][channel], to those of the next. One position
  // more than there are, lest those of one position share a few places in the first-level cache.
  int64_t tile_step() const {
    return (kPositions + 1) * width;
  }

  bool is_src;
  const void* data;
  const int64_t *stride, *size; // N, C, D, H, W; D, H, W
  int64_t pad_y, pad_x;         // where the first tile begins
  int64_t weights_stride;
  int64_t channels, count, width;
};

// What a task computes, and the order of its sums, depend on the problem alone: the result is the
// same for any number of threads.
template <class T>
class WinogradWeights {
 public:
  explicit WinogradWeights(const ConvProblem& p)
      : p_(p),
        tiles_(p.n, p.dst_size),
        rows_(p, /*is_src=*/p.weights_stride[0] < p.weights_stride[1]),
        columns_(p, !rows_.is_src),
        outputs_(p.groups * rows_.count * columns_.count),
        chunks_(
            std::clamp<int64_t>(
                kTasks / outputs_,
                1,
                std::max<int64_t>(tiles_.count / kTilesOfTask, 1))),
        size_(rows_.width * columns_.width),
        step_(size_ + kApart) {}

  void run() {
    const Scratch<float> partial(chunks_ == 1 ? 0 : outputs_ * chunks_ * kTaps * size_);
    const int64_t operations = tiles_.count / chunks_ * kPositions * size_;
    parallel_tasks(outputs_ * chunks_, operations, [&](int64_t begin, int64_t end) {
      const Scratch<float> rows(kBlock * rows_.tile_step());
      const Scratch<float> columns(kBlock * columns_.tile_step());
      const Scratch<float> sums(kPositions * step_);
      const Scratch<float> local(chunks_ == 1 ? kTaps * size_ : 0);
      for (int64_t task = begin; task < end; task++) {
        const Output output = output_of(task / chunks_);
        float* taps = chunks_ == 1 ? local.data() : partial.data() + task * kTaps * size_;
        const int64_t chunk = task % chunks_, last = tiles_.count * (chunk + 1) / chunks_;
        std::fill(taps, taps + kTaps * size_, 0.0f);
        for (int64_t t = tiles_.count * chunk / chunks_; t < last; t += kTilesOfSum) {
          const int64_t tiles = std::min(kTilesOfSum, last - t);
          multiply(output, t, tiles, rows.data(), columns.data(), sums.data());
          add_to_taps(output, sums.data(), taps);
        }
        if (chunks_ == 1)
          store(output, taps);
      }
    });
    if (chunks_ == 1)
      return;
    parallel_tasks(outputs_, chunks_ * kTaps * size_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        float* taps = partial.data() + i * chunks_ * kTaps * size_;
        for (int64_t chunk = 1; chunk < chunks_; chunk++) {
          const float* more = taps + chunk * kTaps * size_;
          for (int64_t j = 0; j < kTaps * size_; j++)
            taps[j] += more[j];
        }
        store(output_of(i), taps);
      }
    });
  }

 private:
  // The channels, from these on, whose weights one task, or one for each chunk of tiles, computes.
  struct Output {
    int64_t group, row, column;
  };

  Output output_of(int64_t index) const {
    const int64_t block = index / columns_.count;
    return {
        block / rows_.count,
        block % rows_.count * rows_.width,
        index % columns_.count * columns_.width};
  }

  // Sums of products, [position][row][column].
  void
  multiply(const Output& o, int64_t first, int64_t tiles, float* rows, float* columns, float* sums)
      const {
    std::fill(sums, sums + kPositions * step_, 0.0f);
    for (int64_t t = 0; t < tiles; t += kBlock) {
      const int64_t count = std::min(kBlock, tiles - t);
      pack(rows_, o.group, o.row, first + t, count, rows);
      pack(columns_, o.group, o.column, first + t, count, columns);
      for (int64_t k = 0; k < kPositions; k++) {
        const float *a = rows + k * rows_.width, *b = columns + k * columns_.width;
        for (int64_t c = 0; c < columns_.channels_from(o.column); c += kPanel<float>) {
          const int64_t channels = std::min(kPanel<float>, columns_.channels_from(o.column) - c);
          gemm<float>(
              rows_.channels_from(o.row),
              ceil_div(channels, kLanes<float>),
              count,
              {a,
               1,
               rows_.tile_step(),
               b + c,
               columns_.tile_step(),
               sums + k * step_ + c,
               columns_.width});
        }
      }
    }
  }

  // Transformed tiles, [tile][position][channel].
  void
  pack(const Side& side, int64_t group, int64_t channel, int64_t first, int64_t tiles, float* to)
      const {
    const int64_t channels = side.channels_from(channel);
    const TiledImages<T> images{
        static_cast<const T*>(side.data) + (group * side.channels + channel) * side.stride[1],
        side.stride,
        side.size,
        side.pad_y,
        side.pad_x};
    if (side.is_src) {
      transform_tiles<F, F::transform_input, F::kInput, kBlock>(
          images, tiles_, first, tiles, channels, to, side.tile_step(), side.width);
    } else {
      transform_tiles<F, F::transform_output_gradient, F::kTile, kBlock>(
          images, tiles_, first, tiles, channels, to, side.tile_step(), side.width);
    }
  }

  // Adds what the sums of products are transformed to, [tap][row][column].
  void add_to_taps(const Output& o, const float* sums, float* taps) const {
    for (int64_t r = 0; r < rows_.channels_from(o.row); r++) {
      for (int64_t c = 0; c < columns_.channels_from(o.column); c += kLanes<float>) {
        const int64_t at = r * columns_.width + c;
        Vec g[3][3];
        load_positions<F, F::transform_kernel_gradient>(sums + at, step_, g);
        for (int64_t tap = 0; tap < kTaps; tap++) {
          float* sum = taps + tap * size_ + at;
          (Vec::loadu(sum) + g[tap / 3][tap % 3]).store(sum);
        }
      }
    }
  }

  void store(const Output& o, const float* taps) const {
    const int64_t* ws = p_.weights_stride;
    const int64_t row_stride = rows_.weights_stride, column_stride = columns_.weights_stride;
    const int64_t columns = columns_.channels_from(o.column);
    T* out = static_cast<T*>(p_.out) + o.group * p_.weights_group;
    for (int64_t r = 0; r < rows_.channels_from(o.row); r++) {
      const float* from = taps + r * columns_.width;
      T* to = out + (o.row + r) * row_stride + o.column * column_stride;
      if (column_stride == 1) {
        for (int64_t tap = 0; tap < kTaps; tap++) {
          at::vec::convert(from + tap * size_, to + tap / 3 * ws[3] + tap % 3 * ws[4], columns);
        }
        continue;
      }
      for (int64_t c = 0; c < columns; c++) {
        for (int64_t tap = 0; tap < kTaps; tap++) {
          to[c * column_stride + tap / 3 * ws[3] + tap % 3 * ws[4]] =
              convert<T>(from[tap * size_ + c]);
        }
      }
    }
  }

  const ConvProblem& p_;
  const Tiles<F> tiles_;
  const Side rows_, columns_; // columns: of those channels whose weights lie closer together
  const int64_t outputs_, chunks_, size_, step_;
};

} // namespace

void run_winograd_weights(const ConvProblem& p) {
  dispatch(TypeList<float, c10::BFloat16, c10::Half>{}, p.dtype, [&](auto tag) {
    WinogradWeights<typename decltype(tag)::type>(p).run();
  });
}

} // namespace torch_dnnl
