// Vectors of a row: loads that widen to the computing type, stores that round, and a
// permutation of a window of memory, which is how neighbours at irregular distances
// are fetched without a gather instruction.
//
// Vectors are ATen's, as wide as the instruction set that a library is compiled for.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/numeric.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#include <immintrin.h>
#endif

namespace torch_dnnl {

// The elements of a row as they are held in registers: float and double to compute with, or
// unsigned integers of 1 to 8 bytes to move whatever they stand for.
template <class E>
using Lanes = std::conditional_t<
    sizeof(E) == 8,
    at::vec::Vectorized<double>,
    at::vec::Vectorized<float>>; // narrower elements lie in 32 bits each

template <class E>
inline constexpr int64_t kLanes = Lanes<E>::size();

namespace lanes_detail {

template <class E>
using Bits = std::conditional_t<sizeof(E) == 8, uint64_t, uint32_t>;

// n elements, at most `most`: in two pieces of constant size that may overlap, which is faster than
// a call of memcpy.
template <int64_t most, class T>
inline void copy_part(T* to, const T* from, int64_t n) {
  constexpr int64_t piece = most / 2;
  if constexpr (piece == 0) {
    if (n > 0)
      *to = *from;
  } else if (n >= piece) {
    T first[piece], last[piece];
    std::memcpy(first, from, sizeof(first));
    std::memcpy(last, from + n - piece, sizeof(last));
    std::memcpy(to, first, sizeof(first));
    std::memcpy(to + n - piece, last, sizeof(last));
  } else {
    copy_part<piece>(to, from, n);
  }
}

} // namespace lanes_detail

// ---- loads: T in memory, E in registers ----

template <class E, class T>
inline Lanes<E> load_lanes(const T* from) {
  constexpr int64_t n = kLanes<E>;
  if constexpr (
      sizeof(T) == sizeof(E) && sizeof(E) >= 4 && (std::is_same_v<T, E> || std::is_unsigned_v<E>)) {
    return Lanes<E>::loadu(from);
  } else if constexpr (std::is_same_v<E, float> && c10::is_reduced_floating_point_v<T>) {
    Lanes<float> wide;
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
      at::vec::load_fp32_from_bf16(from, wide);
    } else {
      at::vec::load_fp32_from_fp16(from, wide);
    }
    return wide;
#if defined(CPU_CAPABILITY_AVX512)
  } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 2) {
    __m512i wide;
    if constexpr (sizeof(T) == 1) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      wide = std::is_signed_v<T> ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
    } else {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      wide = std::is_signed_v<T> ? _mm512_cvtepi16_epi32(words) : _mm512_cvtepu16_epi32(words);
    }
    return std::is_same_v<E, float> ? _mm512_cvtepi32_ps(wide) : _mm512_castsi512_ps(wide);
#elif defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 2) {
    __m256i wide;
    if constexpr (sizeof(T) == 1) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
      wide = std::is_signed_v<T> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
    } else {
      const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      wide = std::is_signed_v<T> ? _mm256_cvtepi16_epi32(words) : _mm256_cvtepu16_epi32(words);
    }
    return std::is_same_v<E, float> ? _mm256_cvtepi32_ps(wide) : _mm256_castsi256_ps(wide);
#endif
  } else if constexpr (std::is_unsigned_v<E>) {
    lanes_detail::Bits<E> bits[n];
    for (int64_t i = 0; i < n; i++)
      bits[i] = from[i];
    return Lanes<E>::loadu(bits);
  } else {
    E wide[n];
    for (int64_t i = 0; i < n; i++)
      wide[i] = static_cast<E>(from[i]);
    return Lanes<E>::loadu(wide);
  }
}

// The first n elements; nothing is read beyond them.
template <class E, class T>
inline Lanes<E> load_lanes(const T* from, int64_t n) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, E> && sizeof(E) >= 4)
    return Lanes<E>::loadu(from, n);
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, E> && std::is_same_v<E, float>) {
    alignas(32) static constexpr int32_t first[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const auto* mask = reinterpret_cast<const __m256i*>(first + 8 - n);
    return _mm256_maskload_ps(from, _mm256_loadu_si256(mask));
  }
#endif
  alignas(64) T part[kLanes<E>] = {};
  lanes_detail::copy_part<kLanes<E>>(part, from, n);
  return load_lanes<E, T>(part);
}

template <class E>
inline Lanes<E> broadcast_lanes(E value) {
  if constexpr (!std::is_unsigned_v<E>)
    return Lanes<E>(value);
  typename Lanes<E>::value_type lane;
  const lanes_detail::Bits<E> bits = value;
  std::memcpy(&lane, &bits, sizeof(bits));
  return Lanes<E>(lane);
}

// ---- stores: E in registers, U in memory ----

template <class E, class U>
inline void store_lanes(U* to, const Lanes<E>& lanes) {
  constexpr int64_t n = kLanes<E>;
  if constexpr (
      sizeof(U) == sizeof(E) && sizeof(E) >= 4 && (std::is_same_v<U, E> || std::is_unsigned_v<E>)) {
    lanes.store(to);
#if defined(CPU_CAPABILITY_AVX512)
  } else if constexpr (std::is_same_v<E, float> && std::is_same_v<U, c10::BFloat16>) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), at::vec::cvtfp32_bf16(lanes));
  } else if constexpr (std::is_same_v<E, float> && std::is_same_v<U, c10::Half>) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), at::vec::cvtfp32_fp16(lanes));
  } else if constexpr (sizeof(E) <= 4 && std::is_integral_v<U> && sizeof(U) <= 2) {
    __m512i integers = _mm512_castps_si512(lanes);
    if constexpr (std::is_same_v<E, float>) {
      // max gives its second operand, 0, for NaN where 0 is the least value; elsewhere NaN is
      // made 0 first. The conversion rounds to nearest even.
      constexpr float low = std::numeric_limits<U>::min(), high = std::numeric_limits<U>::max();
      __m512 x = lanes;
      if constexpr (low != 0)
        x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
      x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(low)), _mm512_set1_ps(high));
      integers = _mm512_cvtps_epi32(x);
    }
    if constexpr (sizeof(U) == 1) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(integers));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(integers));
    }
#elif defined(CPU_CAPABILITY_AVX2)
  } else if constexpr (std::is_same_v<E, float> && std::is_same_v<U, c10::BFloat16>) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), at::vec::cvtfp32_bf16(lanes));
  } else if constexpr (std::is_same_v<E, float> && std::is_same_v<U, c10::Half>) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), at::vec::cvtfp32_fp16(lanes));
  } else if constexpr (sizeof(E) <= 4 && std::is_integral_v<U> && sizeof(U) <= 2) {
    __m256i integers = _mm256_castps_si256(lanes);
    if constexpr (std::is_same_v<E, float>) {
      constexpr float low = std::numeric_limits<U>::min(), high = std::numeric_limits<U>::max();
      const __m256 x = _mm256_and_ps(lanes, _mm256_cmp_ps(lanes, lanes, _CMP_ORD_Q));
      integers = _mm256_cvtps_epi32(
          _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(low)), _mm256_set1_ps(high)));
    }
    // The low bytes of each element, brought together in either half, then the two halves.
    const char skip = static_cast<char>(0x80);
    if constexpr (sizeof(U) == 1) {
      const __m256i order = _mm256_setr_epi8(
          // clang-format off
          0, 4, 8, 12, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip, skip,
          skip, skip, skip, skip, 0, 4, 8, 12, skip, skip, skip, skip, skip, skip, skip, skip);
      // clang-format on
      const __m256i bytes = _mm256_shuffle_epi8(integers, order);
      _mm_storel_epi64(
          reinterpret_cast<__m128i*>(to),
          _mm_or_si128(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
    } else {
      const __m256i order = _mm256_setr_epi8(
          // clang-format off
          0, 1, 4, 5, 8, 9, 12, 13, skip, skip, skip, skip, skip, skip, skip, skip,
          skip, skip, skip, skip, skip, skip, skip, skip, 0, 1, 4, 5, 8, 9, 12, 13);
      // clang-format on
      const __m256i words = _mm256_shuffle_epi8(integers, order);
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(to),
          _mm_or_si128(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
#endif
  } else if constexpr (std::is_unsigned_v<E>) {
    lanes_detail::Bits<E> bits[n];
    lanes.store(bits);
    for (int64_t i = 0; i < n; i++)
      to[i] = static_cast<U>(bits[i]);
  } else {
    E wide[n];
    lanes.store(wide);
    for (int64_t i = 0; i < n; i++)
      to[i] = convert<U>(wide[i]);
  }
}

// The first n lanes; nothing is written beyond them.
template <class E, class U>
inline void store_lanes(U* to, const Lanes<E>& lanes, int64_t n) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (sizeof(U) == sizeof(E) && sizeof(E) >= 4 && std::is_same_v<U, E>) {
    if constexpr (std::is_floating_point_v<E>)
      return lanes.store(to, static_cast<int>(n));
  }
#endif
  alignas(64) U part[kLanes<E>];
  store_lanes<E, U>(part, lanes);
  lanes_detail::copy_part<kLanes<E>>(to, part, n);
}

// Past the caches, where the memory is aligned to a vector: for images that no cache would keep.
// Other threads see the stores after end_of_stream().
template <class E, class U>
inline void stream_lanes(U* to, const Lanes<E>& lanes) {
#if defined(CPU_CAPABILITY_AVX512)
  if (sizeof(U) == sizeof(E) && sizeof(E) >= 4 && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
    if constexpr (sizeof(E) == 8) {
      _mm512_stream_pd(reinterpret_cast<double*>(to), lanes);
    } else {
      _mm512_stream_ps(reinterpret_cast<float*>(to), lanes);
    }
    return;
  }
#elif defined(CPU_CAPABILITY_AVX2)
  if (sizeof(U) == sizeof(E) && sizeof(E) >= 4 && reinterpret_cast<uintptr_t>(to) % 32 == 0) {
    if constexpr (sizeof(E) == 8) {
      _mm256_stream_pd(reinterpret_cast<double*>(to), lanes);
    } else {
      _mm256_stream_ps(reinterpret_cast<float*>(to), lanes);
    }
    return;
  }
#endif
  store_lanes<E>(to, lanes);
}

inline void end_of_stream() {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  _mm_sfence();
#endif
}

// ---- windows of memory, and their elements index[0], index[1], ... ----

// kVectors vectors: 1, 2 or 4; any number of elements with 0.
template <int kVectors, class E>
class LanesWindow {
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr bool kInRegisters = kVectors > 0;
  struct IndexVector {
    __m512i lanes;
    IndexVector() = default;
    explicit IndexVector(const int32_t* index) {
      if constexpr (sizeof(E) == 8) {
        lanes = _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(index)));
      } else {
        lanes = _mm512_loadu_si512(index);
      }
    }
  };
#elif defined(CPU_CAPABILITY_AVX2)
  static constexpr bool kInRegisters = kVectors > 0 && sizeof(E) <= 4;
  struct IndexVector {
    __m256i lanes;
    IndexVector() = default;
    explicit IndexVector(const int32_t* index)
        : lanes(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(index))) {}
  };
#else
  static constexpr bool kInRegisters = false;
  struct IndexVector {};
#endif

 public:
  // Whether it is loaded; otherwise elements are picked from memory.
  static constexpr bool is_loaded = kInRegisters;
  // The indices of a vector: loaded, where a window is.
  using Index = std::conditional_t<kInRegisters, IndexVector, const int32_t*>;

  explicit LanesWindow(const E* from) : from_(from) {
    if constexpr (kInRegisters) {
      for (int v = 0; v < kVectors; v++)
        vectors_[v] = load_lanes<E>(from + v * kLanes<E>);
    }
  }

  // If is_loaded. load(i): the vector of elements from i on, which are nowhere in memory.
  template <class Load>
  LanesWindow(const Load& load, int64_t from) : from_(nullptr) {
    for (int v = 0; v < kVectors; v++)
      vectors_[v] = load(from + v * kLanes<E>);
  }

  Lanes<E> pick(Index index) const {
    if constexpr (kInRegisters) {
      return this->permute(index.lanes);
    } else {
      using Element = std::conditional_t<(sizeof(E) < 4), uint32_t, E>;
      Element elements[kLanes<E>];
      for (int64_t i = 0; i < kLanes<E>; i++)
        elements[i] = from_[index[i]];
      return Lanes<E>::loadu(elements);
    }
  }

 private:
#if defined(CPU_CAPABILITY_AVX512)
  Lanes<E> permute(__m512i at) const {
    if constexpr (sizeof(E) == 8) {
      if constexpr (kVectors == 1)
        return _mm512_permutexvar_pd(at, vectors_[0]);
      const auto of_two = [&](int v) {
        return _mm512_permutex2var_pd(vectors_[v], at, vectors_[v + 1]);
      };
      if constexpr (kVectors == 2)
        return of_two(0);
      if constexpr (kVectors == 4)
        return _mm512_mask_blend_pd(
            _mm512_test_epi64_mask(at, _mm512_set1_epi64(16)), of_two(0), of_two(2));
    } else {
      if constexpr (kVectors == 1)
        return _mm512_permutexvar_ps(at, vectors_[0]);
      const auto of_two = [&](int v) {
        return _mm512_permutex2var_ps(vectors_[v], at, vectors_[v + 1]);
      };
      if constexpr (kVectors == 2)
        return of_two(0);
      if constexpr (kVectors == 4)
        return _mm512_mask_blend_ps(
            _mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), of_two(0), of_two(2));
    }
  }
#elif defined(CPU_CAPABILITY_AVX2)
  Lanes<E> permute(__m256i at) const {
    // An instruction picks from one vector, by the low three bits of an index. The bits above
    // them, moved to the sign, choose between the results.
    const auto of_one = [&](int v) { return _mm256_permutevar8x32_ps(vectors_[v], at); };
    const auto of_two = [&](int v) {
      const __m256i high = _mm256_slli_epi32(at, 28);
      return _mm256_blendv_ps(of_one(v), of_one(v + 1), _mm256_castsi256_ps(high));
    };
    if constexpr (kVectors == 1) {
      return of_one(0);
    } else if constexpr (kVectors == 2) {
      return of_two(0);
    } else {
      const __m256i high = _mm256_slli_epi32(at, 27);
      return _mm256_blendv_ps(of_two(0), of_two(2), _mm256_castsi256_ps(high));
    }
  }
#endif

  const E* from_;
  Lanes<E> vectors_[kInRegisters ? kVectors : 1];
};

// ---- a window of 16 bytes, and those that index[0], index[1], ... name, as float ----

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

class ByteWindow {
 public:
  static constexpr int64_t kBytes = 16;
  // The bytes of an index that name none, and give the zeros above the byte that the lowest names.
  static constexpr int32_t kNone = static_cast<int32_t>(0x80808000);

#if defined(CPU_CAPABILITY_AVX512)
  struct Index {
    __m512i lanes;
    Index() = default;
    explicit Index(const int32_t* index) : lanes(_mm512_loadu_si512(index)) {}
  };
  explicit ByteWindow(const uint8_t* from)
      : bytes_(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))) {}

  Lanes<float> pick(Index index) const {
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes_, index.lanes));
  }

 private:
  __m512i bytes_;
#else
  struct Index {
    __m256i lanes;
    Index() = default;
    explicit Index(const int32_t* index)
        : lanes(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(index))) {}
  };
  explicit ByteWindow(const uint8_t* from)
      : bytes_(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))) {}

  Lanes<float> pick(Index index) const {
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes_, index.lanes));
  }

 private:
  __m256i bytes_;
#endif
};

#else

// An instruction set without such a permutation.
class ByteWindow {
 public:
  static constexpr int64_t kBytes = 0;
  static constexpr int32_t kNone = 0;
};

#endif

// ---- runs ----

// n elements that lie next to each other, in the type that they are computed with.
template <class E, class T>
inline void widen(const T* from, int64_t n, E* to) {
  if constexpr (std::is_same_v<T, E>) {
    std::memcpy(to, from, n * sizeof(E));
  } else {
    if (n < kLanes<E>)
      return load_lanes<E>(from, n).store(to, n);
    for (int64_t i = 0; i < n; i += kLanes<E>) {
      const int64_t at = std::min(i, n - kLanes<E>);
      load_lanes<E>(from + at).store(to + at);
    }
  }
}

} // namespace torch_dnnl
