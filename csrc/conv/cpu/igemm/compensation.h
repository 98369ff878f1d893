// Zero-point compensation. An int8 GEMM multiplies inputs that still contain their zero point, and
// padding is the zero point. So each accumulator of an output channel is too large by the zero
// point times the sum of the channel's weights. The output stage subtracts this compensation.
#pragma once

#include "conv/cpu/igemm/plan.h"
#include "core/cpu/scratch.h"

namespace torch_dnnl {

// Modulo 2^32: a final result is in range where intermediate results are not.
inline int32_t wrapping_add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
inline int32_t wrapping_sub(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
inline int32_t wrapping_mul(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}

inline int32_t sum_weights(const int8_t* weights, int64_t n) {
  int32_t sum = 0;
  int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX512)
  // sad_epu8 adds eight unsigned bytes, so -128 becomes 0 first.
  const __m512i flips = _mm512_set1_epi8(-128), zeros = _mm512_setzero_si512();
  __m512i sums = zeros;
  for (; i + 64 <= n; i += 64) {
    const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(weights + i), flips);
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(bytes, zeros));
  }
  sum = static_cast<int32_t>(_mm512_reduce_add_epi64(sums) - 128 * i);
#endif
  for (; i < n; i++)
    sum += weights[i];
  return sum;
}

// [group][panel][block, then all blocks together][column].
class Compensation {
 public:
  Compensation(const IgemmPlan& plan, int zero_point) : plan_(plan), zero_point_(zero_point) {}

  static int64_t size(const IgemmPlan& plan) {
    return plan.groups * plan.panels * (plan.blocks + 1) * kPanelColumns;
  }

  bool is_zero() const {
    return zero_point_ == 0;
  }
  // Of the weights in one block or, if that is plan.blocks, in all blocks.
  const int32_t* at(int64_t group, int64_t panel, int64_t block) const {
    return data_ + offset(group, panel, block);
  }

  void allocate() {
    own_ = Scratch<int32_t>(size(plan_));
    data_ = own_.data();
  }
  // Uses memory of packed weights, for a zero point of 1.
  void use(int32_t* data) {
    data_ = data;
  }
  // Multiplies the compensation of packed weights by the zero point, in own memory.
  void scale() {
    const int32_t* const packed = data_;
    if (zero_point_ == 1)
      return;
    allocate();
    for (int64_t i = 0; i < size(plan_); i++)
      data_[i] = wrapping_mul(zero_point_, packed[i]);
  }
  // Of a panel whose weights are in rows of k, `pitch` apart. A block takes up block_k of a row.
  void set(int64_t group, int64_t panel, const int8_t* rows, int64_t pitch, int64_t block_k) const {
    int32_t* const blocks = data_ + offset(group, panel, /*block=*/0);
    int32_t* const all = blocks + plan_.blocks * kPanelColumns;
    std::fill_n(blocks, (plan_.blocks + 1) * kPanelColumns, 0);
    for (int64_t c = 0; c < plan_.columns(panel); c++) {
      for (int64_t i = 0; i < plan_.blocks; i++) {
        const int32_t sum = sum_weights(rows + c * pitch + i * block_k, block_k);
        blocks[i * kPanelColumns + c] = wrapping_mul(zero_point_, sum);
        all[c] = wrapping_add(all[c], blocks[i * kPanelColumns + c]);
      }
    }
  }

 private:
  int64_t offset(int64_t group, int64_t panel, int64_t block) const {
    return ((group * plan_.panels + panel) * (plan_.blocks + 1) + block) * kPanelColumns;
  }

  const IgemmPlan& plan_;
  const int zero_point_;
  Scratch<int32_t> own_{0};
  int32_t* data_ = nullptr;
};

} // namespace torch_dnnl
