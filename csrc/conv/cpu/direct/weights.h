// Weights in the order in which the products of direct convolution read them: panels of output
// channels, and in them blocks of input channels.
#pragma once

#include <algorithm>
#include <numeric>

#include "conv/cpu/shared/panels.h"
#include "conv/cpu/shared/roles.h"

namespace torch_dnnl {

// Input channels of a product.
inline constexpr int64_t kDirectDepth = 128;

// Sums are made in steps: the products of a block of input channels with a tap. The taps of a block
// follow one another. Panels of all groups are one series.
template <class C>
struct DirectSteps {
  explicit DirectSteps(const Roles& roles)
      : panels(roles.out_channels_),
        groups(roles.p_.groups),
        channels(roles.in_channels_),
        taps(product(roles.p_.kernel)),
        count(ceil_div(channels, kDirectDepth) * taps) {}
  Panels<C> panels;
  int64_t groups, channels, taps, count; // channels: of the input

  // Where the block of a step begins, and its channels.
  int64_t channel(int64_t step) const {
    return std::min(step / taps * kDirectDepth, channels);
  }
  int64_t block(int64_t step) const {
    return std::min(kDirectDepth, channels - channel(step));
  }
  // Bytes of the weights of a panel in one step, at most, and of all weights.
  int64_t bytes() const {
    return block(0) * panels.width * int64_t(sizeof(C));
  }
  int64_t all_bytes() const {
    return groups * panels.count * panels.width * channels * taps * int64_t(sizeof(C));
  }
  // Where a step begins in a panel of all steps; that of the step past the last is the panel's
  // size.
  int64_t begin_of(int64_t step) const {
    return (channel(step) * taps + step % taps * block(step)) * panels.width;
  }
};

// Some steps of some panels: [panel][step][channel][width].
struct DirectPart {
  Range panels, steps;
  int64_t begin, panel_size; // begin: of the first step, in a panel of all steps

  int64_t size() const {
    return panels.count() * panel_size;
  }
};

template <class C>
DirectPart direct_part(const DirectSteps<C>& all, Range panels, Range steps) {
  const int64_t begin = all.begin_of(steps.begin);
  return {panels, steps, begin, all.begin_of(steps.end) - begin};
}

// Packs some taps of a block of input channels of a panel.
template <class T, class C = compute_t<T>>
class DirectPacking {
 public:
  DirectPacking(const Roles& roles, int64_t most_taps)
      : taps_(product(roles.p_.kernel)),
        // What is packed of several channels is contiguous only if it is all of their taps.
        channels_at_once_(
            most_taps < taps_ ? 1 : std::max<int64_t>(kTermsAtOnce / taps_ / 4 * 4, 4)),
        is_innermost_(roles.weights_in_stride_ == 1),
        across_{{1, 1, 1, roles.out_channels_}, {0, 0, 0, roles.weights_out_stride_}},
        terms_(terms_of(roles)),
        rows_(kPanel<C>),
        columns_(std::max(channels_at_once_ * most_taps, kDirectDepth)),
        part_(channels_at_once_ * most_taps * kPanel<C>) {}

  // from: weights of the group.
  void
  pack(const T* from, const Panels<C>& panels, int64_t panel, Range channels, Range taps, C* to)
      const {
    const int64_t n = panels.size(panel), *rows = rows_.data();
    across_.offsets(panel * panels.width, n, rows_.data());
    if (is_innermost_ && panels.width == kPanel<C>)
      return pack_taps(from + channels.begin, rows, n, channels.count(), taps, to);
    const int64_t tap_count = taps.count(), block = channels.count();
    for (int64_t c = 0; c < block; c += channels_at_once_) {
      const int64_t count = std::min(channels_at_once_, block - c), terms = count * tap_count;
      terms_.offsets((channels.begin + c) * taps_ + taps.begin, terms, columns_.data());
      pack_panels<kPanel<C>>(from, rows, n, columns_.data(), terms, part_.data(), 0);
      // From the order that they lie in to that of products.
      for (int64_t tap = 0; tap < tap_count; tap++) {
        C* line = to + (tap * block + c) * panels.width;
        for (int64_t i = 0; i < count; i++, line += panels.width)
          std::copy_n(part_.data() + (i * tap_count + tap) * kPanel<C>, panels.width, line);
      }
    }
  }

 private:
  static constexpr int64_t kTermsAtOnce = 128; // of an output channel

  static Axis terms_of(const Roles& roles) {
    const int64_t *k = roles.p_.kernel, *ws = roles.p_.weights_stride;
    return {
        {roles.in_channels_, k[0], k[1], k[2]}, {roles.weights_in_stride_, ws[2], ws[3], ws[4]}};
  }

  // The same where input channels lie next to each other.
  void
  pack_taps(const T* from, const int64_t* rows, int64_t n, int64_t block, Range taps, C* to) const {
    std::iota(columns_.data(), columns_.data() + block, 0);
    for (int64_t tap = taps.begin; tap < taps.end; tap++, to += block * kPanel<C>) {
      int64_t offset;
      terms_.offsets(tap, 1, &offset);
      pack_panels<kPanel<C>>(from + offset, rows, n, columns_.data(), block, to, 0);
    }
  }

  const int64_t taps_, channels_at_once_;
  const bool is_innermost_;
  const Axis across_, terms_; // terms: input channels, then taps
  const Scratch<int64_t> rows_, columns_;
  const Scratch<C> part_;
};

template <class T>
class DirectWeights {
  using C = compute_t<T>;

 public:
  explicit DirectWeights(const Roles& roles)
      : roles_(roles), steps_(roles), part_(all()), memory_(0) {}

  // Of all groups.
  void pack_all() {
    part_ = all();
    memory_ = Scratch<C>(part_.size());
    pack();
  }

  // Of these panels, and of as many steps as fit into so many bytes, but at least one: steps of
  // whole blocks of input channels, or else of one block. The first call has the most panels.
  Range pack_some(Range panels, int64_t first_step, int64_t most) {
    const int64_t bytes = panels.count() * steps_.bytes();
    const int64_t fitting = std::max<int64_t>(most / bytes, 1), taps = steps_.taps;
    const int64_t end = fitting < taps
        ? std::min(first_step + fitting, round_up(first_step + 1, taps))
        : std::min(first_step + fitting / taps * taps, steps_.count);
    if (memory_.data() == nullptr)
      memory_ = Scratch<C>(std::max(most, bytes) / sizeof(C));
    part_ = direct_part(steps_, panels, {first_step, end});
    pack();
    return part_.steps;
  }

  const DirectSteps<C>& steps() const {
    return steps_;
  }

  // Of a step: [channel][output channel of the panel]. The next step follows.
  const C* at(int64_t group, int64_t panel, int64_t step) const {
    return at(group * steps_.panels.count + panel, step);
  }

 private:
  DirectPart all() const {
    return direct_part(steps_, {0, steps_.groups * steps_.panels.count}, {0, steps_.count});
  }

  C* at(int64_t panel, int64_t step) const {
    return memory_.data() + (panel - part_.panels.begin) * part_.panel_size +
        steps_.begin_of(step) - part_.begin;
  }

  // Tasks are blocks of input channels of a panel.
  void pack() const {
    const Range panels = part_.panels, steps = part_.steps;
    const int64_t taps = steps_.taps, most_taps = std::min(taps, steps.count());
    const int64_t first_block = steps.begin / taps;
    const int64_t blocks = ceil_div(steps.end, taps) - first_block;
    const int64_t operations = most_taps * steps_.block(0) * steps_.panels.width * 32;
    const int64_t tasks = panels.count() * blocks;
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const DirectPacking<T> packing(roles_, most_taps);
      for (int64_t task = begin; task < end; task++) {
        const int64_t index = panels.begin + task / blocks;
        const int64_t panel = index % steps_.panels.count, group = index / steps_.panels.count;
        const int64_t first = (first_block + task % blocks) * taps; // step of the block
        const Range of_block{
            std::max<int64_t>(steps.begin - first, 0), std::min(steps.end - first, taps)};
        const int64_t channel = steps_.channel(first);
        packing.pack(
            static_cast<const T*>(roles_.p_.weights) + group * roles_.p_.weights_group,
            steps_.panels,
            panel,
            {channel, channel + steps_.block(first)},
            of_block,
            at(index, first + of_block.begin));
      }
    });
  }

  const Roles roles_;
  const DirectSteps<C> steps_;
  DirectPart part_; // that is packed
  Scratch<C> memory_;
};

} // namespace torch_dnnl
