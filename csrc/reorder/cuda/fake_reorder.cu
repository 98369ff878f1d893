// Fake quantization on CUDA. A thread takes packs of eight elements, whose bits are a byte of the
// mask, with accesses of 16 bytes; what is not aligned or not next to each other in the source as
// in the result goes through the reference.
#include "core/cuda/launch.h"
#include "core/dispatch.h"
#include "core/math.h"
#include "reorder/cuda/rows.h"
#include "reorder/decompose.h"
#include "reorder/fake_reference.h"

namespace torch_dnnl::reorder_cuda {
namespace {

using boxes::Box;

constexpr int kBits = 8;  // of a byte of the mask, elements of a pack
constexpr int kPacks = 2; // of a thread

template <class T>
using Eight = Elements<T, kBits>;

template <class C>
struct FakePlan {
  PackArgs<C> args;
  RowBox box;
  c10::ScalarType quantized;
  bool step_gradient;
  cuda::Divisor mask_row; // packs
  uint32_t last_of_mask_row;
  uint8_t* mask;
  const uint8_t* saved_mask;

  FakePlan(const FakeReorderProblem& p, const Box& all)
      : args(p.reorder),
        box(row_box(all, kBits, args.src_size, args.dst_size)),
        quantized(p.dtype),
        step_gradient(p.step_gradient),
        mask_row(p.row_bytes - 1),
        last_of_mask_row(static_cast<uint32_t>(p.row_bytes - 2)),
        mask(p.mask),
        saved_mask(p.saved_mask) {}

  // Each row of the mask has a byte of zeros at the end.
  __device__ __forceinline__ int64_t byte_of(uint32_t pack) const {
    return static_cast<int64_t>(pack) + mask_row.divide(pack);
  }
};

// Loads the packs of a thread, then runs finish(pack, count, position, elements) for each.
template <class T, class C, class F>
__device__ __forceinline__ void for_each_pack(const FakePlan<C>& plan, const F& finish) {
  const uint32_t first = blockIdx.x * (kThreads * kPacks) + threadIdx.x;
  Eight<T> data[kPacks];
  PackPosition position[kPacks];
  int count[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; i++) {
    const uint32_t pack = first + i * kThreads;
    count[i] = 0;
    if (pack < plan.box.packs) {
      count[i] = plan.box.locate(pack, plan.args.has_tensors, position[i]);
      data[i].load(reinterpret_cast<const T*>(plan.args.src + position[i].at[kSrc]), count[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks; i++)
    if (count[i] > 0)
      finish(first + i * kThreads, count[i], position[i], data[i]);
}

// Blocks of a multiprocessor: a thread has 80 registers, or 128.
template <class C>
constexpr int kResidentBlocks = sizeof(C) == 8 ? 2 : 3;

template <class T, class C>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<C>)
    quantize_kernel(const __grid_constant__ FakePlan<C> plan) {
  const auto finish = [&](uint32_t pack, int count, const PackPosition& position, Eight<T>& data) {
    const PackArgs<C>& args = plan.args;
    const PackOperands<C> operands{args, position, count};
    C w[kBits], u[kBits], value[kBits];
    for (int k = 0; k < kBits; k++)
      w[k] = static_cast<C>(data.at(k));
    scale_values(args, w, operands);
    for (int k = 0; k < kBits; k++)
      u[k] = w[k];
    shift_values(args, u, operands);
    const uint32_t bits =
        quantize_and_back(args, plan.quantized, plan.step_gradient, w, u, value, operands);
    const int64_t byte = plan.byte_of(pack);
    plan.mask[byte] = static_cast<uint8_t>(bits & ((1u << count) - 1));
    uint32_t of_row = pack;
    if (plan.mask_row.split(of_row) == plan.last_of_mask_row)
      plan.mask[byte + 1] = 0;
    const auto store = [&]<class Result>(Eight<Result> result) {
      for (int k = 0; k < kBits; k++)
        result.at(k) = convert<Result>(value[k]);
      result.store(reinterpret_cast<Result*>(args.dst + position.at[kDst]), count);
    };
    if constexpr (!std::is_same_v<T, C>) {
      if (plan.step_gradient)
        return store(Eight<C>{});
    }
    store(Eight<T>{});
  };
  for_each_pack<T>(plan, finish);
}

// T: an unsigned integer of the elements' size.
template <class T>
__global__ void __launch_bounds__(kThreads)
    mask_kernel(const __grid_constant__ FakePlan<float> plan) {
  const auto finish = [&](uint32_t pack, int count, const PackPosition& position, Eight<T>& data) {
    const uint32_t bits = plan.saved_mask[plan.byte_of(pack)];
    for (int k = 0; k < kBits; k++)
      data.at(k) = (bits >> k & 1) != 0 ? data.at(k) : T(0);
    data.store(reinterpret_cast<T*>(plan.args.dst + position.at[kDst]), count);
  };
  for_each_pack<T>(plan, finish);
}

// The elements of a problem as one box of packs, if they are next to each other on both sides,
// aligned, and no pack has a part of two rows.
std::optional<Box> box_of_packs(const FakeReorderProblem& p) {
  if (!boxes::has_boxes(p.reorder))
    return std::nullopt;
  boxes::Boxes all = boxes::decompose(p.reorder);
  Box& box = all.front();
  const boxes::Axis& row = box.axes.back();
  const bool is_whole = row.extent % kBits == 0 || box.axes.size() == 1;
  const bool is_whole_mask = p.row_elements % kBits == 0 || p.rows == 1;
  const ReorderProblem& r = p.reorder;
  const Alignment src(box, kSrc, r.src, c10::elementSize(r.src_dtype));
  const Alignment dst(box, kDst, r.dst, c10::elementSize(r.dst_dtype));
  const bool is_aligned = src.bytes() == cuda::kWidestAccess && dst.bytes() == cuda::kWidestAccess;
  const bool fits = box.axes.size() <= kMaxAxes && box.elements() <= kMaxCount;
  if (all.size() == 1 && fits && is_whole && is_whole_mask && is_aligned)
    return std::move(box);
  return std::nullopt;
}

} // namespace

bool supports_packs(const FakeReorderProblem& p) {
  return box_of_packs(p).has_value();
}

void fake_quantize(const FakeReorderProblem& p) {
  const Box box = *box_of_packs(p);
  dispatch(FloatingTypes{}, p.reorder.src_dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    launch_packs<kPacks>(quantize_kernel<T, C>, FakePlan<C>(p, box));
  });
}

void mask_gradient(const FakeReorderProblem& p) {
  const FakePlan<float> plan(p, *box_of_packs(p));
  dispatch_bytes<2>(plan.args.dst_size, [&]<class T>(std::type_identity<T>) {
    launch_packs<kPacks>(mask_kernel<T>, plan);
  });
}

void fake_quantize_reference(const FakeReorderProblem& p) {
  with_computed(p, [&]<class C>(std::type_identity<C>) {
    cuda::for_each_element<cuda::kReferenceBlocks>(p.rows * p.row_bytes, FakeReorderByte<C>{p});
  });
}

void mask_gradient_reference(const FakeReorderProblem& p) {
  with_computed(p, [&]<class C>(std::type_identity<C>) {
    cuda::for_each_element<cuda::kReferenceBlocks>(
        p.rows * p.row_bytes, FakeReorderBackwardByte<C>{p});
  });
}

} // namespace torch_dnnl::reorder_cuda
