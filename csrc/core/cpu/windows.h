// Windows of a row: permutations of a few neighbouring vectors, which is how elements at irregular
// distances are fetched without a gather instruction.
#pragma once

#include "core/cpu/vectors.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
using IndexRegister = IntegerRegister;
#else
using IndexRegister = Vector<int32_t>; // of no instruction
#endif

// A window of memory, and its elements index[0], index[1], ...
// kVectors vectors: 1, 2 or 4; any number of elements with 0.
template <int kVectors, class E>
class LanesWindow {
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr bool kInRegisters = kVectors > 0;
#elif defined(CPU_CAPABILITY_AVX2)
  static constexpr bool kInRegisters = kVectors > 0 && sizeof(E) <= 4;
#else
  static constexpr bool kInRegisters = false;
#endif
  struct IndexVector {
    IndexRegister lanes;
    IndexVector() = default;
    explicit IndexVector(const int32_t* index) {
#if defined(CPU_CAPABILITY_AVX512)
      if constexpr (sizeof(E) == 8) {
        lanes = _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(index)));
        return;
      }
#endif
      std::memcpy(&lanes, index, sizeof(lanes));
    }
  };

 public:
  // Whether it is loaded; otherwise elements are picked from memory.
  static constexpr bool is_loaded = kInRegisters;
  // The indices of a vector: loaded, where a window is.
  using Index = std::conditional_t<kInRegisters, IndexVector, const int32_t*>;

  explicit LanesWindow(const E* from) : from_(from) {
    if constexpr (kInRegisters)
      for (int v = 0; v < kVectors; v++)
        vectors_[v] = load_lanes<E>(from + v * kLanes<E>);
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

// A window of 16 bytes, and the bytes that index[0], index[1], ... name, as float. It exists where
// an instruction picks bytes.
class ByteWindow {
 public:
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  static constexpr int64_t kBytes = 16;
  // The bytes of an index that name none, and give the zeros above the byte that the lowest names.
  static constexpr int32_t kNone = static_cast<int32_t>(0x80808000);

  struct Index {
    IndexRegister lanes;
    Index() = default;
    explicit Index(const int32_t* index) {
      std::memcpy(&lanes, index, sizeof(lanes));
    }
  };

  explicit ByteWindow(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
#if defined(CPU_CAPABILITY_AVX512)
    bytes_ = _mm512_broadcast_i32x4(bytes);
#else
    bytes_ = _mm256_broadcastsi128_si256(bytes);
#endif
  }

  Lanes<float> pick(Index index) const {
#if defined(CPU_CAPABILITY_AVX512)
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes_, index.lanes));
#else
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes_, index.lanes));
#endif
  }

 private:
  IndexRegister bytes_;
#else
  static constexpr int64_t kBytes = 0;
  static constexpr int32_t kNone = 0;
#endif
};

} // namespace torch_dnnl
