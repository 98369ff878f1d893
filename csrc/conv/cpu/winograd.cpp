#include "conv/cpu/winograd.h"

#include <algorithm>
#include <cstring>

#include "conv/cpu/epilogue.h"
#include "conv/cpu/packed_weights.h"
#include "conv/cpu/pixels.h"
#include "conv/cpu/roles.h"
#include "conv/cpu/tasks.h"
#include "conv/cpu/winograd_inputs.h"
#include "conv/cpu/winograd_kernels.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Forward and backward data are one computation, of a correlation of `in` with the kernels, which
// are turned around for backward data. In each position it is a matrix product, tiles x
// input channels by input x output channels.
template <class T, class F>
class Winograd : Roles {
 public:
  explicit Winograd(const ConvProblem& p)
      : Roles(p),
        epilogue_(p),
        pad_{forward_ ? p.pad[1] : 2 - p.pad[1], forward_ ? p.pad[2] : 2 - p.pad[2]},
        tiles_(p.n, out_size_),
        width_(std::min(WinogradKernels<T, F>::kWidth, round_up(out_channels_))),
        panels_(ceil_div(out_channels_, width_)),
        block_(block_of(tiles_.count, in_channels_)),
        blocks_(ceil_div(tiles_.count, block_)),
        padded_in_(round_up(in_channels_)),
        input_step_(block_ * padded_in_ + kApart),
        kernels_(p, width_) {}

  void run() {
    // Inputs or kernels are transformed first, in memory that all threads read: what takes less,
    // and never more than some MB. Threads share the panels or the blocks.
    const bool are_tiles_few = 2 * tiles_.count <= out_channels_ && panels_ > 1;
    if (are_tiles_few || kernel_bytes() > kMostKernels) {
      run_by_panels();
    } else {
      run_by_tiles();
    }
  }

 private:
  static constexpr int64_t kTile = F::kTile, kPositions = F::kPositions;
  // Input channels whose kernels stay in the second-level cache.
  static constexpr int64_t kDepth = 128, kDepthOfPanels = 64;
  static constexpr int64_t kMostTiles = kTile == 2 ? 48 : 24; // of a block
  static constexpr int64_t kBlocks = 8;                       // for threads to share
  // Bytes of kernels; to read more of them takes the time that it takes to transform them.
  static constexpr int64_t kMostKept = int64_t(4) << 20;
  // Bytes of what is transformed first.
  static constexpr int64_t kMostKernels = int64_t(10) << 20, kMostInputs = int64_t(8) << 20;

  // Tiles of a block: few enough to make blocks for some threads.
  static int64_t block_of(int64_t tiles, int64_t channels) {
    const int64_t most = channels <= 128 ? kMostTiles : kMostTiles / 2;
    return std::min(tiles, std::clamp(ceil_div(tiles, kBlocks), kMostTiles / 4, most));
  }

  int64_t kernel_step(int64_t depth) const {
    return depth * width_ + kApart;
  }
  int64_t kernel_bytes() const {
    return p_.groups * panels_ * kPositions * kernel_step(in_channels_) * int64_t(sizeof(float));
  }
  int64_t product_size() const {
    return kPositions * block_ * width_;
  }
  int64_t tiles_of(int64_t block) const {
    return std::min(block_, tiles_.count - block * block_);
  }

  // All kernels, [group][panel][position][input channel][width]; or null, unless they are kept or
  // `should_pack`.
  std::shared_ptr<const float> packed_kernels(bool should_pack) const {
    const int64_t step = kernel_step(in_channels_);
    const auto pack = [&](const void* weights, float* to) {
      constexpr int64_t depth = 32;
      const int64_t parts = ceil_div(in_channels_, depth);
      parallel_tasks(
          p_.groups * panels_ * parts, depth * width_ * 100, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; task++) {
              const int64_t c = task % parts * depth, panel = task / parts;
              kernels_.transform(
                  static_cast<const T*>(weights),
                  panel / panels_,
                  panel % panels_,
                  c,
                  std::min(depth, in_channels_ - c),
                  to + panel * kPositions * step + c * width_,
                  step);
            }
          });
    };
    return packed_weights<float>(
        p_,
        kTile == 2 ? Packing::winograd_2x2 : Packing::winograd_4x4,
        width_,
        p_.groups * panels_ * kPositions * step,
        pack,
        should_pack);
  }

  // Transforms all kernels, and then the inputs of a block of tiles at a time.
  void run_by_tiles() const {
    const auto kernels = packed_kernels(/*should_pack=*/true);
    const int64_t step = kernel_step(in_channels_);
    const int64_t operations = kPositions * block_ * in_channels_ * out_channels_;
    parallel_tasks(p_.groups * blocks_, operations, [&](int64_t begin, int64_t end) {
      const Scratch<float> inputs(kPositions * input_step_);
      const Scratch<float> products(product_size());
      const Scratch<float> rows(kTile * row_size());
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / blocks_, block = task % blocks_;
        pack_inputs(group, block, 0, in_channels_, inputs.data());
        for (int64_t panel = 0; panel < panels_; panel++) {
          const float* of_panel = kernels.get() + (group * panels_ + panel) * kPositions * step;
          std::fill_n(products.data(), product_size(), 0.0f);
          for (int64_t c = 0; c < in_channels_; c += kDepth) {
            multiply(
                {panel, block, std::min(kDepth, in_channels_ - c)},
                inputs.data() + c,
                of_panel + c * width_,
                step,
                products.data());
          }
          store_outputs(group, panel, block, products.data(), rows.data());
        }
      }
    });
  }

  // Transforms the inputs of many tiles, and then, unless they are kept, the kernels of a few input
  // channels of a panel at a time.
  void run_by_panels() const {
    const auto kept = kernel_bytes() > kMostKept ? nullptr : packed_kernels(/*should_pack=*/false);
    const int64_t step = kernel_step(kept == nullptr ? kDepthOfPanels : in_channels_);
    const int64_t block_size = p_.groups * kPositions * input_step_;
    const int64_t most =
        std::clamp<int64_t>(kMostInputs / (block_size * int64_t(sizeof(float))), 1, blocks_);
    const Scratch<float> inputs(most * block_size);
    for (int64_t first = 0; first < blocks_; first += most) {
      const int64_t blocks = std::min(most, blocks_ - first);
      pack_blocks(first, blocks, inputs.data());
      multiply_by_panels(first, blocks, inputs.data(), kept.get(), step);
    }
  }

  // Blocks from `first` on, [block][group].
  void pack_blocks(int64_t first, int64_t blocks, float* to) const {
    constexpr int64_t depth = 32;
    const int64_t parts = ceil_div(in_channels_, depth);
    parallel_tasks(
        blocks * p_.groups * parts, depth * block_ * 20, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; task++) {
            const int64_t c = task % parts * depth, index = task / parts;
            pack_inputs(
                index % p_.groups,
                first + index / p_.groups,
                c,
                std::min(depth, in_channels_ - c),
                to + index * kPositions * input_step_);
          }
        });
  }

  void multiply_by_panels(
      int64_t first,
      int64_t blocks,
      const float* inputs,
      const float* kept,
      int64_t step) const {
    const int64_t operations = kPositions * blocks * block_ * in_channels_ * width_;
    parallel_tasks(p_.groups * panels_, operations, [&](int64_t begin, int64_t end) {
      const Scratch<float> local(kept == nullptr ? kPositions * step : 0);
      const Scratch<float> products(blocks * product_size());
      const Scratch<float> rows(kTile * row_size());
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / panels_, panel = task % panels_;
        std::fill_n(products.data(), blocks * product_size(), 0.0f);
        for (int64_t c = 0; c < in_channels_; c += kDepthOfPanels) {
          const int64_t depth = std::min(kDepthOfPanels, in_channels_ - c);
          const float* kernels = local.data();
          if (kept == nullptr) {
            kernels_.transform(
                static_cast<const T*>(p_.weights), group, panel, c, depth, local.data(), step);
          } else {
            kernels = kept + task * kPositions * step + c * width_;
          }
          for (int64_t i = 0; i < blocks; i++) {
            multiply(
                {panel, first + i, depth},
                inputs + (i * p_.groups + group) * kPositions * input_step_ + c,
                kernels,
                step,
                products.data() + i * product_size());
          }
        }
        for (int64_t i = 0; i < blocks; i++)
          store_outputs(group, panel, first + i, products.data() + i * product_size(), rows.data());
      }
    });
  }

  // [position][tile][input channel]
  void pack_inputs(int64_t group, int64_t block, int64_t channel, int64_t depth, float* to) const {
    const TiledImages<T> images{
        input<T>(/*n=*/0, group) + channel * in_stride_[1], in_stride_, in_size_, pad_[0], pad_[1]};
    transform_tiles<F, F::transform_input, F::kInput, kMostTiles>(
        images,
        tiles_,
        block * block_,
        tiles_of(block),
        depth,
        to + channel,
        padded_in_,
        input_step_);
  }

  // Adds to sums of products, [position][tile][width].
  struct Product {
    int64_t panel, block, depth;
  };
  void multiply(
      const Product& o,
      const float* inputs,
      const float* kernels,
      int64_t kernel_step,
      float* to) const {
    const int64_t channels = std::min(width_, out_channels_ - o.panel * width_);
    for (int64_t k = 0; k < kPositions; k++) {
      const float *in = inputs + k * input_step_, *u = kernels + k * kernel_step;
      float* sums = to + k * block_ * width_;
      for (int64_t c = 0; c < channels; c += kPanel<float>) {
        const int64_t vectors = ceil_div(std::min(kPanel<float>, channels - c), kLanes<float>);
        gemm<float>(
            tiles_of(o.block),
            vectors,
            o.depth,
            {in, padded_in_, 1, u + c, width_, sums + c, width_});
      }
    }
  }

  // Channels that are completed at once: of a pixel, or of a line.
  int64_t step() const {
    return out_stride_[1] == 1 ? width_ : kLanes<float>;
  }
  // Values of a row of outputs of a block of tiles, in scratch memory.
  int64_t row_size() const {
    return block_ * kTile * step();
  }

  // Transforms sums of products to rows of outputs, and these to the result.
  void
  store_outputs(int64_t group, int64_t panel, int64_t block, const float* from, float* rows) const {
    const int64_t first = block * block_, count = tiles_of(block);
    const int64_t begin = panel * width_, channels = std::min(width_, out_channels_ - begin);
    for (int64_t at_once, c = 0; c < channels; c += at_once) {
      at_once = std::min(step(), channels - c);
      for (int64_t v = 0; v < at_once; v += kLanes<float>) {
        const Vec bias = bias_vector(group, begin + c + v, std::min(kLanes<float>, at_once - v));
        for (int64_t t = 0; t < count; t++) {
          Vec y[kTile][kTile];
          load_positions<F, F::transform_output>(from + t * width_ + c + v, block_ * width_, y);
          for (int64_t k = 0; k < kTile * kTile; k++) {
            float* row = rows + k / kTile * row_size();
            (y[k / kTile][k % kTile] + bias).store(row + (t * kTile + k % kTile) * step() + v);
          }
        }
      }
      int64_t neighbours;
      for (int64_t t = 0; t < count; t += neighbours) {
        const auto at = tiles_.place(first + t);
        neighbours = std::min(count - t, tiles_.columns - at.x / kTile);
        OutputRun run{at.n, group * out_channels_ + begin + c, at.d, at.y, at.x, at_once, 0};
        run.pixels = std::min(neighbours * kTile, out_size_[2] - at.x);
        for (int64_t i = 0; i < std::min(kTile, out_size_[1] - at.y); i++, run.h++) {
          const float* row = rows + i * row_size() + t * kTile * step();
          store_run(row, run);
        }
      }
    }
  }

  void store_run(const float* sums, const OutputRun& run) const {
    if (!epilogue_.is_empty())
      return epilogue_.store_pixels(sums, kLanes<float>, step(), run);
    T* out = static_cast<T*>(p_.out) + run.n * out_stride_[0] + run.channel * out_stride_[1] +
        run.d * out_stride_[2] + run.h * out_stride_[3] + run.w * out_stride_[4];
    store_pixels(
        LaneRun<const float>{sums, kLanes<float>, step()},
        ImageRun<T>{out, run.channels, run.pixels, out_stride_[1], out_stride_[4]});
  }

  Vec bias_vector(int64_t group, int64_t channel, int64_t lanes) const {
    if (p_.bias == nullptr)
      return Vec(0);
    const T* bias = static_cast<const T*>(p_.bias) + (group * p_.oc + channel) * p_.bias_stride;
    return load_lanes(bias, p_.bias_stride, lanes);
  }

  const Epilogue<T> epilogue_;
  const int64_t pad_[2];
  const Tiles<F> tiles_;
  const int64_t width_, panels_, block_, blocks_, padded_in_, input_step_;
  const WinogradKernels<T, F> kernels_;
};

const int64_t* out_size(const ConvProblem& p) {
  return p.pass == ConvPass::backward_data ? p.src_size : p.dst_size;
}

// The time of F in products of two channels, of which the definition has nine for each output.
template <class F>
int64_t time_of(const ConvProblem& p) {
  constexpr int64_t kernels = 4; // are transformed in the time of so many tiles
  return F::kPositions * (Tiles<F>(p.n, out_size(p)).count + kernels);
}

} // namespace

bool can_run_winograd(const ConvProblem& p) {
  const auto is_one = [](const int64_t (&list)[3]) {
    return list[0] == 1 && list[1] == 1 && list[2] == 1;
  };
  const bool can_run = p.dtype != c10::ScalarType::Double && p.kernel[0] == 1 && p.kernel[1] == 3 &&
      p.kernel[2] == 3 && is_one(p.stride) && is_one(p.dilation) && p.pad[0] == 0 &&
      p.src_size[0] == p.dst_size[0];
  if (!can_run || p.algorithm != ConvAlgorithm::automatic) {
    return can_run && p.algorithm == ConvAlgorithm::winograd;
  }
  // What takes less than a tenth of a millisecond is computed with the smaller error of direct
  // sums.
  constexpr int64_t few = int64_t(1) << 22;
  const int64_t products = p.n * p.groups * p.ic * p.oc * 9 * product(p.dst_size);
  if (std::min(p.ic, p.oc) < 16 || products < few)
    return false;
  const int64_t* out = out_size(p);
  if (p.pass == ConvPass::backward_weights) {
    // Of images of one row or column, a tile takes few of the products that it is made for.
    return Tiles<F4x4>(p.n, out).count >= 16 && std::min(out[1], out[2]) > 1;
  }
  // Weights that the second-level cache does not hold delay the direct kernel.
  const int64_t weights = p.groups * p.ic * p.oc * 9;
  const int64_t direct = 6 * p.n * product(out) + (weights < (int64_t(1) << 20) ? 0 : 100);
  return std::min(time_of<F2x2>(p), time_of<F4x4>(p)) <= direct;
}

void run_winograd(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights) {
    return run_winograd_weights(p);
  }
  dispatch(TypeList<float, c10::BFloat16, c10::Half>{}, p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (time_of<F2x2>(p) <= time_of<F4x4>(p)) {
      Winograd<T, F2x2>(p).run();
    } else {
      Winograd<T, F4x4>(p).run();
    }
  });
}

} // namespace torch_dnnl
