// Weights in the order in which products read them, kept between calls that have the same weights.
//
// They are found by what they are: a copy of the weights lies beside their packed form, and a call
// takes it only if all bytes of its own weights equal the copy. So it does not matter where weights
// lie, whose they are, and through what they were written: a view, `.data`, NumPy, an optimizer, a
// storage that was freed and filled again. Nobody has to say that they changed. Comparing reads
// twice the bytes of the weights and pays where packing takes longer by as much as can be noticed,
// which is for few products with each weight.
//
// Weights are kept when they come for the second time: those that change with every step of a
// training never are. What was used lately is not given up for what comes, which else would leave
// nothing to find where the weights of a network exceed the limit.
#pragma once

#include <functional>
#include <memory>

#include "conv/problem.h"

namespace torch_dnnl {

// Bytes of weights that are packed at once for a call.
inline constexpr int64_t kMostPacked = int64_t(10) << 20;

enum class Packing { direct, winograd_2x2, winograd_4x4 };

// `should_pack`: whether to pack weights that are not kept for this call alone; null otherwise.
std::shared_ptr<const void> packed_bytes(
    const ConvProblem& p,
    Packing packing,
    int64_t width,
    int64_t bytes,
    bool should_pack,
    const std::function<void(const void* weights, void* to)>& pack);

// The `size` values that pack(weights, to) makes of the weights of a problem. They must depend on
// nothing but the weights, their type, sizes and strides, the pass and `width`.
template <class C, class Pack>
std::shared_ptr<const C> packed_weights(
    const ConvProblem& p,
    Packing packing,
    int64_t width,
    int64_t size,
    const Pack& pack,
    bool should_pack = true) {
  return std::static_pointer_cast<const C>(packed_bytes(
      p,
      packing,
      width,
      size * int64_t(sizeof(C)),
      should_pack,
      [&](const void* weights, void* to) { pack(weights, static_cast<C*>(to)); }));
}

} // namespace torch_dnnl
