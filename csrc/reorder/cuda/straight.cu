// Reorders whose elements are next to each other in the source as in the destination: rows of any
// length in any number of outer axes. A thread takes a few packs (pack.h) of 16 bytes in the wider
// of both types, a block's width apart, so that the accesses of a warp are dense on either side.
// All its loads are under way before the first one is used: 64 bytes for each of 1024 threads are
// the 64 KB that keep a multiprocessor's share of the memory busy.
//
// Rows that are not aligned go in narrower packs; single elements may have any strides.
#include "core/dispatch.h"
#include "core/math.h"
#include "reorder/cuda/alignment.h"
#include "reorder/cuda/rows.h"

namespace torch_dnnl::reorder_cuda {
namespace {

using boxes::Axis;
using boxes::Box;

constexpr int kThreads = 256;
constexpr int kPacks = 4; // of a thread

template <class Pack>
struct RowPlan {
  typename Pack::Args args;
  RowBox box;
  bool is_padding;
};

template <class Pack>
class RowsOfThread {
 public:
  __device__ __forceinline__ explicit RowsOfThread(const RowPlan<Pack>& plan)
      : args_(plan.args),
        box_(plan.box),
        is_padding_(plan.is_padding),
        first_(blockIdx.x * (kThreads * kPacks) + threadIdx.x) {}

  __device__ __forceinline__ void run() {
    RawPack raw[kPacks] = {};
    if (!is_padding_) {
#pragma unroll
      for (int k = 0; k < kPacks; k++)
        load(first_ + k * kThreads, raw[k]);
    }
    // One copy of what is long, with the packs moving on through the registers.
#pragma unroll 1
    for (int k = 0; k < kPacks; k++) {
      finish(first_ + k * kThreads, raw[0]);
#pragma unroll
      for (int next = 1; next < kPacks; next++)
        raw[next - 1] = raw[next];
    }
  }

 private:
  // Whole packs only.
  __device__ __forceinline__ void load(uint32_t pack, RawPack& raw) const {
    if (pack >= box_.packs)
      return;
    int64_t offset = box_.offset[kSrc];
    int count = Pack::kElements;
    box_.for_each_coordinate(pack, [&](int a, uint32_t coordinate) {
      offset += coordinate * box_.stride[a][kSrc];
      count = a == 0 ? box_.elements(coordinate) : count;
    });
    if (count == Pack::kElements) {
      const char* from = args_.src + offset;
      with_bytes(args_.src_size * Pack::kElements, [&](auto bytes) {
        copy_bytes<bytes.value>(&raw, from);
      });
    }
  }

  __device__ __forceinline__ void finish(uint32_t index, RawPack raw) const {
    if (index >= box_.packs)
      return;
    PackPosition position;
    const int count = box_.locate(index, args_.has_tensors, position);
    if (count < Pack::kElements && !is_padding_)
      load_part(args_.src + position.at[kSrc], count, raw);
    Pack pack;
    pack.widen(raw, args_.src_dtype);
    if (!is_padding_)
      pack.compute(args_, position, count);
    pack.store(args_.dst + position.at[kDst], args_.dst_dtype, count);
  }

  __device__ __forceinline__ void load_part(const char* from, int count, RawPack& raw) const {
    const int bytes = count * args_.src_size;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(RawPack)); i++)
      if (i < bytes)
        raw.words[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(from[i])) << i % 4 * 8;
  }

  const typename Pack::Args& args_;
  const RowBox& box_;
  const bool is_padding_;
  const uint32_t first_;
};

template <class Pack>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ RowPlan<Pack> plan) {
  RowsOfThread<Pack>(plan).run();
}

template <class Pack>
void launch_rows(const typename Pack::Args& args, const Task& task) {
  const RowPlan<Pack> plan{
      args, row_box(task.box, Pack::kElements, args.src_size, args.dst_size), task.is_padding};
  constexpr uint32_t kBlock = kThreads * kPacks;
  const dim3 grid(ceil_div(plan.box.packs, kBlock));
  cuda::launch(rows_kernel<Pack>, grid, dim3(kThreads), 0, plan);
}

// Runs the widest of these packs that the alignment of both sides allows.
template <template <class, int> class Pack, class T, int... widths>
void launch_widest(const typename Pack<T, 1>::Args& args, const Task& task) {
  int most = Alignment(task.box, kDst, args.dst, args.dst_size).bytes() / args.dst_size;
  if (!task.is_padding) {
    const Alignment src(task.box, kSrc, args.src, args.src_size);
    most = std::min(most, src.bytes() / args.src_size);
  }
  with_widest<widths...>(most, [&](auto width) { launch_rows<Pack<T, width.value>>(args, task); });
}

// What is only moved, or zeroed, are bytes: the types do not matter then.
Task task_of_bytes(Task task, int64_t size) {
  Box& box = task.box;
  for (const Array array : {kSrc, kDst}) {
    box.offset[array] *= size;
    for (Axis& axis : box.axes)
      axis.stride[array] *= size;
  }
  Axis bytes{size, {}};
  bytes.stride[kSrc] = task.is_padding ? 0 : 1;
  bytes.stride[kDst] = 1;
  box.axes.push_back(bytes);
  boxes::merge(box.axes);
  return task;
}

} // namespace

void run_straight(const ReorderProblem& p, const Task& task) {
  if (p.is_move() || task.is_padding) {
    PackArgs<int32_t> args(p);
    const Task bytes = task_of_bytes(task, args.dst_size);
    args.src_size = args.dst_size = 1;
    launch_widest<MovedPack, uint8_t, 16, 8, 4, 2, 1>(args, bytes);
  } else if (p.compute_dtype == c10::kDouble) {
    launch_widest<ConvertedPack, double, 2, 1>(PackArgs<double>(p), task);
  } else if (p.compute_dtype == c10::kLong) {
    launch_widest<ConvertedPack, int32_t, 16, 4, 1>(PackArgs<int32_t>(p), task);
  } else {
    launch_widest<ConvertedPack, float, 16, 8, 4, 2, 1>(PackArgs<float>(p), task);
  }
}

} // namespace torch_dnnl::reorder_cuda
