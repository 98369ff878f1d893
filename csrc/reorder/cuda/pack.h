// Packs: a few neighbouring elements of the destination that one thread computes together, from the
// source's bytes to the destination's.
//
// Types are known at run time only. A switch over them per pack is a branch that all threads take
// alike, so the kernels are compiled once for each size of a pack and not for each pair of types.
#pragma once

#include <cstring>

#include "core/cuda/launch.h"
#include "core/cuda/vector.h"
#include "reorder/box.h"
#include "reorder/problem.h"
#include "reorder/reference.h"

namespace torch_dnnl::reorder_cuda {

using namespace reorder_arrays;

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
  switch (bytes) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 8:
      return f(std::integral_constant<int, 8>{});
    default:
      return f(std::integral_constant<int, 16>{});
  }
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
  int64_t at[kArrays];
  const int64_t* step;
};

// Reads what belongs to the first `count` elements of a pack.
template <class C>
struct PackOperands {
  const PackArgs<C>& args;
  const PackPosition& position;
  int count;

  template <int n>
  __device__ __forceinline__ void operator()(Array array, C (&value)[n]) const {
    const typename PackArgs<C>::Operand& operand = args.operand[array];
    const int64_t step = position.step[array];
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
};

// The first `count` elements of a vector.
template <class T, int n>
__device__ __forceinline__ void store_part(T* to, const cuda::Vector<T, n>& vector, int count) {
  if (count == n) {
    cuda::store_vector(to, vector);
    return;
  }
  for (int k = 0; k < n; k++)
    if (k < count)
      to[k] = vector.at[k];
}

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
        cuda::Vector<T, n> pack;
        for (int k = 0; k < n; k++)
          pack.at[k] = convert<T>(canonical_nan(value_[k]));
        store_part(reinterpret_cast<T*>(to), pack, count);
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
    std::memcpy(value_.at, &raw, sizeof(value_.at));
  }

  __device__ __forceinline__ void gather(const char* from, uint32_t step, c10::ScalarType) {
    for (int k = 0; k < n; k++)
      value_.at[k] = *reinterpret_cast<const T*>(from + k * step);
  }

  __device__ __forceinline__ void compute(const Args&, const PackPosition&, int) {}

  __device__ __forceinline__ void store(char* to, c10::ScalarType, int count) const {
    store_part(reinterpret_cast<T*>(to), value_, count);
  }

 private:
  cuda::Vector<T, n> value_ = {};
};

} // namespace torch_dnnl::reorder_cuda
