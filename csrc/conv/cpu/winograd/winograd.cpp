#include "conv/cpu/winograd/winograd.h"

#include <algorithm>

#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/packed_weights.h"
#include "conv/cpu/shared/pixels.h"
#include "conv/cpu/shared/roles.h"
#include "conv/cpu/winograd/inputs.h"
#include "conv/cpu/winograd/kernels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/math.h"

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
    // Inputs or kernels are transformed first, in memory that all threads read: what takes less by
    // far, and never more than some MB. Threads share the panels or the blocks.
    const bool is_much = 2 * tiles_.count <= out_channels_ || kernel_bytes() > kMostKernels;
    if (is_much && panels_ > 1) {
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
  // Bytes of what is transformed first, and of a thread's products with it.
  static constexpr int64_t kMostKernels = kMostPacked, kMostInputs = int64_t(8) << 20;
  static constexpr int64_t kMostProducts = int64_t(2) << 20;

  struct Range {
    int64_t begin, size;
  };

  // Tiles of a block: few enough to make blocks for some threads.
  static int64_t block_of(int64_t tiles, int64_t channels) {
    const int64_t most = channels <= 128 ? kMostTiles : kMostTiles / 2;
    return std::min(tiles, std::clamp(ceil_div(tiles, kBlocks), kMostTiles / 4, most));
  }

  int64_t kernel_step(int64_t depth) const {
    return depth * width_ + kApart;
  }
  // All of one group.
  int64_t kernel_size() const {
    return panels_ * kPositions * kernel_step(in_channels_);
  }
  int64_t kernel_bytes() const {
    return kernel_size() * int64_t(sizeof(float));
  }
  int64_t product_size() const {
    return kPositions * block_ * width_;
  }
  int64_t tiles_of(int64_t block) const {
    return std::min(block_, tiles_.count - block * block_);
  }

  // How many of n fit into so many bytes; one at least.
  static int64_t fitting(int64_t n, int64_t bytes, int64_t floats) {
    return std::clamp<int64_t>(bytes / (floats * int64_t(sizeof(float))), 1, n);
  }

  // [group][panel][position][input channel][width]
  void transform_kernels(const T* weights, Range groups, float* to) const {
    constexpr int64_t depth = 32;
    const int64_t step = kernel_step(in_channels_), parts = ceil_div(in_channels_, depth);
    parallel_tasks(
        groups.size * panels_ * parts, depth * width_ * 100, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; task++) {
            const int64_t c = task % parts * depth, panel = task / parts;
            kernels_.transform(
                weights,
                groups.begin + panel / panels_,
                panel % panels_,
                c,
                std::min(depth, in_channels_ - c),
                to + panel * kPositions * step + c * width_,
                step);
          }
        });
  }

  // Those of all groups; or null, unless they are kept or `should_pack`.
  std::shared_ptr<const float> packed_kernels(bool should_pack) const {
    return packed_weights<float>(
        p_,
        kTile == 2 ? Packing::winograd_2x2 : Packing::winograd_4x4,
        width_,
        p_.groups * kernel_size(),
        [&](const void* weights, float* to) {
          transform_kernels(static_cast<const T*>(weights), {0, p_.groups}, to);
        },
        should_pack);
  }

  // Transforms the kernels of many groups, and then the inputs of a block of tiles at a time.
  void run_by_tiles() const {
    if (p_.groups * kernel_bytes() <= kMostKernels) {
      return multiply_by_tiles({0, p_.groups}, packed_kernels(/*should_pack=*/true).get());
    }
    const int64_t at_once = fitting(p_.groups, kMostKernels, kernel_size());
    const Scratch<float> kernels(at_once * kernel_size());
    for (int64_t group = 0; group < p_.groups; group += at_once) {
      const Range groups{group, std::min(at_once, p_.groups - group)};
      transform_kernels(static_cast<const T*>(p_.weights), groups, kernels.data());
      multiply_by_tiles(groups, kernels.data());
    }
  }

  void multiply_by_tiles(Range groups, const float* kernels) const {
    const int64_t step = kernel_step(in_channels_);
    const int64_t operations = kPositions * block_ * in_channels_ * out_channels_;
    parallel_tasks(groups.size * blocks_, operations, [&](int64_t begin, int64_t end) {
      const Scratch<float> inputs(kPositions * input_step_);
      const Scratch<float> products(product_size());
      const Scratch<float> rows(kTile * row_size());
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / blocks_, block = task % blocks_;
        pack_inputs(groups.begin + group, block, 0, in_channels_, inputs.data());
        for (int64_t panel = 0; panel < panels_; panel++) {
          const float* of_panel = kernels + (group * panels_ + panel) * kPositions * step;
          std::fill_n(products.data(), product_size(), 0.0f);
          for (int64_t c = 0; c < in_channels_; c += kDepth) {
            multiply(
                {panel, block, std::min(kDepth, in_channels_ - c)},
                inputs.data() + c,
                of_panel + c * width_,
                step,
                products.data());
          }
          store_outputs(groups.begin + group, panel, block, products.data(), rows.data());
        }
      }
    });
  }

  // Transforms the inputs of many groups and tiles, and then, unless they are kept, the kernels of
  // a few input channels of a panel at a time.
  void run_by_panels() const {
    const bool may_be_kept = p_.groups * kernel_bytes() <= kMostKept;
    const auto kept = may_be_kept ? packed_kernels(/*should_pack=*/false) : nullptr;
    const int64_t size = kPositions * input_step_; // of a block
    const int64_t blocks_at_once = std::min(
        fitting(blocks_, kMostInputs, size), fitting(blocks_, kMostProducts, product_size()));
    const int64_t groups_at_once = fitting(p_.groups, kMostInputs, blocks_at_once * size);
    const Scratch<float> inputs(groups_at_once * blocks_at_once * size);
    for (int64_t block = 0; block < blocks_; block += blocks_at_once) {
      const Range blocks{block, std::min(blocks_at_once, blocks_ - block)};
      for (int64_t group = 0; group < p_.groups; group += groups_at_once) {
        const Range groups{group, std::min(groups_at_once, p_.groups - group)};
        pack_blocks(groups, blocks, inputs.data());
        multiply_by_panels(groups, blocks, inputs.data(), kept.get());
      }
    }
  }

  // [group][block]
  void pack_blocks(Range groups, Range blocks, float* to) const {
    constexpr int64_t depth = 32;
    const int64_t parts = ceil_div(in_channels_, depth);
    parallel_tasks(
        groups.size * blocks.size * parts, depth * block_ * 20, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; task++) {
            const int64_t c = task % parts * depth, index = task / parts;
            pack_inputs(
                groups.begin + index / blocks.size,
                blocks.begin + index % blocks.size,
                c,
                std::min(depth, in_channels_ - c),
                to + index * kPositions * input_step_);
          }
        });
  }

  void
  multiply_by_panels(Range groups, Range blocks, const float* inputs, const float* kept) const {
    const int64_t step = kernel_step(kept == nullptr ? kDepthOfPanels : in_channels_);
    const int64_t panels = groups.size * panels_;
    // Threads that would else wait share a panel, and transform its kernels each.
    const int64_t threads = at::get_num_threads();
    const int64_t parts =
        panels % threads == 0 ? 1 : std::min(blocks.size, ceil_div(2 * threads, panels));
    const int64_t operations = kPositions * block_ * in_channels_ * width_ * blocks.size / parts;
    parallel_tasks(panels * parts, operations, [&](int64_t begin, int64_t end) {
      const Scratch<float> local(kept == nullptr ? kPositions * step : 0);
      const Scratch<float> products(ceil_div(blocks.size, parts) * product_size());
      const Scratch<float> rows(kTile * row_size());
      for (int64_t task = begin; task < end; task++) {
        const int64_t index = task / parts, part = task % parts;
        const int64_t group = groups.begin + index / panels_, panel = index % panels_;
        const int64_t first = blocks.size * part / parts;
        const int64_t count = blocks.size * (part + 1) / parts - first;
        const float* of_group = inputs + index / panels_ * blocks.size * kPositions * input_step_;
        std::fill_n(products.data(), count * product_size(), 0.0f);
        for (int64_t c = 0; c < in_channels_; c += kDepthOfPanels) {
          const int64_t depth = std::min(kDepthOfPanels, in_channels_ - c);
          const float* kernels = local.data();
          if (kept == nullptr) {
            kernels_.transform(
                static_cast<const T*>(p_.weights), group, panel, c, depth, local.data(), step);
          } else {
            kernels = kept + (group * panels_ + panel) * kPositions * step + c * width_;
          }
          for (int64_t i = 0; i < count; i++) {
            multiply(
                {panel, blocks.begin + first + i, depth},
                of_group + (first + i) * kPositions * input_step_ + c,
                kernels,
                step,
                products.data() + i * product_size());
          }
        }
        for (int64_t i = 0; i < count; i++) {
          const float* of_block = products.data() + i * product_size();
          store_outputs(group, panel, blocks.begin + first + i, of_block, rows.data());
        }
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

// F: the size of a tile, see tiles.h.
template <class F>
void run_winograd(const ConvProblem& p) {
  dispatch(TypeList<float, c10::BFloat16, c10::Half>{}, p.dtype, [&](auto tag) {
    Winograd<typename decltype(tag)::type, F>(p).run();
  });
}

} // namespace

bool supports_winograd_2x2(const ConvProblem& p) {
  return p.pass != ConvPass::backward_weights && supports_winograd_4x4(p);
}

void run_winograd_2x2(const ConvProblem& p) {
  run_winograd<F2x2>(p);
}

bool supports_winograd_4x4(const ConvProblem& p) {
  const auto is_one = [](const int64_t (&list)[3]) {
    return list[0] == 1 && list[1] == 1 && list[2] == 1;
  };
  return p.dtype != c10::ScalarType::Double && p.kernel[0] == 1 && p.kernel[1] == 3 &&
      p.kernel[2] == 3 && is_one(p.stride) && is_one(p.dilation) && p.pad[0] == 0 &&
      p.src_size[0] == p.dst_size[0];
}

void run_winograd_4x4(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights) {
    run_winograd_weights(p);
  } else {
    run_winograd<F4x4>(p);
  }
}

} // namespace torch_dnnl
