// Weights in the order in which the products of direct convolution read them: panels of output
// channels, and in them blocks of input channels.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "conv/cpu/shared/packed_weights.h"
#include "conv/cpu/shared/panels.h"
#include "conv/cpu/shared/roles.h"

namespace torch_dnnl {

// Input channels of a product.
inline constexpr int64_t kDirectDepth = 128;

// Sums are made in steps: the products of a block of input channels with a tap. The taps of a block
// follow one another.
template <class T>
class DirectWeights : Roles {
  using C = compute_t<T>;

 public:
  explicit DirectWeights(const ConvProblem& p)
      : Roles(p),
        panels_(out_channels_),
        taps_(product(p.kernel)),
        steps_(ceil_div(in_channels_, kDirectDepth) * taps_),
        part_(all()) {}

  // Of all groups; unless that takes more than so many bytes, and they are not kept.
  bool pack_all(int64_t most = std::numeric_limits<int64_t>::max()) {
    part_ = all();
    const int64_t size = part_.panels.end * part_.size;
    weights_ = packed_weights<C>(
        p_,
        Packing::direct,
        panels_.width,
        size,
        [&](const void* weights, C* to) { pack(static_cast<const T*>(weights), to); },
        /*should_pack=*/size * int64_t(sizeof(C)) <= most);
    return weights_ != nullptr;
  }

  // Of these panels, the groups' in one series, and of as many steps as fit into so many bytes, but
  // at least one: those of whole blocks of input channels, or else of one. The first call has the
  // most panels.
  Range pack_some(Range panels, int64_t first_step, int64_t most) {
    const int64_t count = panels.end - panels.begin;
    const int64_t fitting = std::max<int64_t>(most / (count * step_bytes()), 1);
    const int64_t end = fitting < taps_
        ? std::min(first_step + fitting, round_up(first_step + 1, taps_))
        : std::min(first_step + fitting / taps_ * taps_, steps_);
    if (some_ == nullptr)
      some_ = std::make_shared<Scratch<char>>(std::max(most, count * step_bytes()));
    part_ = part_of(panels, {first_step, end});
    C* to = reinterpret_cast<C*>(some_->data());
    weights_ = std::shared_ptr<const C>(some_, to);
    pack(static_cast<const T*>(p_.weights), to);
    return part_.steps;
  }

  int64_t steps() const {
    return steps_;
  }

  // The most that a panel has.
  int64_t step_bytes() const {
    return std::min(kDirectDepth, in_channels_) * panels_.width * int64_t(sizeof(C));
  }

  // Of a step: [channel][output channel of the panel]. The next step follows.
  const C* at(int64_t group, int64_t panel, int64_t step) const {
    return weights_.get() + offset(group * panels_.count + panel, step);
  }

 private:
  // What is packed; of a panel, so much from where it would begin in a panel of all steps.
  struct Part {
    Range panels, steps;
    int64_t begin, size;
  };

  Part part_of(Range panels, Range steps) const {
    const int64_t begin = begin_of(steps.begin);
    return {panels, steps, begin, begin_of(steps.end) - begin};
  }
  Part all() const {
    return part_of({0, p_.groups * panels_.count}, {0, steps_});
  }

  // [panel][step][channel][width]
  int64_t offset(int64_t panel, int64_t step) const {
    return (panel - part_.panels.begin) * part_.size + begin_of(step) - part_.begin;
  }

  // In a panel of all steps; of the one past the last, the size.
  int64_t begin_of(int64_t step) const {
    const int64_t channel = std::min(step / taps_ * kDirectDepth, in_channels_);
    const int64_t block = std::min(kDirectDepth, in_channels_ - channel);
    return (channel * taps_ + step % taps_ * block) * panels_.width;
  }

  void pack(const T* weights, C* packed) const {
    constexpr int64_t terms_at_once = 128; // of an output channel
    const Range panels = part_.panels, steps = part_.steps;
    const int64_t first_block = steps.begin / taps_;
    const int64_t blocks = ceil_div(steps.end, taps_) - first_block;
    const int64_t most_taps = std::min(taps_, steps.end - steps.begin);
    // Only those that have all their taps lie next to each other.
    const int64_t channels_at_once =
        most_taps < taps_ ? 1 : std::max<int64_t>(terms_at_once / taps_ / 4 * 4, 4);
    const int64_t* ws = p_.weights_stride;
    const Axis across{{1, 1, 1, out_channels_}, {0, 0, 0, weights_out_stride_}};
    const Axis terms{
        {in_channels_, p_.kernel[0], p_.kernel[1], p_.kernel[2]},
        {weights_in_stride_, ws[2], ws[3], ws[4]}};
    const int64_t tasks = (panels.end - panels.begin) * blocks;
    const int64_t operations =
        most_taps * std::min(in_channels_, kDirectDepth) * panels_.width * 32;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const Scratch<int64_t> rows(kPanel<C>), columns(channels_at_once * most_taps);
      const Scratch<C> part(channels_at_once * most_taps * kPanel<C>);
      for (int64_t task = begin; task < end; task++) {
        const int64_t index = panels.begin + task / blocks;
        const int64_t panel = index % panels_.count, group = index / panels_.count;
        const int64_t first = (first_block + task % blocks) * taps_; // step of the block
        const int64_t channel = first / taps_ * kDirectDepth;
        const int64_t block = std::min(kDirectDepth, in_channels_ - channel);
        const Range taps{
            std::max<int64_t>(steps.begin - first, 0), std::min(steps.end - first, taps_)};
        across.offsets(panel * panels_.width, panels_.size(panel), rows.data());
        const T* from = weights + group * p_.weights_group;
        C* to = packed + offset(index, first + taps.begin);
        if (weights_in_stride_ == 1 && panels_.width == kPanel<C>) {
          pack_taps(from + channel, rows.data(), panels_.size(panel), taps, block, to);
          continue;
        }
        const int64_t tap_count = taps.end - taps.begin;
        for (int64_t c = 0; c < block; c += channels_at_once) {
          const int64_t count = std::min(channels_at_once, block - c);
          const int64_t term = (channel + c) * taps_ + taps.begin;
          terms.offsets(term, count * tap_count, columns.data());
          pack_panels<kPanel<C>>(
              from,
              rows.data(),
              panels_.size(panel),
              columns.data(),
              count * tap_count,
              part.data(),
              0);
          // From the order that they lie in to that of products.
          for (int64_t tap = 0; tap < tap_count; tap++) {
            C* line = to + (tap * block + c) * panels_.width;
            for (int64_t i = 0; i < count; i++, line += panels_.width)
              std::copy_n(part.data() + (i * tap_count + tap) * kPanel<C>, panels_.width, line);
          }
        }
      }
    });
  }

  // The same of channels that lie next to each other.
  void
  pack_taps(const T* from, const int64_t* rows, int64_t n, Range taps, int64_t block, C* to) const {
    const int64_t* ws = p_.weights_stride;
    const Axis axis{{1, p_.kernel[0], p_.kernel[1], p_.kernel[2]}, {0, ws[2], ws[3], ws[4]}};
    std::vector<int64_t> offsets(taps.end - taps.begin), channels(block);
    axis.offsets(taps.begin, taps.end - taps.begin, offsets.data());
    std::iota(channels.begin(), channels.end(), 0);
    for (const int64_t tap : offsets) {
      pack_panels<kPanel<C>>(from + tap, rows, n, channels.data(), block, to, 0);
      to += block * kPanel<C>;
    }
  }

  const Panels<C> panels_;
  const int64_t taps_, steps_;
  Part part_;
  std::shared_ptr<const C> weights_;
  std::shared_ptr<Scratch<char>> some_;
};

} // namespace torch_dnnl
