// Packs: a few neighbouring elements of the destination that one thread computes together, from the
// source's bytes to the destination's.
//
// Types are known at run time only. A switch over them per pack is a branch that all threads take
// alike, so the kernels are compiled once for each size of a pack and not for each pair of types.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/cuda/launch.h"
#include "core/cuda/vector.h"
#include "reorder/cuda/kernels.h"
#include "reorder/cuda/quotients.h"

namespace torch_dnnl::reorder_cuda {

using namespace reorder_arrays;
using boxes::Offsets;

// The bytes of a pack on their way from one place to another.
struct alignas(cuda::kWidestAccess) RawPack {
  uint32_t words[4];
};

template <int bytes>
using Bytes = cuda::Vector<
    std::conditional_t<bytes >= 4, uint32_t, std::conditional_t<bytes == 2, uint16_t, uint8_t>>,
    bytes >= 4 ? bytes / 4 : 1>;

// f(std::integral_constant<int, bytes>) for 1, 2, 4, 8 or 16 bytes.
template <class F>
__device__ __forceinline__ void with_bytes(int bytes, const F& f) {
  [&]<int... sizes>(std::integer_sequence<int, sizes...>) {
    ((bytes == sizes && (f(std::integral_constant<int, sizes>{}), true)) || ...);
  }(std::integer_sequence<int, 1, 2, 4, 8, 16>{});
}

template <int bytes>
__device__ __forceinline__ void copy_bytes(void* to, const void* from) {
  *static_cast<Bytes<bytes>*>(to) = *static_cast<const Bytes<bytes>*>(from);
}

// What a kernel knows of the arithmetic and the types. C: float, double or int32_t.
template <class C>
struct PackArgs {
  struct Operand {
    bool present;
    c10::ScalarType dtype;
    const void* data; // null: `number`
    C number;
  };
  c10::ScalarType src_dtype, dst_dtype;
  int src_size, dst_size;
  const char* src;
  char* dst;
  Operand operand[kOperands];
  C beta;
  bool round_before_zero_point;
  bool has_tensors = false; // beside src and dst

  explicit PackArgs(const ReorderProblem& p)
      : src_dtype(p.src_dtype),
        dst_dtype(p.dst_dtype),
        src_size(static_cast<int>(c10::elementSize(p.src_dtype))),
        dst_size(static_cast<int>(c10::elementSize(p.dst_dtype))),
        src(static_cast<const char*>(p.src)),
        dst(static_cast<char*>(p.dst)),
        beta(static_cast<C>(p.beta)),
        round_before_zero_point(p.round_before_zero_point) {
    for (int array = 0; array < kOperands; array++) {
      const ReorderProblem::Operand& from = p.operand[array];
      operand[array] = {from.present, from.dtype, from.data, static_cast<C>(from.number)};
      has_tensors |= from.data != nullptr;
    }
  }
};

// Where a pack begins in every array, and how far its elements are from each other there.
struct PackPosition {
  Offsets at;
  const Offsets* step;
};

__device__ __forceinline__ void
add_steps(Offsets& at, uint32_t count, const Offsets& stride, bool has_tensors) {
  at[kSrc] += count * stride[kSrc];
  at[kDst] += count * stride[kDst];
  if (has_tensors)
    for (int array = 0; array < kOperands; array++)
      at[array] += count * stride[array];
}

// Reads what belongs to the first `count` elements of a pack.
template <class C>
struct PackOperands {
  const PackArgs<C>& args;
  const PackPosition& position;
  int count;

  template <int n>
  __device__ __forceinline__ void operator()(Array array, C (&value)[n]) const {
    const typename PackArgs<C>::Operand& operand = args.operand[array];
    const int64_t step = (*position.step)[array];
    if (operand.data == nullptr) {
      for (int k = 0; k < n; k++)
        value[k] = operand.number;
      return;
    }
    with_type(operand.dtype, [&](auto tag) {
      const auto* from = static_cast<const decltype(tag)*>(operand.data) + position.at[array];
      if (step == 0) {
        const C same = widened<C>(*from);
        for (int k = 0; k < n; k++)
          value[k] = same;
        return;
      }
      for (int k = 0; k < n; k++)
        value[k] = k < count ? widened<C>(from[k * step]) : C(1);
    });
  }

  template <int n>
  __device__ __forceinline__ void divide(C (&value)[n]) const
    requires(std::is_same_v<C, float> && n >= 8)
  {
    C scale[n];
    (*this)(kDstScale, scale);
    if (args.operand[kDstScale].data == nullptr || (*position.step)[kDstScale] == 0)
      Quotients(scale[0]).divide(value);
    else
      for (int k = 0; k < n; k++)
        value[k] = value[k] / scale[k];
  }
};

// Elements that follow each other, in accesses of at most 16 bytes. `count`: those that there are.
template <class T, int n>
struct Elements {
  static constexpr int kWidth = std::min<int>(n, cuda::kWidestAccess / sizeof(T));
  cuda::Vector<T, kWidth> part[n / kWidth];

  __device__ __forceinline__ T& at(int k) {
    return part[k / kWidth].at[k % kWidth];
  }

  __device__ __forceinline__ void load(const T* from, int count) {
    if (count == n) {
      for (int i = 0; i < n / kWidth; i++)
        part[i] = cuda::load_vector<kWidth>(from + i * kWidth);
      return;
    }
    for (int k = 0; k < n; k++)
      at(k) = k < count ? from[k] : T(0);
  }

  __device__ __forceinline__ void store(T* to, int count) {
    if (count == n) {
      for (int i = 0; i < n / kWidth; i++)
        cuda::store_vector(to + i * kWidth, part[i]);
      return;
    }
    for (int k = 0; k < n; k++)
      if (k < count)
        to[k] = at(k);
  }
};

// Elements that are computed with.
template <class C, int n>
class ConvertedPack {
 public:
  static constexpr int kElements = n;
  using Args = PackArgs<C>;

  // Elements that follow each other.
  __device__ __forceinline__ void widen(const RawPack& raw, c10::ScalarType dtype) {
    with_type(dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (sizeof(T) * n <= sizeof(RawPack)) {
        T elements[n];
        std::memcpy(elements, &raw, sizeof(elements));
        for (int k = 0; k < n; k++)
          value_[k] = widened<C>(elements[k]);
      }
    });
  }

  // Elements `step` bytes apart in shared memory.
  __device__ __forceinline__ void gather(const char* from, uint32_t step, c10::ScalarType dtype) {
    with_type(dtype, [&](auto tag) {
      for (int k = 0; k < n; k++)
        value_[k] = widened<C>(*reinterpret_cast<const decltype(tag)*>(from + k * step));
    });
  }

  __device__ __forceinline__ void compute(const Args& args, const PackPosition& at, int count) {
    if constexpr (!std::is_integral_v<C>) {
      const PackOperands<C> operands{args, at, count};
      scale_values(args, value_, operands);
      shift_values(args, value_, operands);
    }
  }

  __device__ __forceinline__ void store(char* to, c10::ScalarType dtype, int count) const {
    with_type(dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (sizeof(T) * n <= sizeof(RawPack)) {
        Elements<T, n> pack;
        for (int k = 0; k < n; k++)
          pack.at(k) = convert<T>(canonical_nan(value_[k]));
        pack.store(reinterpret_cast<T*>(to), count);
      }
    });
  }

 private:
  C value_[n] = {};
};

// Elements, or words of several, that are only moved. T: an unsigned integer or a vector of them.
template <class T, int n>
class MovedPack {
 public:
  static constexpr int kElements = n;
  using Args = PackArgs<int32_t>;

  __device__ __forceinline__ void widen(const RawPack& raw, c10::ScalarType) {
    std::memcpy(&value_, &raw, sizeof(value_));
  }

  __device__ __forceinline__ void gather(const char* from, uint32_t step, c10::ScalarType) {
    cuda::Vector<T, n> elements;
    for (int k = 0; k < n; k++)
      elements.at[k] = *reinterpret_cast<const T*>(from + k * step);
    value_.set(elements);
  }

  __device__ __forceinline__ void compute(const Args&, const PackPosition&, int) {}

  __device__ __forceinline__ void store(char* address, c10::ScalarType, int count) const {
    T* const to = reinterpret_cast<T*>(address);
    if (count == n) {
      value_.store(to);
      return;
    }
    const cuda::Vector<T, n> elements = value_.get();
    for (int k = 0; k < n; k++)
      if (k < count)
        to[k] = elements.at[k];
  }

 private:
  cuda::PackedVector<T, n> value_;
};

// The largest power of two that divides all that was added, up to `widest`.
class Alignment {
 public:
  explicit Alignment(uint64_t widest) : bits_(widest) {}

  // Of all that lies along the innermost axis of an array of a box.
  Alignment(const boxes::Box& box, boxes::Array array, const void* data, int64_t element_size)
      : bits_(cuda::kWidestAccess) {
    add(data);
    add(box.offset[array] * element_size);
    for (size_t a = 0; a + 1 < box.axes.size(); a++)
      add(box.axes[a].stride[array] * element_size);
    const boxes::Axis& inner = box.axes.back();
    if (inner.extent > 1 && inner.stride[array] != 1)
      add(element_size);
  }

  void add(int64_t bytes) {
    bits_ |= static_cast<uint64_t>(bytes);
  }
  void add(const void* address) {
    bits_ |= reinterpret_cast<uintptr_t>(address);
  }
  int bytes() const {
    return static_cast<int>(bits_ & -bits_);
  }

 private:
  uint64_t bits_;
};

// Calls launch(std::integral_constant<int, width>) for the widest of these packs that have at most
// `most` elements, or one.
template <int... widths, class F>
void with_widest(int most, const F& launch) {
  const bool found =
      ((std::max(most, 1) >= widths && (launch(std::integral_constant<int, widths>{}), true)) ||
       ...);
  TORCH_INTERNAL_ASSERT(found);
}

} // namespace torch_dnnl::reorder_cuda
