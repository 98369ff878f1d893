// Convolution with 3x3 kernels by Winograd's minimal filtering in float32, on the CPU: in F(4x4,
// 3x3) a tile of 4x4 outputs takes 36 products where the definition takes 144; in F(2x2, 3x3),
// which has small errors and quickly transformed kernels, one of 2x2 outputs takes 16 instead
// of 36.
//
// Tiles of inputs, 6x6 or 4x4, and the kernels are transformed, multiplied for each position as
// matrices of tiles and channels, and what comes out is transformed back; for backward weights, the
// inputs and tiles of 4x4 gradients. The transforms only add and multiply by small constants.
// Definition: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016.
//
// Here are forward and backward data: the steps of a block of tiles, and the two orders in which
// threads take them.
#include <algorithm>

#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/microkernel.h"
#include "conv/cpu/winograd/plan.h"
#include "conv/cpu/winograd/tiles.h"
#include "conv/cpu/winograd/weights.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/math.h"

namespace torch_dnnl {
namespace {

// The steps of a block of tiles. Forward and backward data are one computation, of a correlation of
// `in` with the weights, which are turned around for backward data.
template <class T, class F>
class TileBlocks : GatherImages {
 public:
  TileBlocks(const GatherImages& images, const Tiles<F>& tiles, const WinogradPlan& plan)
      : GatherImages(images), plan_(plan), tiles_(tiles) {}

  // Transforms the inputs of some channels: [position][tile][input channel].
  void transform_inputs(int64_t group, int64_t block, Range channels, float* to) const {
    const auto pad = [&](int axis) { return backward_data ? 2 - p.pad[axis] : p.pad[axis]; };
    const T* first = input<T>(/*n=*/0, group) + channels.begin * in_stride[1];
    const TiledImages<T> images{first, in_stride, in_size, pad(1), pad(2)};
    const int64_t tile = block * plan_.block;
    transform_tiles<F, F::transform_input, F::kInput, winograd_detail::most_tiles(kTile)>(
        images,
        tiles_,
        {tile, tile + plan_.tiles_of(block)},
        channels.count(),
        to + channels.begin,
        plan_.padded_in(),
        plan_.input_step());
  }

  // Adds products to sums, [position][tile][width].
  struct Product {
    int64_t panel, block, depth; // depth: input channels
  };
  void multiply(
      const Product& o,
      const float* inputs,
      const float* weights,
      int64_t weights_step,
      float* sums) const {
    const int64_t channels = plan_.channels_of(o.panel), width = plan_.width;
    for (int64_t k = 0; k < F::kPositions; k++) {
      const float *in = inputs + k * plan_.input_step(), *u = weights + k * weights_step;
      float* to = sums + k * plan_.block * width;
      for (int64_t c = 0; c < channels; c += kPanel<float>) {
        const int64_t vectors = ceil_div(std::min(kPanel<float>, channels - c), kLanes<float>);
        gemm<float>(
            plan_.tiles_of(o.block),
            vectors,
            o.depth,
            {{in, {plan_.padded_in()}, {1}},
             {u + c, {width}},
             {to + c, width, kLanes<float>},
             {to + c, width}});
      }
    }
  }

  // Floats that store_outputs() needs for a while: rows of the outputs of a block of tiles.
  int64_t rows_size() const {
    return kTile * row_size_;
  }

  // Transforms sums of products to rows of outputs, and stores the rows.
  void
  store_outputs(int64_t group, int64_t panel, int64_t block, const float* sums, float* rows) const {
    const int64_t channels = plan_.channels_of(panel), first = panel * plan_.width;
    for (int64_t at_once, c = 0; c < channels; c += at_once) {
      at_once = std::min(out_step_, channels - c);
      transform_sums(group, block, first + c, at_once, sums + c, rows);
      store_rows(group, block, first + c, at_once, rows);
    }
  }

 private:
  static constexpr int64_t kTile = F::kTile;

  // To [row of a tile][pixel][channel].
  void transform_sums(
      int64_t group,
      int64_t block,
      int64_t channel,
      int64_t channels,
      const float* sums,
      float* rows) const {
    for (int64_t v = 0; v < channels; v += kLanes<float>) {
      const Lanes<float> bias = load_lanes<float>(bias_.at(group, channel + v));
      const Lanes<float> low(bounds_.low), high(bounds_.high);
      for (int64_t t = 0; t < plan_.tiles_of(block); t++) {
        Lanes<float> y[kTile][kTile];
        load_positions<F, F::transform_output>(
            sums + t * plan_.width + v, plan_.block * plan_.width, y);
        for (int64_t k = 0; k < kTile * kTile; k++) {
          float* row = rows + k / kTile * row_size_;
          auto sum = y[k / kTile][k % kTile] + bias;
          if (bounds_.are_set)
            sum = at::vec::clamp_max(at::vec::clamp_min(sum, low), high);
          sum.store(row + (t * kTile + k % kTile) * out_step_ + v);
        }
      }
    }
  }

  void
  store_rows(int64_t group, int64_t block, int64_t channel, int64_t channels, const float* rows)
      const {
    const int64_t first = block * plan_.block, count = plan_.tiles_of(block);
    int64_t neighbours;
    for (int64_t t = 0; t < count; t += neighbours) {
      const auto at = tiles_.place(first + t);
      neighbours = std::min(count - t, tiles_.columns - at.x / kTile);
      OutputRun run{at.n, group * out_channels + channel, at.d, at.y, at.x, channels, 0};
      run.pixels = std::min(neighbours * kTile, out_size[2] - at.x);
      for (int64_t i = 0; i < std::min(kTile, out_size[1] - at.y); i++, run.h++) {
        const float* const from = rows + i * row_size_ + t * kTile * out_step_;
        if (epilogue_.is_clamp())
          epilogue_.store_final_pixels(from, kLanes<float>, out_step_, run);
        else
          epilogue_.store_pixels(from, kLanes<float>, out_step_, run);
      }
    }
  }

  const WinogradPlan& plan_;
  const Tiles<F>& tiles_;
  const Epilogue<T> epilogue_{p};
  const Bounds<float> bounds_ = epilogue_.is_clamp() ? epilogue_.bounds() : Bounds<float>{};
  const Bias<T> bias_{p, out_channels};
  // Channels that are completed at once: of a pixel, or of a line.
  const int64_t out_step_ = out_stride[1] == 1 ? plan_.width : kLanes<float>;
  const int64_t row_size_ = plan_.block * kTile * out_step_;
};

// Runs a plan.
template <class T, class F>
class Winograd {
 public:
  explicit Winograd(const ConvProblem& p) : p_(p) {}

  void run() const {
    plan_.by_panels ? run_by_panels() : run_by_blocks();
  }

 private:
  const float* packed(int64_t group, int64_t panel) const {
    return static_cast<const float*>(p_.packed) + group * plan_.weights_of_group() +
        panel * plan_.weights_of_panel();
  }

  // Transforms the weights of many groups, and then the inputs of a block of tiles at a time.
  void run_by_blocks() const {
    if (p_.packed != nullptr)
      return multiply_by_blocks({0, p_.groups}, packed(0, 0));
    const Scratch<float> transformed(plan_.groups_at_once * plan_.weights_of_group());
    for (int64_t group = 0; group < p_.groups; group += plan_.groups_at_once) {
      const Range groups{group, std::min(group + plan_.groups_at_once, p_.groups)};
      weights_.transform(groups, transformed.data());
      multiply_by_blocks(groups, transformed.data());
    }
  }

  void multiply_by_blocks(Range groups, const float* weights) const {
    const int64_t channels = plan_.in_channels, step = plan_.weights_step(channels);
    const int64_t operations = plan_.positions * plan_.block * channels * plan_.out_channels;
    const int64_t tasks = groups.count() * plan_.blocks;
    parallel_tasks(tasks, operations, [&](SharedTasks::OfThread mine) {
      const Scratch<float> inputs(plan_.inputs_of_block());
      const Scratch<float> sums(plan_.sums_of_block());
      const Scratch<float> rows(blocks_.rows_size());
      for (const int64_t task : mine) {
        const int64_t index = task / plan_.blocks, block = task % plan_.blocks;
        const int64_t group = groups.begin + index;
        blocks_.transform_inputs(group, block, {0, channels}, inputs.data());
        for (int64_t panel = 0; panel < plan_.panels; panel++) {
          const float* of_panel =
              weights + (index * plan_.panels + panel) * plan_.weights_of_panel();
          std::fill_n(sums.data(), plan_.sums_of_block(), 0.0f);
          for (int64_t c = 0; c < channels; c += plan_.depth) {
            blocks_.multiply(
                {panel, block, std::min(plan_.depth, channels - c)},
                inputs.data() + c,
                of_panel + c * plan_.width,
                step,
                sums.data());
          }
          blocks_.store_outputs(group, panel, block, sums.data(), rows.data());
        }
      }
    });
  }

  // Transforms the inputs of many groups and blocks, and then the weights of a few input channels
  // of a panel at a time.
  void run_by_panels() const {
    const int64_t most = plan_.groups_at_once * plan_.blocks_at_once;
    const Scratch<float> inputs(most * plan_.inputs_of_block());
    for (int64_t block = 0; block < plan_.blocks; block += plan_.blocks_at_once) {
      const Range blocks{block, std::min(block + plan_.blocks_at_once, plan_.blocks)};
      for (int64_t group = 0; group < p_.groups; group += plan_.groups_at_once) {
        const Range groups{group, std::min(group + plan_.groups_at_once, p_.groups)};
        transform_blocks(groups, blocks, inputs.data());
        multiply_by_panels(groups, blocks, inputs.data());
      }
    }
  }

  // To [group][block].
  void transform_blocks(Range groups, Range blocks, float* to) const {
    constexpr int64_t depth = 32, cost = 20; // input channels of a task; operations of an element
    const int64_t parts = ceil_div(plan_.in_channels, depth), count = blocks.count();
    const int64_t tasks = groups.count() * count * parts;
    parallel_tasks(tasks, depth * plan_.block * cost, [&](SharedTasks::OfThread mine) {
      for (const int64_t task : mine) {
        const int64_t c = task % parts * depth, index = task / parts;
        blocks_.transform_inputs(
            groups.begin + index / count,
            blocks.begin + index % count,
            {c, std::min(c + depth, plan_.in_channels)},
            to + index * plan_.inputs_of_block());
      }
    });
  }

  void multiply_by_panels(Range groups, Range blocks, const float* inputs) const {
    const int64_t channels = plan_.in_channels, size = blocks.count();
    const int64_t panels = groups.count() * plan_.panels;
    const bool is_packed = p_.packed != nullptr;
    const int64_t step = plan_.weights_step(is_packed ? channels : plan_.depth);
    // Threads that would else wait share a panel, and transform its weights each.
    const int64_t threads = at::get_num_threads();
    const int64_t parts = panels % threads == 0 ? 1 : std::min(size, ceil_div(2 * threads, panels));
    const int64_t operations =
        plan_.positions * plan_.block * channels * plan_.width * size / parts;
    parallel_tasks(panels * parts, operations, [&](SharedTasks::OfThread mine) {
      const Scratch<float> own(is_packed ? 0 : plan_.positions * step);
      const Scratch<float> sums(ceil_div(size, parts) * plan_.sums_of_block());
      const Scratch<float> rows(blocks_.rows_size());
      for (const int64_t task : mine) {
        const int64_t index = task / parts, part = task % parts;
        const int64_t group = groups.begin + index / plan_.panels, panel = index % plan_.panels;
        const int64_t first = size * part / parts, count = size * (part + 1) / parts - first;
        const float* of_part =
            inputs + (index / plan_.panels * size + first) * plan_.inputs_of_block();
        std::fill_n(sums.data(), count * plan_.sums_of_block(), 0.0f);
        for (int64_t c = 0; c < channels; c += plan_.depth) {
          const int64_t depth = std::min(plan_.depth, channels - c);
          const float* weights = is_packed ? packed(group, panel) + c * plan_.width : own.data();
          if (!is_packed)
            weights_.transform_panel(group, panel, {c, c + depth}, own.data(), step);
          for (int64_t i = 0; i < count; i++) {
            blocks_.multiply(
                {panel, blocks.begin + first + i, depth},
                of_part + i * plan_.inputs_of_block() + c,
                weights,
                step,
                sums.data() + i * plan_.sums_of_block());
          }
        }
        for (int64_t i = 0; i < count; i++) {
          const float* of_block = sums.data() + i * plan_.sums_of_block();
          blocks_.store_outputs(group, panel, blocks.begin + first + i, of_block, rows.data());
        }
      }
    });
  }

  const ConvProblem& p_;
  const GatherImages images_{p_};
  const Tiles<F> tiles_{p_.n, images_.out_size};
  const WinogradPlan plan_ = plan_winograd(images_, tiles_);
  const TileBlocks<T, F> blocks_{images_, tiles_, plan_};
  const TransformedWeights<T, F> weights_{images_, plan_};
};

using WinogradTypes = TypeList<float, c10::BFloat16, c10::Half>;

// F: the size of a tile, see tiles.h.
template <class F>
void run_winograd(const ConvProblem& p) {
  dispatch(
      WinogradTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) { Winograd<T, F>(p).run(); });
}

template <class F>
int64_t packed_size(const ConvProblem& p) {
  return p.groups * winograd_panels<F>(GatherImages{p}).weights_of_group() * sizeof(float);
}

template <class F>
bool pack(const ConvProblem& p, void* to) {
  const GatherImages images{p};
  const WinogradPanels panels = winograd_panels<F>(images);
  dispatch(WinogradTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    TransformedWeights<T, F>(images, panels).transform({0, p.groups}, static_cast<float*>(to));
  });
  return true;
}

} // namespace

const Packing<ConvProblem> winograd_2x2_packing{packed_size<F2x2>, pack<F2x2>};
const Packing<ConvProblem> winograd_4x4_packing{packed_size<F4x4>, pack<F4x4>};

bool supports_winograd_2x2(const ConvProblem& p) {
  return p.pass != ConvPass::backward_weights && supports_winograd_4x4(p);
}

void run_winograd_2x2(const ConvProblem& p) {
  run_winograd<F2x2>(p);
}

bool supports_winograd_4x4(const ConvProblem& p) {
  return p.dtype != c10::ScalarType::Double && p.kernel[0] == 1 && p.kernel[1] == 3 &&
      p.kernel[2] == 3 && product(p.stride) == 1 && product(p.dilation) == 1 && p.pad[0] == 0 &&
      p.src_size[0] == p.dst_size[0];
}

void run_winograd_4x4(const ConvProblem& p) {
  p.pass == ConvPass::backward_weights ? winograd_weights_gradient(p) : run_winograd<F4x4>(p);
}

} // namespace torch_dnnl
