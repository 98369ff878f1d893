#include "conv/cpu/igemm/pack_weights.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/cpu/parallel.h"

namespace torch_dnnl {
namespace {

// Copies the weights of output channels in the order of k: input channel i of tap t goes to
// tap_k[t] + i.
template <class T>
class WeightRows {
 public:
  WeightRows(const ConvProblem& p, std::vector<int64_t> tap_k) : p_(p), tap_k_(std::move(tap_k)) {
    for (int64_t t = 0; t < taps(); t++) {
      Digits digits{t};
      const int64_t kw = digits.next(p.kernel[2]), kh = digits.next(p.kernel[1]);
      offsets_.push_back(digits.rest * ws_[2] + kh * ws_[3] + kw * ws_[4]);
    }
    // Adjacent taps, in any order, are the rows of a matrix that is transposed.
    first_ = *std::min_element(offsets_.begin(), offsets_.end());
    std::vector<int64_t> at(taps(), -1);
    for (int64_t t = 0; t < taps(); t++)
      if (offsets_[t] - first_ < taps())
        at[offsets_[t] - first_] = tap_k_[t] * int64_t(sizeof(T));
    if (taps() > 1 && std::find(at.begin(), at.end(), -1) == at.end())
      dense_bytes_ = std::move(at);
  }

  // `count` output channels from `channel` on, to rows that are `pitch` apart.
  void copy(int64_t channel, int64_t count, T* to, int64_t pitch) const {
    const auto* from = static_cast<const T*>(p_.weights) + channel * ws_[0];
    if (ws_[0] == 1 && ws_[1] != 1 && count > 1) {
      for (int64_t t = 0; t < taps(); t++)
        transpose_numbers(from + offsets_[t], ws_[1], p_.ic, to + tap_k_[t], pitch, count);
      return;
    }
    for (int64_t c = 0; c < count; c++)
      copy_channel(from + c * ws_[0], to + c * pitch);
  }

 private:
  int64_t taps() const {
    return std::ssize(tap_k_);
  }
  void copy_channel(const T* from, T* to) const {
    if (ws_[1] == 1) {
      for (int64_t t = 0; t < taps(); t++)
        std::memcpy(to + tap_k_[t], from + offsets_[t], p_.ic * sizeof(T));
    } else if (!dense_bytes_.empty()) {
      transpose(
          {reinterpret_cast<const char*>(from + first_),
           nullptr,
           ws_[1] * int64_t(sizeof(T)),
           p_.ic,
           reinterpret_cast<char*>(to),
           dense_bytes_.data(),
           /*column_step=*/0,
           taps(),
           /*may_overread=*/false,
           /*is_streamed=*/false},
          sizeof(T));
    } else {
      for (int64_t i = 0; i < p_.ic; i++, from += ws_[1])
        for (int64_t t = 0; t < taps(); t++)
          to[tap_k_[t] + i] = from[offsets_[t]];
    }
  }

  const ConvProblem& p_;
  const int64_t* const ws_ = p_.weights_stride;
  const std::vector<int64_t> tap_k_;
  std::vector<int64_t> offsets_, dense_bytes_;
  int64_t first_;
};

} // namespace

template <class Gemm>
WeightPanels<Gemm>::WeightPanels(const ConvProblem& p, const IgemmPlan& plan, int zero_point)
    : p_(p), plan_(plan), compensation_(plan, zero_point) {
  if (p.packed != nullptr) {
    use(const_cast<void*>(p.packed));
    if constexpr (kHasCompensation)
      compensation_.scale();
    return;
  }
  own_panels_ = Scratch<B>(plan.groups * group_size_);
  panels_ = own_panels_.data();
  if constexpr (kHasCompensation)
    compensation_.allocate();
  if (!plan.threads_pack)
    pack_all();
}

template <class Gemm>
WeightPanels<Gemm>::WeightPanels(const ConvProblem& p, const IgemmPlan& plan, void* to)
    : p_(p), plan_(plan), compensation_(plan, /*zero_point=*/1) {
  use(to);
  pack_all();
}

template <class Gemm>
int64_t WeightPanels<Gemm>::packed_size(const ConvProblem& p, const IgemmPlan& plan) {
  ConvProblem packed = p;
  packed.packed = &packed; // neither packed nor read
  const int64_t bytes = WeightPanels(packed, plan, /*zero_point=*/1).panel_bytes();
  return bytes + (kHasCompensation ? Compensation::size(plan) * sizeof(int32_t) : 0);
}

template <class Gemm>
int64_t WeightPanels<Gemm>::layout(const ConvProblem& p, const IgemmPlan& plan) {
  // Without padding and interleaved as whole panels, all blocks and chunks give the same layout.
  const bool is_dense =
      plan.ic == p.ic * plan.merged && plan.k % plan.kr == 0 && plan.nr >= kPanelColumns;
  return is_dense && !kHasCompensation ? 0 : PackedBlock{plan.block, plan.uses_amx}.number();
}

template <class Gemm>
void WeightPanels<Gemm>::use(void* packed) {
  panels_ = static_cast<B*>(packed);
  compensation_.use(reinterpret_cast<int32_t*>(static_cast<char*>(packed) + panel_bytes()));
}

template <class Gemm>
void WeightPanels<Gemm>::pack_all() const {
  parallel_ranges(
      plan_.groups * plan_.panels, 8 * kPanelColumns * panel_k_, [&](int64_t begin, int64_t end) {
        pack({begin, end});
      });
}

template <class Gemm>
void WeightPanels<Gemm>::pack(Range panels) const {
  constexpr int64_t copies = std::is_same_v<Weight, B> ? 1 : 2;
  const Scratch<Weight> gathered(copies * kPanelColumns * pitch_);
  for (int64_t i = panels.begin; i < panels.end; i++) {
    const int64_t group = i / plan_.panels, panel = i % plan_.panels;
    const Weight* rows = rows_in_memory(group, panel);
    if (rows == nullptr) {
      gather_rows(group, panel, gathered.data());
      rows = gathered.data();
    }
    if constexpr (kHasCompensation)
      compensation_.set(group, panel, rows, pitch_, block_k_);
    interleave(group, panel, rows, gathered.data() + kPanelColumns * pitch_);
  }
}

template <class Gemm>
auto WeightPanels<Gemm>::rows_in_memory(int64_t group, int64_t panel) const -> const Weight* {
  const int64_t *const ws = p_.weights_stride, *const kernel = p_.kernel;
  const int64_t first = panel * kPanelColumns, columns = plan_.columns(panel);
  const auto follow = [&](int axis, int64_t step) {
    return kernel[axis] == 1 || ws[2 + axis] == step;
  };
  const bool are_rows = plan_.merged == 1 && plan_.ic == p_.ic && block_k_ == plan_.k &&
      ws[1] == 1 && ws[0] == pitch_ && pitch_ == panel_k_ && follow(2, p_.ic) &&
      follow(1, kernel[2] * p_.ic) && follow(0, kernel[1] * kernel[2] * p_.ic);
  if (!are_rows || first + columns > plan_.oc)
    return nullptr;
  return static_cast<const Weight*>(p_.weights) + group * p_.weights_group + first * ws[0];
}

template <class Gemm>
void WeightPanels<Gemm>::gather_rows(int64_t group, int64_t panel, Weight* rows) const {
  const int64_t first = panel * kPanelColumns, taps = product(p_.kernel);
  const int64_t columns = std::min(plan_.columns(panel), plan_.oc - first);
  std::memset(rows, 0, plan_.columns(panel) * pitch_ * sizeof(Weight));
  // Each member of merged groups has input channels, and so k, of its own.
  for (int64_t end, at = 0; at < columns; at = end) {
    const int64_t member = (first + at) / p_.oc;
    end = std::min(columns, (member + 1) * p_.oc - first);
    std::vector<int64_t> tap_k(taps);
    for (int64_t t = 0; t < taps; t++) {
      const int64_t k = t * plan_.ic + member * p_.ic;
      tap_k[t] = k / plan_.k * block_k_ + k % plan_.k;
    }
    ConvProblem own = p_;
    const int64_t group_channel = (group * plan_.merged + member) * p_.weights_group;
    own.weights = static_cast<const Weight*>(p_.weights) + group_channel;
    WeightRows<Weight>(own, std::move(tap_k))
        .copy(first + at - member * p_.oc, end - at, rows + at * pitch_, pitch_);
  }
}

template <class Gemm>
void WeightPanels<Gemm>::interleave(
    int64_t group,
    int64_t panel,
    const Weight* rows,
    Weight* narrow) const {
  constexpr int64_t vnni = Gemm::kVnni;
  const int64_t columns = plan_.columns(panel), nr = plan_.nr;
  B* const to = panels_ + group * group_size_ + panel * kPanelColumns * panel_k_;
  const auto interleave = [&](const Weight* from, int64_t count, int64_t k, B* at) {
    if constexpr (std::is_same_v<Weight, B>) {
      interleave_vnni<vnni>(from, pitch_, count, k, at);
    } else {
      interleave_vnni<vnni>(from, pitch_, count, k, narrow);
      std::copy_n(narrow, count * k, at);
    }
  };
  if (columns <= nr) // blocks and chunks are contiguous: all at once
    return interleave(rows, columns, panel_k_, to);
  for (int64_t block = 0; block < plan_.blocks; block++) {
    for (int64_t i = 0; i < plan_.chunks; i++) {
      const Range range = plan_.k_range(i);
      const int64_t first = block * block_k_ + range.begin;
      const int64_t k = round_up(range.count(), plan_.kr);
      for (int64_t c = 0; c < columns; c += nr)
        interleave(
            rows + c * pitch_ + first, std::min(nr, columns - c), k, to + first * columns + c * k);
    }
  }
}

template class WeightPanels<Int8Gemm>;
template class WeightPanels<Int16Gemm>;
template class WeightPanels<Float32Gemm>;
template class WeightPanels<Float16Gemm<c10::BFloat16>>;
template class WeightPanels<Float16Gemm<c10::Half>>;

} // namespace torch_dnnl
