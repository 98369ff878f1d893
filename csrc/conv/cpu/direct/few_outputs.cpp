// Convolution to few channels on the CPU: what makes an image of features, and the gradient of one.
//
// Vectors of output channels would be mostly empty. So each input pixel is multiplied by all taps
// of a row of the kernel at once, in columns that are pairs of tap and output channel, and the
// products are then added to the outputs where they belong, in a row that is in the cache.
#include <algorithm>

#include "conv/cpu/direct/operands.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/gather.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/packed/packed.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kTileWidth = 512; // output pixels whose sums stay in the cache

// Of a tile, which is part of a row of the output.
struct FewOutputsPlan {
  int64_t tap_rows;          // rows of taps of the kernel
  int64_t columns;           // pairs of a tap of a row and an output channel, in whole vectors
  int64_t tile_width, tiles; // of a row
  int64_t most_inputs;       // that a tile may need
};

FewOutputsPlan plan_few_outputs(const GatherImages& images, int64_t lanes) {
  const ConvProblem& p = images.p;
  FewOutputsPlan o;
  o.tap_rows = p.kernel[0] * p.kernel[1];
  o.columns = round_up(p.kernel[2] * images.out_channels, lanes);
  o.tile_width = std::min(kTileWidth, images.out_size[2]);
  o.tiles = ceil_div(images.out_size[2], kTileWidth);
  const int64_t covered = o.tile_width + (p.kernel[2] - 1) * p.dilation[2];
  o.most_inputs =
      std::min(images.in_size[2], images.backward_data ? covered / p.stride[2] + 2 : covered);
  return o;
}

int64_t packed_elements(const GatherImages& images, const FewOutputsPlan& plan) {
  return images.p.groups * plan.tap_rows * images.in_channels * plan.columns;
}

// [group][row of taps][input channel][tap, output channel]
template <class T, class C = compute_t<T>>
void pack_weights(const GatherImages& images, const FewOutputsPlan& plan, C* to) {
  const ConvProblem& p = images.p;
  const int64_t* ws = p.weights_stride;
  for (int64_t group = 0; group < p.groups; group++) {
    for (int64_t row = 0; row < plan.tap_rows; row++) {
      for (int64_t c = 0; c < images.in_channels; c++) {
        const T* from = static_cast<const T*>(p.weights) + group * p.weights_group +
            row / p.kernel[1] * ws[2] + row % p.kernel[1] * ws[3] + c * images.weights_in_stride;
        C* const end = to + plan.columns;
        for (int64_t tap = 0; tap < p.kernel[2]; tap++)
          for (int64_t o = 0; o < images.out_channels; o++)
            *to++ = static_cast<C>(from[tap * ws[4] + o * images.weights_out_stride]);
        std::fill(to, end, C(0));
        to = end;
      }
    }
  }
}

template <class T>
class FewOutputs : GatherImages {
  using C = compute_t<T>;

 public:
  FewOutputs(const GatherImages& images, const FewOutputsPlan& plan)
      : GatherImages(images), plan_(plan) {}

  void run() const {
    const int64_t rows = p.n * out_size[0] * out_size[1], most = plan_.most_inputs;
    const int64_t copied = copied_pixels(most, in_stride[1], in_stride[4]);
    const int64_t operations = plan_.tile_width * in_channels * plan_.tap_rows * plan_.columns;
    parallel_tasks(p.groups * rows * plan_.tiles, operations, [&](SharedTasks::OfThread mine) {
      const Workspace own{
          Scratch<C>(plan_.tile_width * out_channels + kLanes<C>), // which is read in vectors
          Scratch<C>(std::max(most * plan_.columns, plan_.tile_width)),
          Scratch<C>(std::is_same_v<T, C> ? 0 : copied * kChannels)};
      for (const int64_t task : mine) {
        Digits digits{task};
        Tile tile;
        tile.pixels = nth_range(digits.next(plan_.tiles), kTileWidth, out_size[2]);
        tile.h = digits.next(out_size[1]);
        tile.d = digits.next(out_size[0]);
        tile.group = digits.next(p.groups);
        tile.n = digits.rest;
        compute(tile, own);
        store(tile, own);
      }
    });
  }

 private:
  struct Tile {
    int64_t n, group, d, h;
    Range pixels; // of the row
  };
  struct Workspace {
    Scratch<C> sums;     // [output pixel][output channel]
    Scratch<C> products; // [input pixel][tap, output channel]
    Scratch<C> widened;
  };

  // The input pixels that some outputs of a row may need.
  Range inputs_of(Range out) const {
    const int64_t reach = (p.kernel[2] - 1) * p.dilation[2], pad = p.pad[2];
    int64_t first = out.begin - pad, end = out.end + reach - pad;
    if (backward_data) {
      first = ceil_div(std::max<int64_t>(out.begin + pad - reach, 0), p.stride[2]);
      end = (out.end - 1 + pad) / p.stride[2] + 1;
    }
    first = std::max<int64_t>(first, 0);
    return {first, std::max(std::min(end, in_size[2]), first)};
  }

  void compute(const Tile& tile, const Workspace& own) const {
    for (int64_t c = 0; c < out_channels; c++) {
      const C value = *bias_.at(tile.group, c);
      for (int64_t x = 0; x < tile.pixels.count(); x++)
        own.sums.data()[x * out_channels + c] = value;
    }
    const Range inputs = inputs_of(tile.pixels);
    const T* image = input<T>(tile.n, tile.group);
    for (int64_t row = 0; row < plan_.tap_rows; row++) {
      const Segment d = segment(0, row / p.kernel[1], tile.d, tile.d + 1);
      const Segment h = segment(1, row % p.kernel[1], tile.h, tile.h + 1);
      if (d.count <= 0 || h.count <= 0 || inputs.count() == 0)
        continue;
      const T* line =
          image + d.in * in_stride[2] + h.in * in_stride[3] + inputs.begin * in_stride[4];
      multiply(tile, row, line, inputs.count(), own);
      add(tile, inputs, own.products.data(), own.sums.data());
    }
  }

  void store(const Tile& tile, const Workspace& own) const {
    const C* sums = own.sums.data();
    const int64_t channel = tile.group * out_channels, pixels = tile.pixels.count();
    OutputRun run{tile.n, channel, tile.d, tile.h, tile.pixels.begin, out_channels, pixels};
    if (epilogue_.is_empty())
      return epilogue_.store_pixels(sums, kLanes<C>, out_channels, run);
    run.channels = 1;
    for (int64_t c = 0; c < out_channels; c++, run.channel++) {
      C* line = own.products.data(); // which are no longer needed
      for (int64_t x = 0; x < pixels; x++)
        line[x] = sums[x * out_channels + c];
      epilogue_.store_line(line, run);
    }
  }

  void
  multiply(const Tile& tile, int64_t tap_row, const T* line, int64_t pixels, const Workspace& own)
      const {
    const int64_t columns = plan_.columns;
    C* const products = own.products.data();
    const C* weights =
        weights_.data() + (tile.group * plan_.tap_rows + tap_row) * in_channels * columns;
    std::fill(products, products + pixels * columns, C(0));
    for (int64_t channel = 0; channel < in_channels; channel += kChannels) {
      const int64_t block = std::min(kChannels, in_channels - channel);
      const ImageRun<const T> run{
          line + channel * in_stride[1], block, pixels, in_stride[1], in_stride[4]};
      const Block<C> a = load_block(run, own.widened.data());
      for (int64_t column = 0; column < columns; column += kPanel<C>) {
        gemm<C>(
            pixels,
            std::min(kPanel<C>, columns - column) / kLanes<C>,
            block,
            {{a.data, {a.pixel_stride}, {a.channel_stride}},
             {weights + channel * columns + column, {columns}},
             {products + column, columns, kLanes<C>},
             {products + column, columns}});
      }
    }
  }

  // Each output gets what belongs to it in the order of input pixels, whatever the tiles are.
  void add(const Tile& tile, Range inputs, const C* products, C* sums) const {
    const int64_t first = tile.pixels.begin, width = tile.pixels.count();
    const int64_t step = backward_data ? p.dilation[2] : -p.dilation[2];
    for (int64_t x = inputs.begin; x < inputs.end; x++, products += plan_.columns) {
      int64_t out = (backward_data ? x * p.stride[2] - p.pad[2] : x + p.pad[2]) - first;
      const C* product = products;
      for (int64_t tap = 0; tap < p.kernel[2]; tap++, out += step, product += out_channels) {
        if (out < 0 || out >= width)
          continue;
        for (int64_t c = 0; c < out_channels; c++)
          sums[out * out_channels + c] += product[c];
      }
    }
  }

  const FewOutputsPlan& plan_;
  const Epilogue<T> epilogue_{p};
  const Bias<T> bias_{p, out_channels};
  const PackedWeights<C> weights_{p, packed_elements(*this, plan_), [&](C* to) {
                                    pack_weights<T>(*this, plan_, to);
                                  }};
};

int64_t packed_size(const ConvProblem& p) {
  const GatherImages images{p};
  int64_t size = 0;
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    size = packed_elements(images, plan_few_outputs(images, kLanes<C>)) * sizeof(C);
  });
  return size;
}

bool pack(const ConvProblem& p, void* to) {
  const GatherImages images{p};
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    pack_weights<T>(images, plan_few_outputs(images, kLanes<C>), static_cast<C*>(to));
  });
  return true;
}

// The images decide which axis of the kernel runs along rows.
int64_t layout(const ConvProblem& p) {
  return p.kernel[2];
}

} // namespace

const Packing<ConvProblem> few_outputs_packing{packed_size, pack, layout};

bool supports_few_outputs(const ConvProblem& p) {
  return p.pass == ConvPass::backward_data || (p.pass == ConvPass::forward && p.stride[2] == 1);
}

void run_few_outputs(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    const GatherImages images{p};
    FewOutputs<T>(images, plan_few_outputs(images, kLanes<compute_t<T>>)).run();
  });
}

} // namespace torch_dnnl
