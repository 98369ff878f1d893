// Weights in the order in which the products of direct convolution read them: panels of output
// channels, and in them blocks of input channels.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "conv/cpu/matrices.h"
#include "conv/cpu/packed_weights.h"
#include "conv/cpu/roles.h"

namespace torch_dnnl {

// Input channels of a product.
inline constexpr int64_t kDirectDepth = 128;

template <class T>
class DirectWeights : Roles {
  using C = compute_t<T>;

 public:
  explicit DirectWeights(const ConvProblem& p)
      : Roles(p),
        panels_(out_channels_),
        taps_(product(p.kernel)),
        count_(p.groups * panels_.count) {}

  // Of all groups; unless that takes more than so many bytes, and they are not kept.
  bool pack_all(int64_t most) {
    weights_ = packed_weights<C>(
        p_,
        Packing::direct,
        panels_.width,
        count_ * panel_size(),
        [&](const void* weights, C* to) { pack(static_cast<const T*>(weights), 0, count_, to); },
        /*should_pack=*/count_ * panel_bytes() <= most);
    return weights_ != nullptr;
  }

  // So many panels, the groups' in one series. The first call takes the most.
  void pack_some(int64_t first, int64_t count) {
    if (some_ == nullptr)
      some_ = std::make_shared<Scratch<C>>(count * panel_size());
    first_ = first;
    weights_ = std::shared_ptr<const C>(some_, some_->data());
    pack(static_cast<const T*>(p_.weights), first, count, some_->data());
  }

  int64_t panel_bytes() const {
    return panel_size() * int64_t(sizeof(C));
  }

  // Of a tap and the rest of a block of input channels: [channel][output channel of the panel]. The
  // next tap of the block follows.
  const C* at(int64_t group, int64_t panel, int64_t channel, int64_t tap) const {
    return weights_.get() + offset(group, panel, channel, tap);
  }

 private:
  int64_t panel_size() const {
    return panels_.width * in_channels_ * taps_;
  }

  // [group][panel][block of input channels][tap][channel][width]
  int64_t offset(int64_t group, int64_t panel, int64_t channel, int64_t tap) const {
    const int64_t block = std::min(kDirectDepth, in_channels_ - channel);
    return (group * panels_.count + panel - first_) * panel_size() +
        (channel * taps_ + tap * block) * panels_.width;
  }

  void pack(const T* weights, int64_t first, int64_t count, C* packed) const {
    constexpr int64_t terms_at_once = 128; // of an output channel
    const int64_t blocks = ceil_div(in_channels_, kDirectDepth);
    const int64_t* ws = p_.weights_stride;
    const Axis across{{1, 1, 1, out_channels_}, {0, 0, 0, weights_out_stride_}};
    const Axis terms{
        {in_channels_, p_.kernel[0], p_.kernel[1], p_.kernel[2]},
        {weights_in_stride_, ws[2], ws[3], ws[4]}};
    const int64_t at_once = std::max<int64_t>(terms_at_once / taps_ / 4 * 4, 4); // channels
    const int64_t operations = taps_ * std::min(in_channels_, kDirectDepth) * panels_.width * 32;
    parallel_tasks(count * blocks, operations, [&](int64_t begin, int64_t end) {
      const Scratch<int64_t> rows(kPanel<C>), columns(at_once * taps_);
      const Scratch<C> part(at_once * taps_ * kPanel<C>);
      for (int64_t task = begin; task < end; task++) {
        const int64_t channel = task % blocks * kDirectDepth;
        const int64_t index = first + task / blocks;
        const int64_t panel = index % panels_.count, group = index / panels_.count;
        const int64_t block = std::min(kDirectDepth, in_channels_ - channel);
        across.offsets(panel * panels_.width, panels_.size(panel), rows.data());
        const T* from = weights + group * p_.weights_group;
        if (weights_in_stride_ == 1 && panels_.width == kPanel<C>) {
          pack_taps(
              from + channel,
              rows.data(),
              panels_.size(panel),
              block,
              packed + offset(group, panel, channel, 0));
          continue;
        }
        for (int64_t c = 0; c < block; c += at_once) {
          const int64_t count = std::min(at_once, block - c);
          terms.offsets((channel + c) * taps_, count * taps_, columns.data());
          pack_panels<kPanel<C>>(
              from,
              rows.data(),
              panels_.size(panel),
              columns.data(),
              count * taps_,
              part.data(),
              0);
          // From the order that they lie in to that of products.
          for (int64_t tap = 0; tap < taps_; tap++) {
            C* to = packed + offset(group, panel, channel, tap) + c * panels_.width;
            for (int64_t i = 0; i < count; i++, to += panels_.width)
              std::copy_n(part.data() + (i * taps_ + tap) * kPanel<C>, panels_.width, to);
          }
        }
      }
    });
  }

  // The same of channels that lie next to each other.
  void pack_taps(const T* from, const int64_t* rows, int64_t n, int64_t block, C* to) const {
    const int64_t* ws = p_.weights_stride;
    const Axis taps{{1, p_.kernel[0], p_.kernel[1], p_.kernel[2]}, {0, ws[2], ws[3], ws[4]}};
    std::vector<int64_t> offsets(taps_), channels(block);
    taps.offsets(0, taps_, offsets.data());
    std::iota(channels.begin(), channels.end(), 0);
    for (const int64_t tap : offsets) {
      pack_panels<kPanel<C>>(from + tap, rows, n, channels.data(), block, to, 0);
      to += block * kPanel<C>;
    }
  }

  const Panels<C> panels_;
  const int64_t taps_, count_; // count: of the panels of all groups
  int64_t first_ = 0;          // of those that are packed
  std::shared_ptr<const C> weights_;
  std::shared_ptr<Scratch<C>> some_;
};

} // namespace torch_dnnl
