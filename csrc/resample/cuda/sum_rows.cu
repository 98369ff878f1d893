// The kernel of running sums for rows of neighbouring columns; see kernels.h.
//
// A block takes a tile of a row of dst and the columns of src that the tile reads, a vector for
// each thread. When the sums of some rows of dst are complete, the block shares them and applies
// the W axis to all of them at once: where an output's taps are, and their weights, are found once
// for its whole column.
#include "core/cuda/mma.h"
#include "resample/cuda/kernels.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int64_t kMostSumsOfRows = 4;
constexpr int kMostThreads = 128;
constexpr int kTaps = 4;                    // along W, where offsets and weights stay in registers
constexpr int64_t kMostTapBytes = 40 << 10; // of more taps, in shared memory

// Rows of dst that are shared at once: an element of all of them is a vector.
template <class W>
constexpr int kRows = kWidestAccess / sizeof(W);

template <class W>
using Shared = Vector<W, kRows<W>>;

// One in 8 is left out, so that strides of a power of two meet all banks.
TORCH_DNNL_HD inline uint32_t shared_position(uint32_t element) {
  return element + element / 8;
}

// The columns of a thread in the rows [row, end) of src and in all planes of each row. They are
// copied ahead, to have enough bytes on their way from memory: to the thread's own part of shared
// memory, as registers that take turns would be waited for when they are moved.
template <class T>
class SourceColumns {
 public:
  static constexpr int kVector = kLanes<T>;
  static constexpr int kBytes = sizeof(T) * kVector;
  static constexpr int kSlots = 8; // for a thread's vectors, one of which is being read
  static constexpr int kSlotBytes = kSlots * kBytes; // of a thread

  template <class W>
  __device__ __forceinline__ SourceColumns(
      const KernelArguments<W>& args,
      void* slots,
      const TapLoop<W>& planes,
      const T* first_plane,
      int32_t row,
      int32_t end)
      : line_(first_plane + row * args.src_stride[3]),
        next_row_(args.src_stride[3] - (planes.count - 1) * args.src_stride[2]),
        next_plane_(args.src_stride[2]),
        planes_(planes.count),
        rows_left_(planes.count == 0 ? 0 : end - row),
        slots_(static_cast<Vector<T, kVector>*>(slots) + threadIdx.x) {
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; i++)
      copy(i);
  }

  template <class W>
  __device__ __forceinline__ void next(W (&elements)[kVector]) {
    copies_.template wait<kSlots - 2>();
    PackedVector<T, kVector> next;
    next.load(slots_[slot_ * blockDim.x].at);
    copy(slot_ == 0 ? kSlots - 1 : slot_ - 1); // what the call before has read
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    widen(next, elements);
  }

 private:
  __device__ __forceinline__ void copy(int slot) {
    if (rows_left_ > 0) {
      if constexpr (kBytes == 16)
        copies_.template copy16</*cached=*/false>(slots_ + slot * blockDim.x, line_, true);
      else
        copies_.copy8(slots_ + slot * blockDim.x, line_);
    }
    copies_.commit();
    const bool is_last = ++plane_ == planes_;
    line_ += is_last ? next_row_ : next_plane_;
    plane_ = is_last ? 0 : plane_;
    rows_left_ -= is_last;
  }

  const T* line_;
  int64_t next_row_, next_plane_;
  int32_t planes_, rows_left_, plane_ = 0, slot_ = 0;
  Vector<T, kVector>* slots_;
  AsyncCopies copies_;
};

template <class W>
__device__ __forceinline__ void add(Shared<W>& sums, W weight, const Shared<W>* element) {
  const Shared<W> x = *element;
#pragma unroll
  for (int r = 0; r < kRows<W>; r++)
    sums.at[r] += weight * x.at[r];
}

// What a thread makes of shared rows: elements of dst a block apart. With a fixed number of them,
// offsets and weights are kept in registers.
template <class W, int kOutputs>
struct FewTaps {
  static constexpr int kMinBlocks =
      kOutputs > 4 ? 3 : 4;           // of a multiprocessor, whose registers they share
  int32_t begin, end;                 // elements of dst, of the block
  uint32_t position[kOutputs][kTaps]; // bytes
  W weight[kOutputs][kTaps];
  uint32_t empty = 0;

  __device__ __forceinline__
  FewTaps(const KernelArguments<W>& args, int32_t begin, int32_t end, int32_t src_begin, void*)
      : begin(begin), end(end) {
#pragma unroll
    for (int i = 0; i < kOutputs; i++) {
      const int32_t element = begin + i * blockDim.x + threadIdx.x;
      if (element >= end)
        break;
      const Columns<W, kTaps, 1, true> column(args, element);
      empty |= column.empty << i;
#pragma unroll
      for (int k = 0; k < kTaps; k++) {
        // What reads nothing may have its offset outside the tile.
        position[i][k] =
            column.empty ? 0 : shared_position(column.offset[0][k] - src_begin) * sizeof(Shared<W>);
        weight[i][k] = column.weight[0][k];
      }
    }
  }

  // f(element, its sums, whether it reads nothing) for each element of the thread.
  template <class F>
  __device__ __forceinline__ void for_each(const Shared<W>* rows, F&& f) const {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(rows);
#pragma unroll
    for (int i = 0; i < kOutputs; i++) {
      const int32_t element = begin + i * blockDim.x + threadIdx.x;
      if (element >= end)
        break;
      Shared<W> sums{};
#pragma unroll
      for (int k = 0; k < kTaps; k++)
        add(sums, weight[i][k], reinterpret_cast<const Shared<W>*>(bytes + position[i][k]));
      f(element, sums, (empty >> i & 1) != 0);
    }
  }
};

// Any number of them. A pixel's weights are next to each other in the table, where a warp would
// read each tap from 32 places in every row. So the block keeps what it needs in shared memory: by
// 16 bytes of a pixel's weights, those of neighbouring pixels next to each other.
template <class W>
struct ManyTaps {
  static constexpr int kMinBlocks = 5;
  static constexpr int kGroup = kWidestAccess / sizeof(W);
  struct alignas(8) Pixel {
    int32_t first, count; // in the tile of src, in elements; of taps
  };

  const KernelArguments<W>& args;
  int32_t begin, end, first_pixel, pixels;
  Vector<W, kGroup>* weights;
  Pixel* of_pixels;

  __device__ __forceinline__ ManyTaps(
      const KernelArguments<W>& args,
      int32_t begin,
      int32_t end,
      int32_t src_begin,
      void* memory)
      : args(args),
        begin(begin),
        end(end),
        first_pixel(static_cast<int32_t>(args.by_inner.divide(begin))),
        pixels(static_cast<int32_t>(args.by_inner.divide(end - 1)) + 1 - first_pixel),
        weights(static_cast<Vector<W, kGroup>*>(memory)),
        of_pixels(reinterpret_cast<Pixel*>(weights + groups(args.tables.w.slots) * pixels)) {
    for (int32_t x = threadIdx.x; x < pixels; x += blockDim.x) {
      const TapLoop<W> taps = args.tables.loop(args.tables.w, first_pixel + x);
      of_pixels[x] = {taps.first * args.inner - src_begin, taps.count};
      int32_t tap = 0;
      taps.for_each([&](int32_t, W weight) {
        weights[tap / kGroup * pixels + x].at[tap % kGroup] = weight;
        tap++;
      });
    }
  }

  TORCH_DNNL_HD static int64_t groups(int64_t taps) {
    return ceil_div(taps, kGroup);
  }
  static int64_t bytes(int64_t pixels, int64_t taps) {
    return pixels * (groups(taps) * sizeof(Vector<W, kGroup>) + sizeof(Pixel));
  }

  // After a barrier.
  template <class F>
  __device__ __forceinline__ void for_each(const Shared<W>* rows, F&& f) const {
    for (int32_t element = begin + threadIdx.x; element < end; element += blockDim.x) {
      uint32_t x = element;
      const uint32_t channel = args.by_inner.split(x);
      const Vector<W, kGroup>* group = weights + (x - first_pixel);
      const Pixel pixel = of_pixels[x - first_pixel];
      uint32_t position = pixel.first + channel;
      Shared<W> sums{};
#pragma unroll 1
      for (int32_t left = pixel.count; left > 0; left -= kGroup) {
        const Vector<W, kGroup> weight = *group;
#pragma unroll
        for (int tap = 0; tap < kGroup; tap++) {
          if (tap < left)
            add(sums, weight.at[tap], rows + shared_position(position));
          position += args.inner;
        }
        group += pixels;
      }
      f(element, sums, pixel.count == 0);
    }
  }
};

template <class T, int kSums, class Outputs, int kTableBytes>
__global__ void __launch_bounds__(kMostThreads, Outputs::kMinBlocks)
    sum_rows_kernel(const __grid_constant__ ArgumentsWithTables<compute_t<T>, kTableBytes> args) {
  using W = compute_t<T>;
  constexpr int kVector = kLanes<T>;
  constexpr int32_t kAtOnce = kRows<W>;
  auto* const shared = dynamic_shared<Shared<W>>();
  const Place at = place(args, blockIdx.x);
  const int32_t begin = at.column * args.elements_per_tile;
  const int32_t end = min(begin + args.elements_per_tile, args.row);
  const auto columns = [&](int32_t element) {
    return args.tables.row(args.tables.w, static_cast<int32_t>(args.by_inner.divide(element)));
  };
  const int32_t src_begin = columns(begin).first * args.inner / kVector * kVector;
  const int32_t src_end = columns(end - 1).end() * args.inner;
  const int32_t mine = threadIdx.x * kVector;
  const uint32_t shared_mine = shared_position(mine); // 8 is a multiple of kVector
  const bool has_columns = src_begin + mine < src_end;
  auto* const slots =
      reinterpret_cast<unsigned char*>(shared + shared_position(blockDim.x * kVector));
  const Outputs outputs(
      args, begin, end, src_begin, slots + blockDim.x * SourceColumns<T>::kSlotBytes);
  const TapLoop<W> planes = args.tables.loop(args.tables.d, at.d);
  const T* src = static_cast<const T*>(args.src) + at.src + planes.first * args.src_stride[2] +
      src_begin + mine;
  T* line = static_cast<T*>(args.dst) + at.dst + at.begin * args.dst_stride[3];

  const int32_t row_begin = args.tables.row(args.tables.h, at.begin).first;
  const int32_t row_end =
      has_columns ? args.tables.row(args.tables.h, at.end - 1).end() : row_begin;
  SourceColumns<T> source(args, slots, planes, src, row_begin, row_end);
  RunningSums<W, kSums, kVector> sums(args, at);
  for (int32_t first = at.begin; first < at.end; first += kAtOnce) {
    const int32_t rows = min(kAtOnce, at.end - first);
    if (has_columns) {
#pragma unroll 1
      for (int32_t r = 0; r < rows; r++) {
        W sum[kVector];
        sums.complete(first + r, sum, [&](int32_t, W(&row_sum)[kVector]) {
          if (planes.is_copy) {
            source.next(row_sum);
            return;
          }
          planes.for_each([&](int32_t, W weight) {
            W x[kVector];
            source.next(x);
#pragma unroll
            for (int v = 0; v < kVector; v++)
              row_sum[v] += weight * x[v];
          });
        });
#pragma unroll
        for (int v = 0; v < kVector; v++)
          shared[shared_mine + v].at[r] = sum[v];
      }
    }
    __syncthreads();
    uint32_t empty_rows = planes.count == 0 ? ~0u : 0;
    if (args.has_empty_rows)
#pragma unroll 1
      for (int32_t r = 0; r < rows; r++)
        empty_rows |= (args.tables.row(args.tables.h, first + r).count == 0) << r;
    outputs.for_each(shared, [&](int32_t element, const Shared<W>& sums, bool empty) {
      T* to = line + element;
#pragma unroll
      for (int r = 0; r < kAtOnce; r++) {
        if (r >= rows)
          break;
        const bool is_empty = empty || (empty_rows >> r & 1) != 0;
        *to = is_empty ? fill_value<T>(args.fill) : result<T>(sums.at[r]);
        to += args.dst_stride[3];
      }
    });
    line += kAtOnce * args.dst_stride[3];
    __syncthreads(); // the rows are no longer used
  }
}

// The most pixels of dst, up to `most` and in tiles of equal size, that read no more than
// `capacity` elements of a row of src. 0: one pixel reads more.
template <class W>
int64_t pixels_per_tile(const ResamplePlan<W>& plan, int64_t capacity, int64_t most) {
  const HostTable<W>& table = *plan.tables[2];
  const RowImages& m = plan.images;
  if (table.identity) // W is part of inner
    return m.inner <= capacity ? 1 : 0;
  const auto fits = [&](int64_t pixels) {
    for (int64_t x = 0; x < m.w; x += pixels) {
      const int64_t last = std::min(x + pixels, m.w) - 1;
      if ((table.start[last] + table.count[last] - table.start[x]) * m.inner > capacity)
        return false;
    }
    return true;
  };
  int64_t pixels = std::clamp<int64_t>(capacity / m.inner * m.w / m.src_w, 1, std::min(m.w, most));
  while (pixels > 0 && !fits(pixels))
    pixels -= ceil_div(pixels, 16);
  if (pixels == 0)
    return 0;
  const int64_t tiles = ceil_div(m.w, pixels);
  const int64_t equal = ceil_div(m.w, tiles);
  return fits(equal) ? equal : pixels;
}

template <class W>
int64_t lanes(const ResamplePlan<W>& plan) {
  return std::min<int64_t>(8, kWidestAccess / c10::elementSize(plan.images.dtype));
}

// Threads for a row of src, in whole warps.
template <class W>
int64_t threads_of(const ResamplePlan<W>& plan) {
  const int64_t vectors = plan.images.src_row() / lanes(plan);
  return std::min<int64_t>(round_up(vectors, 32), kMostThreads);
}

// A tile may begin anywhere in the first vector that is loaded for it.
template <class W>
int64_t tile_capacity(const ResamplePlan<W>& plan) {
  return (threads_of(plan) - 1) * lanes(plan) + 1;
}

template <class T, int kSums, class Outputs>
KernelInstances<compute_t<T>> instances() {
  return {sum_rows_kernel<T, kSums, Outputs>, sum_rows_kernel<T, kSums, Outputs>};
}

template <class T, int kSums, class W>
void run(const ResamplePlan<W>& plan) {
  constexpr int kOutputs = std::max(kLanes<T> / 2, 1), kMoreOutputs = (kLanes<T> * 3 + 3) / 4;
  const RowImages& m = plan.images;
  const int64_t threads = threads_of(plan), width = plan.tables[2]->width;
  int64_t pixels = pixels_per_tile(plan, tile_capacity(plan), m.w);
  const bool is_few = width <= kTaps && pixels * m.inner <= kMoreOutputs * threads;
  int64_t tap_bytes = 0;
  if (!is_few) {
    const int64_t most = kMostTapBytes / ManyTaps<W>::bytes(1, width);
    pixels = pixels_per_tile(plan, tile_capacity(plan), most);
    tap_bytes = ManyTaps<W>::bytes(pixels, width);
  }
  const int64_t elements = pixels * m.inner;
  const auto kernel = !is_few          ? instances<T, kSums, ManyTaps<W>>()
      : elements <= kOutputs * threads ? instances<T, kSums, FewTaps<W, kOutputs>>()
                                       : instances<T, kSums, FewTaps<W, kMoreOutputs>>();
  KernelArguments<W> args = make_arguments(plan, ceil_div(m.row(), elements), threads);
  args.elements_per_tile = static_cast<int32_t>(elements);
  const int64_t buffer = shared_position(static_cast<uint32_t>(threads * lanes(plan)));
  const int64_t bytes =
      buffer * sizeof(Shared<W>) + threads * SourceColumns<T>::kSlotBytes + tap_bytes;
  const Slots slots{plan.tables[1]->width, is_few ? kTaps : width, kSums};
  launch_with_tables(plan, kernel, dim3(args.workers), dim3(threads), bytes, args, slots);
}

} // namespace

template <class W>
bool can_sum_rows(const ResamplePlan<W>& plan) {
  const int64_t vector = lanes(plan), half_a_warp = 16;
  const RowImages& m = plan.images;
  return readers_of(plan)->width <= kMostSumsOfRows && m.inner % vector != 0 && m.loads(vector) &&
      m.src_row() % vector == 0 && m.src_row() >= half_a_warp * vector &&
      pixels_per_tile(plan, tile_capacity(plan), m.w) > 0;
}

template <class W>
void sum_rows(const ResamplePlan<W>& plan) {
  dispatch(SummedTypes<W>{}, plan.images.dtype, [&]<class T>(std::type_identity<T>) {
    readers_of(plan)->width <= 2 ? run<T, 2>(plan) : run<T, 4>(plan);
  });
}

template bool can_sum_rows(const ResamplePlan<float>&);
template bool can_sum_rows(const ResamplePlan<double>&);
template void sum_rows(const ResamplePlan<float>&);
template void sum_rows(const ResamplePlan<double>&);

} // namespace torch_dnnl::cuda
