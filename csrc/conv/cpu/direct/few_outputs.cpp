#include "conv/cpu/direct/few_outputs.h"

#include <algorithm>

#include "conv/cpu/shared/blocks.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/roles.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kTileWidth = 512; // output pixels whose sums stay in the cache

template <class T>
class Narrow : Roles {
  using C = compute_t<T>;

 public:
  explicit Narrow(const ConvProblem& p)
      : Roles(p),
        epilogue_(p),
        tap_rows_(p.kernel[0] * p.kernel[1]),
        columns_(ceil_div(p.kernel[2] * out_channels_, kLanes<C>) * kLanes<C>),
        tiles_(ceil_div(out_size_[2], kTileWidth)),
        weights_(p.groups * tap_rows_ * in_channels_ * columns_) {}

  void run() {
    pack_weights();
    const int64_t tasks = p_.n * p_.groups * out_size_[0] * out_size_[1] * tiles_;
    const int64_t width = std::min(kTileWidth, out_size_[2]);
    const int64_t operations = width * in_channels_ * tap_rows_ * columns_;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const int64_t most = most_inputs(width);
      const Scratch<C> sums(width * out_channels_ + kLanes<C>); // which is read in vectors
      const Scratch<C> products(std::max(most * columns_, width));
      const Scratch<C> widened(std::is_same_v<T, C> ? 0 : most * kChannels);
      for (int64_t task = begin; task < end; task++) {
        const int64_t row = task / tiles_, image = row / (out_size_[0] * out_size_[1]);
        Tile tile;
        tile.x = task % tiles_ * kTileWidth;
        tile.width = std::min(kTileWidth, out_size_[2] - tile.x);
        tile.h = row % out_size_[1];
        tile.d = row / out_size_[1] % out_size_[0];
        tile.group = image % p_.groups;
        tile.n = image / p_.groups;
        compute(tile, sums.data(), products.data(), widened.data());
      }
    });
  }

 private:
  struct Tile {
    int64_t n, group, d, h, x, width;
  };
  struct Inputs {
    int64_t first, count;
  };

  // [group][row of taps][input channel][tap, output channel]
  C* weights(int64_t group, int64_t tap_row, int64_t channel) const {
    return weights_.data() + ((group * tap_rows_ + tap_row) * in_channels_ + channel) * columns_;
  }

  void pack_weights() {
    const int64_t* ws = p_.weights_stride;
    for (int64_t group = 0; group < p_.groups; group++) {
      for (int64_t row = 0; row < tap_rows_; row++) {
        for (int64_t c = 0; c < in_channels_; c++) {
          const T* from = static_cast<const T*>(p_.weights) + group * p_.weights_group +
              row / p_.kernel[1] * ws[2] + row % p_.kernel[1] * ws[3] + c * weights_in_stride_;
          C* to = weights(group, row, c);
          std::fill(to, to + columns_, C(0));
          for (int64_t tap = 0; tap < p_.kernel[2]; tap++) {
            for (int64_t o = 0; o < out_channels_; o++)
              *to++ = static_cast<C>(from[tap * ws[4] + o * weights_out_stride_]);
          }
        }
      }
    }
  }

  Segment segment(int axis, int64_t tap, int64_t at) const {
    return forward_ ? segment_of_dst(p_, axis, tap, at, at + 1)
                    : segment_of_src(p_, axis, tap, at, at + 1);
  }
  int64_t in(const Segment& s) const {
    return forward_ ? s.src : s.dst;
  }

  int64_t most_inputs(int64_t width) const {
    const int64_t covered = width + (p_.kernel[2] - 1) * p_.dilation[2];
    return std::min(in_size_[2], forward_ ? covered : covered / p_.stride[2] + 2);
  }

  // The input pixels that outputs [x, x + width) of a row may need.
  Inputs inputs_of(int64_t x, int64_t width) const {
    const int64_t reach = (p_.kernel[2] - 1) * p_.dilation[2], pad = p_.pad[2];
    int64_t first = x - pad, end = x + width + reach - pad;
    if (!forward_) {
      first = ceil_div(std::max<int64_t>(x + pad - reach, 0), p_.stride[2]);
      end = (x + width - 1 + pad) / p_.stride[2] + 1;
    }
    first = std::max<int64_t>(first, 0);
    return {first, std::max<int64_t>(std::min(end, in_size_[2]) - first, 0)};
  }

  void compute(const Tile& tile, C* sums, C* products, C* widened) const {
    for (int64_t c = 0; c < out_channels_; c++) {
      const T* bias = static_cast<const T*>(p_.bias);
      const C value =
          bias == nullptr ? C(0) : static_cast<C>(bias[(tile.group * p_.oc + c) * p_.bias_stride]);
      for (int64_t x = 0; x < tile.width; x++)
        sums[x * out_channels_ + c] = value;
    }
    const Inputs inputs = inputs_of(tile.x, tile.width);
    const T* image = input<T>(tile.n, tile.group);
    for (int64_t row = 0; row < tap_rows_; row++) {
      const Segment d = segment(0, row / p_.kernel[1], tile.d);
      const Segment h = segment(1, row % p_.kernel[1], tile.h);
      if (d.count <= 0 || h.count <= 0 || inputs.count == 0)
        continue;
      const T* line =
          image + in(d) * in_stride_[2] + in(h) * in_stride_[3] + inputs.first * in_stride_[4];
      multiply(tile, row, line, inputs.count, products, widened);
      add(tile, inputs, products, sums);
    }
    if (!epilogue_.is_empty()) {
      for (int64_t c = 0; c < out_channels_; c++) {
        C* line = products; // which are no longer needed
        for (int64_t x = 0; x < tile.width; x++)
          line[x] = sums[x * out_channels_ + c];
        const int64_t channel = tile.group * out_channels_ + c;
        epilogue_.store_line(line, {tile.n, channel, tile.d, tile.h, tile.x, 1, tile.width});
      }
      return;
    }
    T* to = static_cast<T*>(p_.out) + tile.n * out_stride_[0] +
        tile.group * out_channels_ * out_stride_[1] + tile.d * out_stride_[2] +
        tile.h * out_stride_[3] + tile.x * out_stride_[4];
    store_rows(sums, out_channels_, tile.width, out_channels_, to, out_stride_[4], out_stride_[1]);
  }

  // [input pixel][tap, output channel]
  void multiply(
      const Tile& tile,
      int64_t tap_row,
      const T* line,
      int64_t pixels,
      C* products,
      C* widened) const {
    std::fill(products, products + pixels * columns_, C(0));
    for (int64_t channel = 0; channel < in_channels_; channel += kChannels) {
      const int64_t block = std::min(kChannels, in_channels_ - channel);
      const Block<C> a = load_block(
          line + channel * in_stride_[1], pixels, in_stride_[4], block, in_stride_[1], widened);
      for (int64_t column = 0; column < columns_; column += kPanel<C>) {
        gemm<C>(
            pixels,
            std::min(kPanel<C>, columns_ - column) / kLanes<C>,
            block,
            {a.data,
             a.pixel_stride,
             a.channel_stride,
             weights(tile.group, tap_row, channel) + column,
             columns_,
             products + column,
             columns_});
      }
    }
  }

  // Each output gets what belongs to it in the order of input pixels, whatever the tiles are.
  void add(const Tile& tile, const Inputs& inputs, const C* products, C* sums) const {
    const int64_t step = forward_ ? -p_.dilation[2] : p_.dilation[2];
    for (int64_t i = 0; i < inputs.count; i++) {
      const int64_t x = inputs.first + i;
      int64_t out = (forward_ ? x + p_.pad[2] : x * p_.stride[2] - p_.pad[2]) - tile.x;
      const C* product = products + i * columns_;
      for (int64_t tap = 0; tap < p_.kernel[2]; tap++, out += step, product += out_channels_) {
        if (out < 0 || out >= tile.width)
          continue;
        for (int64_t c = 0; c < out_channels_; c++)
          sums[out * out_channels_ + c] += product[c];
      }
    }
  }

  const Epilogue<T> epilogue_;
  const int64_t tap_rows_, columns_, tiles_;
  const Scratch<C> weights_;
};

} // namespace

bool supports_few_outputs(const ConvProblem& p) {
  return p.pass == ConvPass::backward_data || (p.pass == ConvPass::forward && p.stride[2] == 1);
}

void run_few_outputs(const ConvProblem& p) {
  dispatch(
      FloatingTypes{}, p.dtype, [&](auto tag) { Narrow<typename decltype(tag)::type>(p).run(); });
}

} // namespace torch_dnnl
