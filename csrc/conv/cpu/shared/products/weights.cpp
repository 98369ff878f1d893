#include "conv/cpu/shared/products/weights.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "conv/cpu/shared/products/lines/channel_lines.h"
#include "core/cpu/parallel.h"
#include "core/cpu/transpose.h"

namespace torch_dnnl {
namespace {

// The weights of output channels in the order of the terms of their sums, [kd][kh][kw][channel]:
// channel i of tap t goes to term tap_terms[t] + i.
template <class T>
class ChannelTerms {
 public:
  ChannelTerms(const ConvProblem& p, std::vector<int64_t> tap_terms)
      : p_(p), tap_terms_(std::move(tap_terms)) {
    for (int64_t t = 0; t < taps(); t++) {
      Digits digits{t};
      const int64_t kw = digits.next(p.kernel[2]), kh = digits.next(p.kernel[1]);
      offsets_.push_back(digits.rest * ws_[2] + kh * ws_[3] + kw * ws_[4]);
    }
    // Taps that lie next to each other, in any order, are rows of a matrix.
    first_ = *std::min_element(offsets_.begin(), offsets_.end());
    std::vector<int64_t> at(taps(), -1);
    for (int64_t t = 0; t < taps(); t++)
      if (offsets_[t] - first_ < taps())
        at[offsets_[t] - first_] = tap_terms_[t] * int64_t(sizeof(T));
    if (taps() > 1 && std::find(at.begin(), at.end(), -1) == at.end())
      dense_terms_ = std::move(at);
  }

  // Of `count` channels from `channel` on: term j of channel c to to[c * pitch + j].
  void copy(int64_t channel, int64_t count, T* to, int64_t pitch) const {
    const auto* from = static_cast<const T*>(p_.weights) + channel * ws_[0];
    if (ws_[0] == 1 && ws_[1] != 1 && count > 1)
      return copy_rows(from, count, to, pitch);
    for (int64_t c = 0; c < count; c++)
      copy_channel(from + c * ws_[0], to + c * pitch);
  }

 private:
  int64_t taps() const {
    return std::ssize(tap_terms_);
  }
  // Output channels lie next to each other.
  void copy_rows(const T* from, int64_t count, T* to, int64_t pitch) const {
    for (int64_t t = 0; t < taps(); t++)
      transpose_numbers(from + offsets_[t], ws_[1], p_.ic, to + tap_terms_[t], pitch, count);
  }
  void copy_channel(const T* from, T* to) const {
    if (ws_[1] == 1) {
      for (int64_t t = 0; t < taps(); t++)
        std::memcpy(to + tap_terms_[t], from + offsets_[t], p_.ic * sizeof(T));
    } else if (!dense_terms_.empty()) {
      transpose(
          {reinterpret_cast<const char*>(from + first_),
           nullptr,
           ws_[1] * int64_t(sizeof(T)),
           p_.ic,
           reinterpret_cast<char*>(to),
           dense_terms_.data(),
           /*column_step=*/0,
           taps(),
           /*may_overread=*/false,
           /*is_streamed=*/false},
          sizeof(T));
    } else {
      for (int64_t i = 0; i < p_.ic; i++, from += ws_[1])
        for (int64_t t = 0; t < taps(); t++)
          to[tap_terms_[t] + i] = from[offsets_[t]];
    }
  }

  const ConvProblem& p_;
  const int64_t* const ws_ = p_.weights_stride;
  const std::vector<int64_t> tap_terms_;
  std::vector<int64_t> offsets_, dense_terms_;
  int64_t first_;
};

template <class T>
int32_t sum_of(const T* from, int64_t n) {
  int32_t sum = 0;
  int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, int8_t>) {
    // One instruction adds up eight bytes, of which the least is 0 then.
    const __m512i flips = _mm512_set1_epi8(-128), zeros = _mm512_setzero_si512();
    __m512i sums = zeros;
    for (; i + 64 <= n; i += 64) {
      const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(from + i), flips);
      sums = _mm512_add_epi64(sums, _mm512_sad_epu8(bytes, zeros));
    }
    sum = static_cast<int32_t>(_mm512_reduce_add_epi64(sums) - 128 * i);
  }
#endif
  for (; i < n; i++)
    sum += from[i];
  return sum;
}

} // namespace

template <class Products>
ProductWeights<Products>::ProductWeights(
    const ConvProblem& p,
    const ProductPlan& plan,
    int zero_point)
    : p_(p), plan_(plan), zero_point_(zero_point) {
  if (p.packed != nullptr) {
    use(const_cast<void*>(p.packed));
    if (!kIsExact || zero_point == 1)
      return;
    const int32_t* const sums = excess_;
    own_excess_ = Scratch<int32_t>(excess_size_);
    excess_ = own_excess_.data();
    for (int64_t i = 0; i < excess_size_; i++)
      excess_[i] =
          static_cast<int32_t>(static_cast<uint32_t>(zero_point) * static_cast<uint32_t>(sums[i]));
    return;
  }
  own_panels_ = Scratch<Right>(panels_size_);
  own_excess_ = Scratch<int32_t>(excess_size_);
  panels_ = own_panels_.data();
  excess_ = own_excess_.data();
  if (!plan.threads_pack)
    pack_all();
}

template <class Products>
ProductWeights<Products>::ProductWeights(const ConvProblem& p, const ProductPlan& plan, void* to)
    : p_(p), plan_(plan), zero_point_(1) {
  use(to);
  pack_all();
}

template <class Products>
int64_t ProductWeights<Products>::packed_size(const ConvProblem& p, const ProductPlan& plan) {
  ConvProblem packed = p;
  packed.packed = &packed; // nothing is packed or read
  const ProductWeights weights(packed, plan, /*zero_point=*/1);
  return round_up(weights.panels_size_ * sizeof(Right), kCacheLine) +
      weights.excess_size_ * sizeof(int32_t);
}

template <class Products>
int64_t ProductWeights<Products>::layout(const ConvProblem& p, const ProductPlan& plan) {
  // Rows follow one another from block to block, and chunk to chunk.
  const bool is_dense = plan.ic == p.ic * plan.merged && plan.depth % plan.terms == 0 &&
      plan.together >= kProductColumns;
  return is_dense ? 0 : 1 + plan.block + 4 * (plan.in_tiles + 2 * plan.chunk);
}

template <class Products>
void ProductWeights<Products>::use(void* packed) {
  panels_ = static_cast<Right*>(packed);
  const int64_t bytes = round_up(panels_size_ * sizeof(Right), kCacheLine);
  excess_ = reinterpret_cast<int32_t*>(static_cast<char*>(packed) + bytes);
}

template <class Products>
void ProductWeights<Products>::pack_all() const {
  parallel_tasks(
      plan_.groups * plan_.panels,
      8 * kProductColumns * panel_rows_,
      [&](int64_t begin, int64_t end) { pack({begin, end}); });
}

template <class Products>
void ProductWeights<Products>::pack(Range panels) const {
  constexpr int64_t copies = std::is_same_v<Weight, Right> ? 1 : 2;
  const Scratch<Weight> lines(copies * kProductColumns * pitch_);
  for (int64_t i = panels.begin; i < panels.end; i++) {
    const int64_t group = i / plan_.panels, panel = i % plan_.panels;
    const Weight* from = lines_in_memory(group, panel);
    if (from == nullptr) {
      gather(group, panel, lines.data());
      from = lines.data();
    }
    if constexpr (kIsExact)
      add_up(group, panel, from);
    interleave(group, panel, from, lines.data() + kProductColumns * pitch_);
  }
}

template <class Products>
auto ProductWeights<Products>::lines_in_memory(int64_t group, int64_t panel) const
    -> const Weight* {
  const int64_t *const ws = p_.weights_stride, *const kernel = p_.kernel;
  const int64_t first = panel * kProductColumns, columns = plan_.columns(panel);
  const auto follow = [&](int axis, int64_t step) {
    return kernel[axis] == 1 || ws[2 + axis] == step;
  };
  const bool are_lines = plan_.merged == 1 && plan_.ic == p_.ic && rows_ == plan_.depth &&
      ws[1] == 1 && ws[0] == pitch_ && pitch_ == panel_rows_ && follow(2, p_.ic) &&
      follow(1, kernel[2] * p_.ic) && follow(0, kernel[1] * kernel[2] * p_.ic);
  if (!are_lines || first + columns > plan_.oc)
    return nullptr;
  return static_cast<const Weight*>(p_.weights) + group * p_.weights_group + first * ws[0];
}

template <class Products>
void ProductWeights<Products>::gather(int64_t group, int64_t panel, Weight* lines) const {
  const int64_t first = panel * kProductColumns, taps = product(p_.kernel);
  const int64_t columns = std::min(plan_.columns(panel), plan_.oc - first);
  std::memset(lines, 0, plan_.columns(panel) * pitch_ * sizeof(Weight));
  // Groups that are merged have terms of their own, one after the other.
  for (int64_t end, at = 0; at < columns; at = end) {
    const int64_t member = (first + at) / p_.oc;
    end = std::min(columns, (member + 1) * p_.oc - first);
    std::vector<int64_t> tap_terms(taps);
    for (int64_t t = 0; t < taps; t++) {
      const int64_t term = t * plan_.ic + member * p_.ic;
      tap_terms[t] = term / plan_.depth * rows_ + term % plan_.depth;
    }
    ConvProblem own = p_;
    const int64_t group_channel = (group * plan_.merged + member) * p_.weights_group;
    own.weights = static_cast<const Weight*>(p_.weights) + group_channel;
    ChannelTerms<Weight>(own, std::move(tap_terms))
        .copy(first + at - member * p_.oc, end - at, lines + at * pitch_, pitch_);
  }
}

template <class Products>
void ProductWeights<Products>::add_up(int64_t group, int64_t panel, const Weight* lines) const {
  auto* const excess = const_cast<int32_t*>(this->excess(group, panel, 0));
  std::memset(excess, 0, (plan_.blocks + 1) * kProductColumns * sizeof(int32_t));
  const auto zero_point = static_cast<uint32_t>(zero_point_);
  for (int64_t c = 0; c < plan_.columns(panel); c++) {
    uint32_t all = 0;
    for (int64_t block = 0; block < plan_.blocks; block++) {
      const int32_t sum = sum_of(lines + c * pitch_ + block * rows_, rows_);
      const uint32_t of_block = zero_point * static_cast<uint32_t>(sum);
      excess[block * kProductColumns + c] = static_cast<int32_t>(of_block);
      all += of_block;
    }
    excess[plan_.blocks * kProductColumns + c] = static_cast<int32_t>(all);
  }
}

template <class Products>
void ProductWeights<Products>::interleave(
    int64_t group,
    int64_t panel,
    const Weight* lines,
    Weight* narrow) const {
  constexpr int64_t pack = Products::kPack;
  const int64_t columns = plan_.columns(panel), rows = panel_rows_, together = plan_.together;
  Right* const to = panels_ + group * group_size_ + panel * kProductColumns * rows;
  const auto interleave = [&](const Weight* from, int64_t count, int64_t depth, Right* at) {
    if constexpr (std::is_same_v<Weight, Right>) {
      interleave_lines<Weight, pack>(from, pitch_, count, depth, at);
    } else {
      interleave_lines<Weight, pack>(from, pitch_, count, depth, narrow);
      std::copy_n(narrow, count * depth, at);
    }
  };
  if (columns <= together) // what belongs to products of parts of the rows lies one after the other
    return interleave(lines, columns, rows, to);
  for (int64_t block = 0; block < plan_.blocks; block++) {
    for (int64_t i = 0; i < plan_.chunks; i++) {
      const Range chunk = plan_.chunk_range(i);
      const int64_t first = block * rows_ + chunk.begin;
      const int64_t depth = round_up(chunk.count(), plan_.terms);
      for (int64_t c = 0; c < columns; c += together) {
        const Weight* const from = lines + c * pitch_ + first;
        interleave(from, std::min(together, columns - c), depth, to + first * columns + c * depth);
      }
    }
  }
}

template class ProductWeights<ByteProducts>;
template class ProductWeights<PairProducts>;
template class ProductWeights<FloatProducts>;
template class ProductWeights<HalfProducts<c10::BFloat16>>;
template class ProductWeights<HalfProducts<c10::Half>>;

} // namespace torch_dnnl
