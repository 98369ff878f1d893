// The types of an implicit GEMM, c += a b, and the brgemm of each: oneDNN's, through torch, where
// the CPU has it, and portable loops elsewhere. Integer results are exact.
//
// a: input pixels. b: weights, packed in panels of up to kPanelColumns output channels, the
// columns. A VNNI block is the `vnni` consecutive k of one column that an instruction multiplies at
// once: four bytes, two 16-bit numbers, or one float. A panel interleaves the blocks of nr columns:
// [column / nr][k / vnni][column % nr][k % vnni]. For bytes and nr = 64:
//
//   column 0: k 0-3 | column 1: k 0-3 | ... | column 63: k 0-3 | column 0: k 4-7 | ...
//
// pack_weights.cpp has an explicit instantiation for each type.
#pragma once

#include <ATen/native/CPUBlas.h>

#include <cstdint>
#include <exception>
#include <new>
#include <type_traits>

#include "core/dispatch.h"
#include "core/math.h"

namespace torch_dnnl {

inline constexpr int64_t kPanelColumns = 64; // at most
inline constexpr int64_t kPanelLanes = 16;   // the columns of a panel are a multiple of this

// c[m x n] (+)= a[m x k] b[k x n].
template <class A, class B, class C>
struct GemmCall {
  int64_t m, n, k, lda, ldc;
  const A* a;
  const B* b;
  C* c;
  bool accumulates;

  // Runs oneDNN's kernel, through torch. brgemm generates a kernel for each lda and refuses very
  // large ones, so one row, whose lda means nothing, gets a small lda.
  void brgemm(bool is_vnni) const {
    const int64_t any_lda = m == 1 ? round_up(k, 4) : lda;
    at::native::cpublas::brgemm(m, n, k, any_lda, n, ldc, accumulates, a, b, c, is_vnni);
  }
};

// Whether torch and the CPU can run f, which throws if they cannot. std::bad_alloc says nothing
// about either, so the caller gets it.
template <class F>
bool can_run(const F& f) {
  try {
    f();
    return true;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

// What all types share. Weight: the weights in memory, before packing. kPixelVnni: the channels of
// a pixel are padded with zeros to a multiple of it. kMaxK: the largest k of one GemmCall.
template <
    class AType,
    class BType,
    class CType,
    class WeightType,
    int64_t vnni,
    int64_t pixel_vnni,
    int64_t max_k>
struct GemmTypes {
  using A = AType;
  using B = BType;
  using C = CType;
  using Weight = WeightType;
  using Call = GemmCall<A, B, C>;
  static constexpr int64_t kVnni = vnni;
  static constexpr int64_t kPixelVnni = pixel_vnni;
  static constexpr int64_t kMaxK = max_k;
  static constexpr int64_t kNr = kPanelColumns; // brgemm reads whole panels

  // Frees what brgemm holds for this thread.
  static void release() {}
};

// uint8 x int8. int8 inputs are shifted by 128 to uint8.
struct Int8Gemm : GemmTypes<uint8_t, int8_t, int32_t, int8_t, 4, 1, 512> {
  // k is rounded up to whole VNNI blocks: the rows of b are zero there, and up to three bytes more
  // are read of a. For other k oneDNN generates no AMX kernel, and torch does not notice.
  static void multiply(Call g) {
    g.k = round_up(g.k, kVnni);
    g.brgemm(/*is_vnni=*/true);
  }
  static void release() {
    at::native::cpublas::brgemm_release();
  }
  // Tried once in a process.
  static bool is_supported();
};

// int16 x int16, on every CPU. a: input - zero point. b: widened int8 weights.
struct Int16Gemm : GemmTypes<int16_t, int16_t, int32_t, int8_t, 2, 1, 512> {
  // A few registers of columns meet all rows of a before the next columns. Contiguous, these
  // columns spread over all sets of the first-level cache and stay there.
  static constexpr int64_t kNr = kPanelLanes;

  static void multiply(const Call& g);
};

// T: BFloat16 or Half, accumulated in float32. Padding of a and of b must be zero alike: 0 times
// inf is not 0.
template <class T>
struct Float16Gemm : GemmTypes<T, T, float, T, 2, 2, 256> {
  // By brgemm if is_native(), else widened to float32.
  static void multiply(const GemmCall<T, T, float>& g);
  static void release();
  // Whether the CPU has a dot product of T pairs: a known product is tried once.
  static bool is_native();
  // Whether that instruction is faster than float32 FMAs.
  static bool is_fast();
  // Whether the CPU has AMX for T, many times the rate of vector instructions.
  static bool has_amx();
};

struct Float32Gemm : GemmTypes<float, float, float, float, 1, 1, 128> {
  static void multiply(const Call& g) {
    g.brgemm(/*is_vnni=*/false);
  }
  // Whether brgemm is faster than the kernels of this library: with AVX2, where torch has it.
  static bool is_fast();
};

// Sums of `count` products: of a[i], m rows that are lda apart, and b[i], k rows of a panel.
template <class Gemm>
struct BatchReduceGemm {
  int64_t m, columns, k, lda, count;
  const typename Gemm::A* const* a;
  const typename Gemm::B* const* b;
};

// ---- Executors with register tiles of their own (vnni.h, amx.h), and their tile sizes ----

#if defined(CPU_CAPABILITY_AVX512)
template <class Gemm>
inline constexpr bool kHasRegisterTiles =
    std::is_same_v<Gemm, Int8Gemm> || std::is_same_v<Gemm, Float16Gemm<c10::BFloat16>>;
#else
template <class Gemm>
inline constexpr bool kHasRegisterTiles = false;
#endif

// An AMX tile has 16 rows of 64 bytes.
inline constexpr int64_t kAmxRows = 16, kAmxRowBytes = 64;
inline constexpr int64_t kAmxNr = 2 * kPanelLanes; // columns that two tiles multiply
inline constexpr int64_t kAmxPixels = 128;         // of one GEMM
template <class Gemm>
inline constexpr int64_t kAmxK = kAmxRowBytes / sizeof(typename Gemm::A); // of a tile row
// The k whose weights, of kAmxNr columns, stay in the first-level cache.
template <class Gemm>
inline constexpr int64_t kAmxCachedK = 12 * kAmxK<Gemm>;

// Whether the CPU has AMX, torch uses it, and the system permits it.
bool is_amx_enabled();

template <class Gemm>
bool uses_amx() {
  if constexpr (kHasRegisterTiles<Gemm>)
    return is_amx_enabled();
  return false;
}

// Whether the CPU has the dot products, and no AMX, which is faster. All CPUs with AMX for int8
// have it for bfloat16.
template <class Gemm>
bool uses_vnni() {
#if defined(CPU_CAPABILITY_AVX512)
  using BFloat16Gemm = Float16Gemm<c10::BFloat16>;
  if constexpr (std::is_same_v<Gemm, Int8Gemm>)
    return __builtin_cpu_supports("avx512vnni") && !BFloat16Gemm::has_amx();
  if constexpr (std::is_same_v<Gemm, BFloat16Gemm>)
    return Gemm::is_native() && !Gemm::has_amx();
#endif
  return false;
}

// The rows of a register tile for m rows: of 4 to 6, the number that computes the fewest rows
// twice; 1 for fewer rows.
inline int64_t vnni_mr(int64_t m) {
  int64_t mr = 1;
  for (const int64_t more : {4, 5, 6})
    if (more <= m && (mr == 1 || round_up(m, more) <= round_up(m, mr)))
      mr = more;
  return mr;
}

// The types of tensors that an implicit GEMM convolves in floating point.
using IgemmTypes = TypeList<float, c10::BFloat16, c10::Half>;
template <class T>
using GemmOf = std::conditional_t<std::is_same_v<T, float>, Float32Gemm, Float16Gemm<T>>;

} // namespace torch_dnnl
