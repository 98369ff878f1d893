// Reorders whose elements are next to each other in the source as in the destination: rows of any
// length in any number of outer axes. A thread takes a few packs (pack.h) of 16 bytes in the wider
// of both types, a block's width apart, so that the accesses of a warp are dense on either side.
// All its loads are under way before the first one is used: 64 bytes for each of 1024 threads are
// the 64 KB that keep a multiprocessor's share of the memory busy.
//
// Most of what is computed in float goes to converted_rows.cu.
// Rows that are not aligned go in narrower packs; single elements may have any strides.
#include "core/dispatch.h"
#include "core/math.h"
#include "reorder/cuda/rows.h"

namespace torch_dnnl::reorder_cuda {
namespace {

using boxes::Axis;
using boxes::Box;

constexpr int kPacks = 4; // of a thread

template <class Pack>
struct RowPlan {
  typename Pack::Args args;
  RowBox box;
  bool is_padding;
};

// Whole packs only.
template <class Pack>
__device__ __forceinline__ void load(const RowPlan<Pack>& plan, uint32_t index, RawPack& raw) {
  if (index >= plan.box.packs)
    return;
  PackPosition position;
  if (plan.box.locate(index, /*has_tensors=*/false, position) == Pack::kElements) {
    const char* from = plan.args.src + position.at[kSrc];
    with_bytes(plan.args.src_size * Pack::kElements, [&](auto bytes) {
      copy_bytes<bytes.value>(&raw, from);
    });
  }
}

__device__ __forceinline__ void load_part(const char* from, int bytes, RawPack& raw) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(RawPack)); i++)
    if (i < bytes)
      raw.words[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(from[i])) << i % 4 * 8;
}

template <class Pack>
__device__ __forceinline__ void finish(const RowPlan<Pack>& plan, uint32_t index, RawPack raw) {
  const auto& [args, box, is_padding] = plan;
  if (index >= box.packs)
    return;
  PackPosition position;
  const int count = box.locate(index, args.has_tensors, position);
  if (count < Pack::kElements && !is_padding)
    load_part(args.src + position.at[kSrc], count * args.src_size, raw);
  Pack pack;
  pack.widen(raw, args.src_dtype);
  if (!is_padding)
    pack.compute(args, position, count);
  pack.store(args.dst + position.at[kDst], args.dst_dtype, count);
}

template <class Pack>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ RowPlan<Pack> plan) {
  const uint32_t first = blockIdx.x * (kThreads * kPacks) + threadIdx.x;
  RawPack raw[kPacks] = {};
  if (!plan.is_padding) {
#pragma unroll
    for (int k = 0; k < kPacks; k++)
      load(plan, first + k * kThreads, raw[k]);
  }
  // One copy of what is long, with the packs moving on through the registers.
#pragma unroll 1
  for (int k = 0; k < kPacks; k++) {
    finish(plan, first + k * kThreads, raw[0]);
#pragma unroll
    for (int next = 1; next < kPacks; next++)
      raw[next - 1] = raw[next];
  }
}

template <class Pack>
void launch_rows(const typename Pack::Args& args, const Box& box) {
  const RowBox rows = row_box(box, Pack::kElements, args.src_size, args.dst_size);
  launch_packs<kPacks>(rows_kernel<Pack>, RowPlan<Pack>{args, rows, box.is_padding});
}

// Runs the widest of these packs that the alignment of both sides allows.
template <template <class, int> class Pack, class T, int... widths>
void launch_widest(const typename Pack<T, 1>::Args& args, const Box& box) {
  int most = Alignment(box, kDst, args.dst, args.dst_size).bytes() / args.dst_size;
  if (!box.is_padding) {
    const Alignment src(box, kSrc, args.src, args.src_size);
    most = std::min(most, src.bytes() / args.src_size);
  }
  with_widest<widths...>(most, [&](auto width) { launch_rows<Pack<T, width.value>>(args, box); });
}

// What is only moved, or zeroed, are bytes: the types do not matter then.
Box box_of_bytes(Box box, int64_t size) {
  for (const Array array : {kSrc, kDst}) {
    box.offset[array] *= size;
    for (Axis& axis : box.axes)
      axis.stride[array] *= size;
  }
  Axis bytes{size, {}};
  bytes.stride[kSrc] = box.is_padding ? 0 : 1;
  bytes.stride[kDst] = 1;
  box.axes.push_back(bytes);
  boxes::merge(box.axes);
  return box;
}

} // namespace

void run_straight(const ReorderProblem& p, const Box& box) {
  if (p.is_move() || box.is_padding) {
    PackArgs<int32_t> args(p);
    const Box bytes = box_of_bytes(box, args.dst_size);
    args.src_size = args.dst_size = 1;
    launch_widest<MovedPack, uint8_t, 16, 8, 4, 2, 1>(args, bytes);
  } else if (supports_converted_rows(p, box)) {
    run_converted_rows(p, box);
  } else if (p.compute_dtype == c10::kDouble) {
    launch_widest<ConvertedPack, double, 2, 1>(PackArgs<double>(p), box);
  } else if (p.compute_dtype == c10::kLong) {
    launch_widest<ConvertedPack, int32_t, 16, 4, 1>(PackArgs<int32_t>(p), box);
  } else {
    launch_widest<ConvertedPack, float, 16, 8, 4, 2, 1>(PackArgs<float>(p), box);
  }
}

} // namespace torch_dnnl::reorder_cuda
