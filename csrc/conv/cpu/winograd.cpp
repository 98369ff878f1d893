#include "conv/cpu/winograd.h"

#include <algorithm>
#include <cstring>

#include "conv/cpu/epilogue.h"
#include "conv/cpu/packed_weights.h"
#include "conv/cpu/roles.h"
#include "conv/cpu/tasks.h"
#include "conv/cpu/winograd_tiles.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

template <class T>
inline void store_lanes(Vec x, T* to, int64_t stride, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (stride == 1) {
      return n == kLanes<float> ? x.store(to) : x.store(to, n);
    }
  }
  float lanes[kLanes<float>];
  x.store(lanes);
  if (stride == 1) {
    return at::vec::convert(lanes, to, n);
  }
  for (int64_t i = 0; i < n; i++) {
    to[i * stride] = convert<T>(lanes[i]);
  }
}

// Forward and backward data are one computation, of a correlation of `in` with the kernels, which
// are turned around for backward data.
//
// In one of two ways, that with contiguous loads and stores: lanes are output channels, and each
// position multiplies tiles x input channels by input x output channels; or lanes are tiles, and
// it multiplies output x input channels by input channels x tiles.
template <class T>
class Winograd : Roles {
 public:
  explicit Winograd(const ConvProblem& p)
      : Roles(p),
        epilogue_(p),
        pad_{forward_ ? p.pad[1] : 2 - p.pad[1], forward_ ? p.pad[2] : 2 - p.pad[2]},
        tiles_(p.n, out_size_),
        lanes_are_channels_(out_stride_[1] == 1),
        width_(lanes_are_channels_ ? std::min(kPanel<float>, round_up(out_channels_)) : kRows),
        panels_(ceil_div(out_channels_, width_)),
        block_(lanes_are_channels_ ? (in_channels_ <= 128 ? 24 : 12) : 2 * kLanes<float>),
        padded_in_(round_up(in_channels_)),
        input_step_(block_ * padded_in_ + kApart),
        kernel_step_(in_channels_ * width_ + kApart) {}

  void run() {
    kernels_ = packed_weights<float>(
        p_,
        Packing::winograd,
        width_,
        p_.groups * panels_ * kPositions * kernel_step_,
        [&](const void* weights, float* to) { pack_kernels(static_cast<const T*>(weights), to); });
    const int64_t blocks = ceil_div(tiles_.count, block_);
    const int64_t operations = kPositions * block_ * in_channels_ * out_channels_;
    parallel_tasks(p_.groups * blocks, operations, [&](int64_t begin, int64_t end) {
      const Scratch<float> inputs(kPositions * input_step_);
      const Scratch<float> products(kPositions * block_ * width_);
      const Scratch<float> rows(epilogue_.is_empty() ? 0 : kTile * row_size());
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / blocks, first = task % blocks * block_;
        const int64_t count = std::min(block_, tiles_.count - first);
        pack_inputs(group, first, count, inputs.data());
        for (int64_t panel = 0; panel < panels_; panel++) {
          multiply(group, panel, count, inputs.data(), products.data());
          if (epilogue_.is_empty()) {
            store_outputs(group, panel, first, count, products.data());
          } else {
            complete_outputs(group, panel, first, count, products.data(), rows.data());
          }
        }
      }
    });
  }

 private:
  static constexpr int64_t kRows = 48;   // output channels at a time where lanes are tiles
  static constexpr int64_t kDepth = 256; // input channels whose kernels stay in the cache

  // The inputs of a tile, and which of them are in the image.
  struct Patch {
    int64_t offset;
    Range rows, columns;
    bool is_whole; // all are, and lie together with two more in each row

    bool contains(int64_t i, int64_t j) const {
      return i >= rows.begin && i < rows.end && j >= columns.begin && j < columns.end;
    }
  };

  // Those of its outputs that are in the image.
  struct Outputs {
    int64_t offset, rows, columns;
  };

  // Of kernels: [group][panel][position][input channel][width]
  int64_t offset(int64_t group, int64_t panel, int64_t position, int64_t channel) const {
    return ((group * panels_ + panel) * kPositions + position) * kernel_step_ + channel * width_;
  }

  void pack_kernels(const T* weights, float* to) const {
    const int64_t* ws = p_.weights_stride;
    parallel_tasks(
        p_.groups * panels_, in_channels_ * width_ * 100, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; task++) {
            const int64_t group = task / panels_, panel = task % panels_;
            const T* from =
                weights + group * p_.weights_group + panel * width_ * weights_out_stride_;
            const int64_t channels = std::min(width_, out_channels_ - panel * width_);
            for (int64_t c = 0; c < in_channels_; c++) {
              for (int64_t o = 0; o < width_; o += kLanes<float>) {
                const int64_t lanes = std::clamp<int64_t>(channels - o, 0, kLanes<float>);
                Vec g[3][3];
                for (int64_t i = 0; i < 3; i++) {
                  for (int64_t j = 0; j < 3; j++) {
                    const int64_t h = forward_ ? i : 2 - i, w = forward_ ? j : 2 - j;
                    const T* tap = from + c * weights_in_stride_ + o * weights_out_stride_ +
                        h * ws[3] + w * ws[4];
                    g[i][j] = load_lanes(tap, weights_out_stride_, lanes);
                  }
                }
                float* u = to + offset(group, panel, /*position=*/0, c) + o;
                store_positions<transform_kernel>(g, u, kernel_step_);
              }
            }
          }
        });
  }

  // [position][tile][input channel], or [position][input channel][tile]
  void pack_inputs(int64_t group, int64_t first, int64_t count, float* to) const {
    const T* in = input<T>(/*n=*/0, group);
    if (lanes_are_channels_) {
      for (int64_t t = 0; t < count; t++) {
        const Patch patch = patch_of(first + t);
        for (int64_t c = 0; c < in_channels_; c += kLanes<float>) {
          const int64_t lanes = std::min(kLanes<float>, in_channels_ - c);
          Vec d[kInput][kInput];
          for (int64_t i = 0; i < kInput; i++) {
            for (int64_t j = 0; j < kInput; j++) {
              const T* pixel =
                  in + patch.offset + c * in_stride_[1] + i * in_stride_[3] + j * in_stride_[4];
              d[i][j] = patch.contains(i, j) ? load_lanes(pixel, in_stride_[1], lanes) : Vec(0);
            }
          }
          store_positions<transform_input>(d, to + t * padded_in_ + c, input_step_);
        }
      }
      return;
    }
    for (int64_t t = 0; t < block_; t += kLanes<float>) {
      Patch patches[kLanes<float>] = {};
      for (int64_t lane = 0; lane < std::min(kLanes<float>, count - t); lane++) {
        patches[lane] = patch_of(first + t + lane);
      }
      for (int64_t c = 0; c < in_channels_; c++) {
        Vec d[kInput][kInput];
        for (int64_t i = 0; i < kInput; i++) {
          Quad<float> left[kLanes<float>], right[kLanes<float>]; // of each line
          for (int64_t lane = 0; lane < kLanes<float>; lane++) {
            load_line(in + c * in_stride_[1], patches[lane], i, left[lane], right[lane]);
          }
          for (int64_t lane = 0; lane < kLanes<float>; lane += 4) {
            transpose(left + lane);
            transpose(right + lane);
          }
          for (int64_t j = 0; j < 4; j++) {
            d[i][j] = join(left + j);
          }
          for (int64_t j = 4; j < kInput; j++) {
            d[i][j] = join(right + j - 4);
          }
        }
        store_positions<transform_input>(d, to + c * block_ + t, input_step_);
      }
    }
  }

  // Row i of a patch, with zeros around the image, and two more values.
  void load_line(const T* in, const Patch& patch, int64_t i, Quad<float>& left, Quad<float>& right)
      const {
    const T* row = in + patch.offset + i * in_stride_[3];
    float line[8] = {};
    if constexpr (std::is_same_v<T, float>) {
      if (patch.is_whole) {
        std::memcpy(&left, row, sizeof(left));
        std::memcpy(&right, row + 4, sizeof(right));
        return;
      }
    }
    if (patch.is_whole) {
      at::vec::convert(row, line, 8);
    } else if (i >= patch.rows.begin && i < patch.rows.end) {
      for (int64_t j = patch.columns.begin; j < patch.columns.end; j++) {
        line[j] = static_cast<float>(row[j * in_stride_[4]]);
      }
    }
    std::memcpy(&left, line, sizeof(left));
    std::memcpy(&right, line + 4, sizeof(right));
  }

  Patch patch_of(int64_t tile) const {
    const Tiles::Place at = tiles_.place(tile);
    const int64_t y = at.y - pad_[0], x = at.x - pad_[1];
    const auto inside = [](int64_t first, int64_t size) {
      return Range{
          std::clamp<int64_t>(-first, 0, kInput), std::clamp<int64_t>(size - first, 0, kInput)};
    };
    return {
        at.n * in_stride_[0] + at.d * in_stride_[2] + y * in_stride_[3] + x * in_stride_[4],
        inside(y, in_size_[1]),
        inside(x, in_size_[2]),
        in_stride_[4] == 1 && y >= 0 && y + kInput <= in_size_[1] && x >= 0 &&
            x + 8 <= in_size_[2]};
  }

  Outputs outputs_of(int64_t tile) const {
    const Tiles::Place at = tiles_.place(tile);
    return {
        at.n * out_stride_[0] + at.d * out_stride_[2] + at.y * out_stride_[3] +
            at.x * out_stride_[4],
        std::min(kTile, out_size_[1] - at.y),
        std::min(kTile, out_size_[2] - at.x)};
  }

  // [position][tile][width], or [position][output channel][tile]
  void multiply(int64_t group, int64_t panel, int64_t count, const float* in, float* to) const {
    const int64_t channels = std::min(width_, out_channels_ - panel * width_);
    const int64_t size = block_ * width_;
    std::fill(to, to + kPositions * size, 0.0f);
    for (int64_t k = 0; k < kPositions; k++) {
      const float* inputs = in + k * input_step_;
      for (int64_t c = 0; c < in_channels_; c += kDepth) {
        const int64_t depth = std::min(kDepth, in_channels_ - c);
        const float* u = kernels_.get() + offset(group, panel, k, c);
        if (lanes_are_channels_) {
          const int64_t vectors = ceil_div(channels, kLanes<float>);
          gemm<float>(
              count, vectors, depth, {inputs + c, padded_in_, 1, u, width_, to + k * size, width_});
        } else {
          const int64_t vectors = ceil_div(count, kLanes<float>);
          gemm<float>(
              channels,
              vectors,
              depth,
              {u, 1, width_, inputs + c * block_, block_, to + k * size, block_});
        }
      }
    }
  }

  void store_outputs(int64_t group, int64_t panel, int64_t first, int64_t count, const float* from)
      const {
    const int64_t size = block_ * width_, begin = panel * width_;
    const int64_t channels = std::min(width_, out_channels_ - begin);
    T* out = static_cast<T*>(p_.out) + (group * out_channels_ + begin) * out_stride_[1];
    if (lanes_are_channels_) {
      for (int64_t c = 0; c < channels; c += kLanes<float>) {
        const int64_t lanes = std::min(kLanes<float>, channels - c);
        const Vec bias = bias_vector(group, begin + c, lanes);
        for (int64_t t = 0; t < count; t++) {
          Vec y[kTile][kTile];
          load_positions<transform_output>(from + t * width_ + c, size, y);
          const Outputs at = outputs_of(first + t);
          T* to = out + at.offset + c * out_stride_[1];
          for (int64_t i = 0; i < at.rows; i++) {
            for (int64_t j = 0; j < at.columns; j++) {
              T* pixel = to + i * out_stride_[3] + j * out_stride_[4];
              store_lanes(y[i][j] + bias, pixel, out_stride_[1], lanes);
            }
          }
        }
      }
      return;
    }
    Outputs outputs[2 * kLanes<float>];
    for (int64_t t = 0; t < count; t++) {
      outputs[t] = outputs_of(first + t);
    }
    for (int64_t t = 0; t < count; t += kLanes<float>) {
      const int64_t lanes = std::min(kLanes<float>, count - t);
      for (int64_t c = 0; c < channels; c++) {
        for_each_row(
            from + c * block_ + t,
            bias_value(group, begin + c),
            [&](int64_t lane, int64_t i, Quad<float> row) {
              if (lane < lanes)
                store_line(row, outputs[t + lane], i, out + c * out_stride_[1]);
            });
      }
    }
  }

  // f(lane, i, row) with row i of the outputs of the tile in each lane.
  template <class F>
  void for_each_row(const float* from, float bias, const F& f) const {
    Vec y[kTile][kTile];
    load_positions<transform_output>(from, block_ * width_, y);
    alignas(64) float values[kTile][kTile][kLanes<float>];
    for (int64_t k = 0; k < kTile * kTile; k++) {
      (y[k / kTile][k % kTile] + Vec(bias)).store(values[k / kTile][k % kTile]);
    }
    for (int64_t i = 0; i < kTile; i++) {
      for (int64_t lane = 0; lane < kLanes<float>; lane += 4) {
        Quad<float> rows[4];
        for (int64_t j = 0; j < kTile; j++) {
          std::memcpy(&rows[j], &values[i][j][lane], sizeof(Quad<float>));
        }
        transpose(rows);
        for (int64_t k = 0; k < 4; k++) {
          f(lane + k, i, rows[k]);
        }
      }
    }
  }

  // Values of a row of outputs of a block of tiles, in scratch memory.
  int64_t row_size() const {
    return block_ * kTile * (lanes_are_channels_ ? kLanes<float> : 1);
  }

  // As store_outputs, by way of the epilogue, which takes rows of outputs.
  void complete_outputs(
      int64_t group,
      int64_t panel,
      int64_t first,
      int64_t count,
      const float* from,
      float* rows) const {
    const int64_t begin = panel * width_, channels = std::min(width_, out_channels_ - begin);
    const int64_t step = lanes_are_channels_ ? kLanes<float> : 1;
    for (int64_t c = 0; c < channels; c += step) {
      const int64_t lanes = std::min(step, channels - c);
      if (lanes_are_channels_) {
        const Vec bias = bias_vector(group, begin + c, lanes);
        for (int64_t t = 0; t < count; t++) {
          Vec y[kTile][kTile];
          load_positions<transform_output>(from + t * width_ + c, block_ * width_, y);
          for (int64_t k = 0; k < kTile * kTile; k++) {
            float* row = rows + k / kTile * row_size();
            (y[k / kTile][k % kTile] + bias).store(row + (t * kTile + k % kTile) * kLanes<float>);
          }
        }
      } else {
        for (int64_t t = 0; t < count; t += kLanes<float>) {
          for_each_row(
              from + c * block_ + t,
              bias_value(group, begin + c),
              [&](int64_t lane, int64_t i, Quad<float> row) {
                std::memcpy(rows + i * row_size() + (t + lane) * kTile, &row, sizeof(row));
              });
        }
      }
      int64_t neighbours;
      for (int64_t t = 0; t < count; t += neighbours) {
        const Tiles::Place at = tiles_.place(first + t);
        neighbours = std::min(count - t, tiles_.columns - at.x / kTile);
        OutputRun run{at.n, group * out_channels_ + begin + c, at.d, at.y, at.x, lanes, 0};
        run.pixels = std::min(neighbours * kTile, out_size_[2] - at.x);
        for (int64_t i = 0; i < std::min(kTile, out_size_[1] - at.y); i++, run.h++) {
          float* row = rows + i * row_size() + t * kTile * step;
          if (lanes_are_channels_) {
            epilogue_.store_pixels(row, /*vector_stride=*/0, kLanes<float>, run);
          } else {
            epilogue_.store_line(row, run);
          }
        }
      }
    }
  }

  // Row i of a tile's outputs.
  void store_line(Quad<float> row, const Outputs& at, int64_t i, T* out) const {
    if (i >= at.rows) {
      return;
    }
    T* to = out + at.offset + i * out_stride_[3];
    if constexpr (std::is_same_v<T, float>) {
      if (out_stride_[4] == 1 && at.columns == kTile) {
        std::memcpy(to, &row, sizeof(row));
        return;
      }
    }
    for (int64_t j = 0; j < at.columns; j++) {
      to[j * out_stride_[4]] = convert<T>(row[j]);
    }
  }

  const T* bias_of(int64_t group, int64_t channel) const {
    return static_cast<const T*>(p_.bias) + (group * p_.oc + channel) * p_.bias_stride;
  }
  float bias_value(int64_t group, int64_t channel) const {
    return p_.bias == nullptr ? 0.0f : static_cast<float>(*bias_of(group, channel));
  }
  Vec bias_vector(int64_t group, int64_t channel, int64_t lanes) const {
    return p_.bias == nullptr ? Vec(0) : load_lanes(bias_of(group, channel), p_.bias_stride, lanes);
  }

  const Epilogue<T> epilogue_;
  const int64_t pad_[2];
  const Tiles tiles_;
  const bool lanes_are_channels_;
  const int64_t width_, panels_, block_, padded_in_, input_step_, kernel_step_;
  std::shared_ptr<const float> kernels_;
};

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
  const int64_t* out = p.pass == ConvPass::backward_data ? p.src_size : p.dst_size;
  const int64_t tiles = Tiles(p.n, out).count, channels = std::min(p.ic, p.oc);
  if (p.pass == ConvPass::backward_weights) {
    // Of images of one row or column, a tile takes few of the products that it is made for.
    return channels >= 16 && tiles >= 16 && std::min(out[1], out[2]) > 1;
  }
  // Of one or two rows, say, a tile computes more outputs for nothing than it saves products.
  const bool are_filled = 2 * p.n * out[0] * out[1] * out[2] > tiles * kTile * kTile;
  // Transformed kernels that leave the caches take more tiles to pay.
  const int64_t bytes = p.groups * p.ic * p.oc * kPositions * int64_t(sizeof(float));
  return channels >= 32 && are_filled && tiles >= (bytes <= int64_t(16) << 20 ? 32 : 64);
}

void run_winograd(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_weights) {
    return run_winograd_weights(p);
  }
  dispatch(TypeList<float, c10::BFloat16, c10::Half>{}, p.dtype, [&](auto tag) {
    Winograd<typename decltype(tag)::type>(p).run();
  });
}

} // namespace torch_dnnl
