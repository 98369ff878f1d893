// Weights in the order in which products read them.
#pragma once

#include <memory>

#include "conv/problem.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// Bytes of weights that are packed at once for a call.
inline constexpr int64_t kMostPacked = int64_t(10) << 20;

enum class Packing { direct, winograd_2x2, winograd_4x4 };

// The `size` values that pack(weights, to) makes of the weights of a problem; null, unless they
// should be packed.
template <class C, class Pack>
std::shared_ptr<const C> packed_weights(
    const ConvProblem& p,
    Packing /*packing*/,
    int64_t /*width*/,
    int64_t size,
    const Pack& pack,
    bool should_pack = true) {
  if (!should_pack)
    return nullptr;
  const auto packed = std::make_shared<const Scratch<C>>(size);
  pack(p.weights, packed->data());
  return {packed, packed->data()};
}

} // namespace torch_dnnl
