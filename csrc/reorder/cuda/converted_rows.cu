// Rows that are computed in float, whose elements are next to each other and aligned on both sides,
// and for which all else is the same along a row, except sums: most of what is converted, quantized
// and dequantized. There is little time for each element: as many instructions as a processor has
// for them while the memory moves them are about forty. So a thread asks once for all its packs in
// which row it is (row_parts.h), what the row's scales are, and which types there are; kernels are
// compiled for the sizes of the types.
//
// A pack is 16 bytes of the wider type, of neighbouring threads next to each other: then both
// sides' accesses are whole lines.
#include "reorder/cuda/quotients.h"
#include "reorder/cuda/row_parts.h"

namespace torch_dnnl::reorder_cuda {
namespace {

using boxes::Box;

constexpr int kTogether = 16; // elements that are computed at once
constexpr int kBlocks = 4;    // of a multiprocessor

template <int size>
using Bits =
    std::conditional_t<size == 4, uint32_t, std::conditional_t<size == 2, uint16_t, uint8_t>>;

// Int16 is only moved.
template <class T>
constexpr bool is_computed_v = !std::is_same_v<T, int16_t>;

// The bytes of the elements of a thread that are computed at once. `left`: elements of the row from
// the first one on.
template <int size, int width>
struct Stretch {
  static constexpr int kPacks = kTogether / width, kBytes = size * width;
  alignas(cuda::kWidestAccess) uint32_t words[kPacks][kBytes / 4] = {};

  __device__ __forceinline__ void load(const char* row, int step, int left) {
    const auto* from = reinterpret_cast<const Bits<size>*>(row);
    for_each_pack(step, left, [&](int k, int count) {
      if (count == width)
        return copy_bytes<kBytes>(words[k], from + k * step);
      // Into words, as registers of single elements would be too many.
#pragma unroll
      for (int e = 0; e < width; e++)
        if (e < count)
          words[k][e * size / 4] |= uint32_t(from[k * step + e]) << e * size % 4 * 8;
    });
  }

  __device__ __forceinline__ void store(char* row, int step, int left) {
    auto* to = reinterpret_cast<Bits<size>*>(row);
    for_each_pack(step, left, [&](int k, int count) {
      if (count == width)
        return copy_bytes<kBytes>(to + k * step, words[k]);
#pragma unroll
      for (int e = 0; e < width; e++)
        if (e < count)
          to[k * step + e] = Bits<size>(words[k][e * size / 4] >> e * size % 4 * 8);
    });
  }

  __device__ __forceinline__ void widen(c10::ScalarType dtype, float (&value)[kTogether]) const {
    with_type(dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (is_computed_v<T> && sizeof(T) == size) {
        T elements[kTogether];
        std::memcpy(elements, words, sizeof(elements));
        for (int k = 0; k < kTogether; k++)
          value[k] = widened<float>(elements[k]);
      }
    });
  }

  __device__ __forceinline__ void narrow(c10::ScalarType dtype, const float (&value)[kTogether]) {
    with_type(dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (is_computed_v<T> && sizeof(T) == size) {
        T elements[kTogether];
        for (int k = 0; k < kTogether; k++)
          elements[k] = convert<T>(canonical_nan(value[k]));
        std::memcpy(words, elements, sizeof(elements));
      }
    });
  }

 private:
  // f(k, how many elements of pack k the row has), without a branch for each where it has all.
  template <class F>
  static __device__ __forceinline__ void for_each_pack(int step, int left, const F& f) {
    if (left - (kPacks - 1) * step >= width) {
#pragma unroll
      for (int k = 0; k < kPacks; k++)
        f(k, width);
    } else {
#pragma unroll
      for (int k = 0; k < kPacks; k++)
        f(k, min(max(left - k * step, 0), width));
    }
  }
};

// Sizes of types, and whether there are sums, of dst's size.
template <int src, int dst, bool sums>
struct Sizes {
  static constexpr int kSrc = src, kDst = dst;
  static constexpr bool kSums = sums;
  static constexpr int kWidth = cuda::kWidestAccess / std::max(src, dst); // elements of a pack
  static constexpr int kStretches = sums ? 1 : 2;                         // of a thread
  static constexpr int kPacks = kStretches * kTogether / kWidth;
};

struct ConvertedRowsPlan {
  PackArgs<float> args;
  RowParts rows;
};

// What belongs to the elements, in the form that the arithmetic reads it.
struct RowOperands {
  float same[kAccumulate];
  float sum[kTogether];

  // Entry at[array] of each of the operands of a row.
  __device__ __forceinline__ void load(const PackArgs<float>& args, const Offsets& at) {
#pragma unroll
    for (int array = 0; array < kAccumulate; array++) {
      const auto& operand = args.operand[array];
      same[array] = operand.number;
      if (args.has_tensors && operand.data != nullptr)
        same[array] = torch_dnnl::load<float>(operand.data, operand.dtype, at[array]);
    }
  }

  __device__ __forceinline__ void operator()(Array array, float (&value)[kTogether]) const {
    for (int k = 0; k < kTogether; k++)
      value[k] = array == kAccumulate ? sum[k] : same[array];
  }

  __device__ __forceinline__ void divide(float (&value)[kTogether]) const {
    Quotients(same[kDstScale]).divide(value);
  }
};

template <class S>
__global__ void __launch_bounds__(kThreads, kBlocks)
    converted_rows_kernel(const __grid_constant__ ConvertedRowsPlan plan) {
  const auto& [args, rows] = plan;
  Offsets at;
  uint32_t first_pack;
  if (!rows.locate(S::kPacks, args.has_tensors, at, first_pack))
    return;
  const uint32_t first = first_pack * S::kWidth;
  if (first >= rows.elements)
    return;
  int left = static_cast<int>(rows.elements - first);
  const int step = S::kWidth << rows.lanes_log2;
  const int next = kTogether / S::kWidth * step; // elements from a stretch to the one after it
  const char* src = args.src + at[kSrc] + int64_t(first) * S::kSrc;
  char* dst = args.dst + at[kDst] + int64_t(first) * S::kDst;

  Stretch<S::kSrc, S::kWidth> from[S::kStretches];
  Stretch<S::kDst, S::kWidth> sum;
#pragma unroll
  for (int i = 0; i < S::kStretches; i++)
    from[i].load(src + int64_t(i) * next * S::kSrc, step, left - i * next);
  if constexpr (S::kSums) {
    static_assert(S::kStretches == 1);
    const auto* sums = static_cast<const char*>(args.operand[kAccumulate].data);
    sum.load(sums + (at[kAccumulate] + first) * S::kDst, step, left);
  }
  RowOperands operands;
  operands.load(args, at);
  // One copy of what is long, with the elements moving on through the registers.
#pragma unroll 1
  for (int i = 0; i < S::kStretches; i++) {
    float value[kTogether];
    from[0].widen(args.src_dtype, value);
    if constexpr (S::kSums)
      sum.widen(args.operand[kAccumulate].dtype, operands.sum);
    scale_values(args, value, operands);
    shift_values(args, value, operands);
    Stretch<S::kDst, S::kWidth> to;
    to.narrow(args.dst_dtype, value);
    to.store(dst, step, left);
    from[0] = from[S::kStretches - 1];
    dst += int64_t(next) * S::kDst;
    left -= next;
  }
}

template <class S>
void launch_converted_rows(const ReorderProblem& p, const Box& box) {
  const ConvertedRowsPlan plan{
      PackArgs<float>(p), RowParts(box, S::kWidth, S::kPacks, S::kSrc, S::kDst)};
  const dim3 grid(static_cast<unsigned>(plan.rows.blocks(S::kWidth * S::kPacks)));
  cuda::launch(converted_rows_kernel<S>, grid, dim3(kThreads), 0, plan);
}

// f(Sizes<...>{}) for those of a problem; whether there is a kernel for them.
template <class F>
bool with_sizes(const ReorderProblem& p, const F& f) {
  const auto src = c10::elementSize(p.src_dtype), dst = c10::elementSize(p.dst_dtype);
  const ReorderProblem::Operand& sum = p.operand[kAccumulate];
  const auto is_taken = [&](auto s) {
    using S = decltype(s);
    const bool is_sum = sum.present && c10::elementSize(sum.dtype) == S::kDst;
    const bool is = src == S::kSrc && dst == S::kDst && (S::kSums ? is_sum : !sum.present);
    return is && (f(s), true);
  };
  const auto any = [&](auto... s) { return (is_taken(s) || ...); };
  return any(
      Sizes<4, 4, false>{},
      Sizes<4, 2, false>{},
      Sizes<4, 1, false>{},
      Sizes<2, 4, false>{},
      Sizes<2, 2, false>{},
      Sizes<2, 1, false>{},
      Sizes<1, 4, false>{},
      Sizes<1, 2, false>{},
      Sizes<1, 1, false>{},
      Sizes<4, 4, true>{},
      Sizes<2, 2, true>{});
}

} // namespace

bool supports_converted_rows(const ReorderProblem& p, const Box& box) {
  const boxes::Axis& row = box.axes.back();
  bool is_same = true;
  for (int array = 0; array < kAccumulate; array++)
    is_same &= p.operand[array].data == nullptr || row.stride[array] == 0;
  const auto is_dense = [&](Array array, const void* data, int64_t size, int64_t width) {
    return row.stride[array] == 1 && Alignment(box, array, data, size).bytes() >= size * width;
  };
  bool supports = false;
  with_sizes(p, [&](auto s) {
    using S = decltype(s);
    const ReorderProblem::Operand& sum = p.operand[kAccumulate];
    constexpr double kLeastUse = 0.5; // else too many threads have nothing to do
    supports = p.compute_dtype == c10::kFloat && !box.is_padding && is_same &&
        is_dense(kSrc, p.src, S::kSrc, S::kWidth) && is_dense(kDst, p.dst, S::kDst, S::kWidth) &&
        (!S::kSums || is_dense(kAccumulate, sum.data, S::kDst, S::kWidth)) &&
        (box.elements() == row.extent ||
         RowParts::best_use(row.extent, S::kWidth * S::kPacks) >= kLeastUse);
  });
  return supports;
}

void run_converted_rows(const ReorderProblem& p, const Box& box) {
  with_sizes(p, [&](auto s) { launch_converted_rows<decltype(s)>(p, box); });
}

} // namespace torch_dnnl::reorder_cuda
