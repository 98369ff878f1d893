#include "conv/cpu/direct/few_outputs.h"

#include <algorithm>

#include "conv/cpu/direct/gather.h"
#include "conv/cpu/shared/bias.h"
#include "conv/cpu/shared/epilogue.h"
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

FewOutputsPlan plan_few_outputs(const Roles& r, int64_t lanes) {
  const ConvProblem& p = r.p_;
  FewOutputsPlan o;
  o.tap_rows = p.kernel[0] * p.kernel[1];
  o.columns = round_up(p.kernel[2] * r.out_channels_, lanes);
  o.tile_width = std::min(kTileWidth, r.out_size_[2]);
  o.tiles = ceil_div(r.out_size_[2], kTileWidth);
  const int64_t covered = o.tile_width + (p.kernel[2] - 1) * p.dilation[2];
  o.most_inputs = std::min(r.in_size_[2], r.forward_ ? covered : covered / p.stride[2] + 2);
  return o;
}

// [group][row of taps][input channel][tap, output channel]
template <class T, class C = compute_t<T>>
Scratch<C> pack_weights(const Roles& r, const FewOutputsPlan& plan) {
  const ConvProblem& p = r.p_;
  const int64_t* ws = p.weights_stride;
  Scratch<C> weights(p.groups * plan.tap_rows * r.in_channels_ * plan.columns);
  C* to = weights.data();
  for (int64_t group = 0; group < p.groups; group++) {
    for (int64_t row = 0; row < plan.tap_rows; row++) {
      for (int64_t c = 0; c < r.in_channels_; c++) {
        const T* from = static_cast<const T*>(p.weights) + group * p.weights_group +
            row / p.kernel[1] * ws[2] + row % p.kernel[1] * ws[3] + c * r.weights_in_stride_;
        C* const end = to + plan.columns;
        for (int64_t tap = 0; tap < p.kernel[2]; tap++) {
          for (int64_t o = 0; o < r.out_channels_; o++)
            *to++ = static_cast<C>(from[tap * ws[4] + o * r.weights_out_stride_]);
        }
        std::fill(to, end, C(0));
        to = end;
      }
    }
  }
  return weights;
}

template <class T>
class FewOutputs : DirectGather {
  using C = compute_t<T>;

 public:
  FewOutputs(const ConvProblem& p, const FewOutputsPlan& plan)
      : DirectGather(p),
        plan_(plan),
        epilogue_(p),
        bias_(p, p.oc),
        weights_(pack_weights<T>(*this, plan)) {}

  void run() const {
    const int64_t tasks = p_.groups * rows() * plan_.tiles, most = plan_.most_inputs;
    const int64_t operations = plan_.tile_width * in_channels_ * plan_.tap_rows * plan_.columns;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const Workspace own{
          Scratch<C>(plan_.tile_width * out_channels_ + kLanes<C>), // which is read in vectors
          Scratch<C>(std::max(most * plan_.columns, plan_.tile_width)),
          Scratch<C>(std::is_same_v<T, C> ? 0 : most * kChannels)};
      for (int64_t task = begin; task < end; task++) {
        Digits digits{task};
        Tile tile;
        tile.x = digits.next(plan_.tiles) * kTileWidth;
        tile.width = std::min(kTileWidth, out_size_[2] - tile.x);
        tile.h = digits.next(out_size_[1]);
        tile.d = digits.next(out_size_[0]);
        tile.group = digits.next(p_.groups);
        tile.n = digits.rest;
        compute(tile, own);
        store(tile, own);
      }
    });
  }

 private:
  struct Tile {
    int64_t n, group, d, h, x, width;
  };
  struct Workspace {
    Scratch<C> sums;     // [output pixel][output channel]
    Scratch<C> products; // [input pixel][tap, output channel]
    Scratch<C> widened;
  };

  // The input pixels that outputs [x, x + width) of a row may need.
  Range inputs_of(int64_t x, int64_t width) const {
    const int64_t reach = (p_.kernel[2] - 1) * p_.dilation[2], pad = p_.pad[2];
    int64_t first = x - pad, end = x + width + reach - pad;
    if (!forward_) {
      first = ceil_div(std::max<int64_t>(x + pad - reach, 0), p_.stride[2]);
      end = (x + width - 1 + pad) / p_.stride[2] + 1;
    }
    first = std::max<int64_t>(first, 0);
    return {first, std::max(std::min(end, in_size_[2]), first)};
  }

  void compute(const Tile& tile, const Workspace& own) const {
    for (int64_t c = 0; c < out_channels_; c++) {
      const C value = *bias_.at(tile.group, c);
      for (int64_t x = 0; x < tile.width; x++)
        own.sums.data()[x * out_channels_ + c] = value;
    }
    const Range inputs = inputs_of(tile.x, tile.width);
    const T* image = input<T>(tile.n, tile.group);
    for (int64_t row = 0; row < plan_.tap_rows; row++) {
      const Segment d = segment(0, row / p_.kernel[1], tile.d, tile.d + 1);
      const Segment h = segment(1, row % p_.kernel[1], tile.h, tile.h + 1);
      if (d.count <= 0 || h.count <= 0 || inputs.count() == 0)
        continue;
      const T* line =
          image + in(d) * in_stride_[2] + in(h) * in_stride_[3] + inputs.begin * in_stride_[4];
      multiply(tile, row, line, inputs.count(), own);
      add(tile, inputs, own.products.data(), own.sums.data());
    }
  }

  void store(const Tile& tile, const Workspace& own) const {
    const C* sums = own.sums.data();
    const int64_t channel = tile.group * out_channels_;
    OutputRun run{tile.n, channel, tile.d, tile.h, tile.x, out_channels_, tile.width};
    if (epilogue_.is_empty())
      return DirectGather::store(epilogue_, sums, out_channels_, run);
    run.channels = 1;
    for (int64_t c = 0; c < out_channels_; c++, run.channel++) {
      C* line = own.products.data(); // which are no longer needed
      for (int64_t x = 0; x < tile.width; x++)
        line[x] = sums[x * out_channels_ + c];
      epilogue_.store_line(line, run);
    }
  }

  void
  multiply(const Tile& tile, int64_t tap_row, const T* line, int64_t pixels, const Workspace& own)
      const {
    const int64_t columns = plan_.columns;
    C* const products = own.products.data();
    const C* weights =
        weights_.data() + (tile.group * plan_.tap_rows + tap_row) * in_channels_ * columns;
    std::fill(products, products + pixels * columns, C(0));
    for (int64_t channel = 0; channel < in_channels_; channel += kChannels) {
      const int64_t block = std::min(kChannels, in_channels_ - channel);
      const Block<C> a = load_block(
          line + channel * in_stride_[1],
          pixels,
          in_stride_[4],
          block,
          in_stride_[1],
          own.widened.data());
      for (int64_t column = 0; column < columns; column += kPanel<C>) {
        gemm<C>(
            pixels,
            std::min(kPanel<C>, columns - column) / kLanes<C>,
            block,
            {a.data,
             a.pixel_stride,
             a.channel_stride,
             weights + channel * columns + column,
             columns,
             products + column,
             columns});
      }
    }
  }

  // Each output gets what belongs to it in the order of input pixels, whatever the tiles are.
  void add(const Tile& tile, Range inputs, const C* products, C* sums) const {
    const int64_t step = forward_ ? -p_.dilation[2] : p_.dilation[2];
    for (int64_t x = inputs.begin; x < inputs.end; x++, products += plan_.columns) {
      int64_t out = (forward_ ? x + p_.pad[2] : x * p_.stride[2] - p_.pad[2]) - tile.x;
      const C* product = products;
      for (int64_t tap = 0; tap < p_.kernel[2]; tap++, out += step, product += out_channels_) {
        if (out < 0 || out >= tile.width)
          continue;
        for (int64_t c = 0; c < out_channels_; c++)
          sums[out * out_channels_ + c] += product[c];
      }
    }
  }

  const FewOutputsPlan& plan_;
  const Epilogue<T> epilogue_;
  const Bias<T> bias_;
  const Scratch<C> weights_;
};

} // namespace

bool supports_few_outputs(const ConvProblem& p) {
  return p.pass == ConvPass::backward_data || (p.pass == ConvPass::forward && p.stride[2] == 1);
}

void run_few_outputs(const ConvProblem& p) {
  dispatch(FloatingTypes{}, p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const FewOutputsPlan plan = plan_few_outputs(Roles(p), kLanes<compute_t<T>>);
    FewOutputs<T>(p, plan).run();
  });
}

} // namespace torch_dnnl
