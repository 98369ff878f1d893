// The matrix products that convolutions are made of, c += a b: those that oneDNN generates for the
// machine, through torch's brgemm, and those that every machine has. Products of integers are
// exact.
//
// b is in panels of columns, in which `kPack` rows of `kTogether` columns are interleaved:
// [column / kTogether][row / kPack][column % kTogether][row % kPack].
#pragma once

#include <ATen/native/CPUBlas.h>

#include <cstdint>
#include <exception>
#include <new>
#include <type_traits>

#include "core/dispatch.h"
#include "core/math.h"

namespace torch_dnnl {

inline constexpr int64_t kProductColumns = 64; // of a panel, at most
inline constexpr int64_t kProductLanes = 16;   // a panel's columns are a multiple of this
// Bytes of a panel's rows that stay in the first-level cache while they are multiplied.
inline constexpr int64_t kPanelBytes = 32 * 1024;

// c[m x n] (+)= a[m x k] b[k x n], rows of a and c at a distance.
template <class A, class B, class C>
struct Product {
  int64_t m, n, k, a_row, c_row;
  const A* a;
  const B* b;
  C* c;
  bool adds; // to c

  // brgemm makes a kernel for each distance, and none for the largest: of one row it may be any.
  int64_t brgemm_row() const {
    return m == 1 ? round_up(k, 4) : a_row;
  }
};

// Whether torch and the machine can do what f tries, which throws where they cannot. That memory is
// wanting says nothing about them: who asks again may get an answer.
template <class F>
bool can_do(const F& f) {
  try {
    f();
    return true;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

// What the products of a kind have in common. Weight: the type of weights in memory. kPixelPack:
// the channels of a pixel are filled up with zeros to a multiple of it. kTogether: a whole panel,
// as brgemm takes it, unless a kind has another number.
template <class A, class B, class C, class W, int64_t pack, int64_t pixel_pack, int64_t depth>
struct ProductTypes {
  using Left = A;
  using Right = B;
  using Sum = C;
  using Weight = W;
  using Arguments = Product<A, B, C>;
  static constexpr int64_t kPack = pack;
  static constexpr int64_t kPixelPack = pixel_pack;
  static constexpr int64_t kDepth = depth; // terms of a sum that a product takes, at most
  static constexpr int64_t kTogether = kProductColumns;

  // What a thread holds between products is given back.
  static void release() {}
};

// Unsigned bytes by signed ones. What is signed in memory is 128 more in `Left`.
struct ByteProducts : ProductTypes<uint8_t, int8_t, int32_t, int8_t, 4, 1, 512> {
  // Rows of b are zero up to a multiple of four, so that up to three bytes more may be read of a.
  // For other numbers of rows oneDNN makes no kernel for matrix units, and torch runs what is not
  // there.
  static void multiply(const Arguments& p) {
    at::native::cpublas::brgemm(
        p.m,
        p.n,
        round_up(p.k, kPack),
        p.brgemm_row(),
        p.n,
        p.c_row,
        p.adds,
        p.a,
        p.b,
        p.c,
        /*is_vnni=*/true);
  }
  static void release() {
    at::native::cpublas::brgemm_release();
  }
  // Whether the machine has such products: they are tried once.
  static bool are_supported();
};

// Differences from the zero point, of 16 bits, by bytes that are widened to 16 bits.
struct PairProducts : ProductTypes<int16_t, int16_t, int32_t, int8_t, 2, 1, 512> {
  // The columns of few registers are multiplied with all rows of a before the next ones. Next to
  // each other they fill all sets of the first-level cache, and stay there.
  static constexpr int64_t kTogether = kProductLanes;

  static void multiply(const Arguments& p);
};

// T: BFloat16 or Half; sums are of float32. A row of b is zero where a pixel has no channel, and
// such pads have to be zero as well: 0 times what is not finite is not 0.
template <class T>
struct HalfProducts : ProductTypes<T, T, float, T, 2, 2, 256> {
  // By instructions of the machine where it has them, else one by one.
  static void multiply(const Product<T, T, float>& p);
  static void release();
  // Whether the machine multiplies pairs of T in one instruction: known sums are tried once.
  static bool are_native();
  // Whether such an instruction takes less than those of float32 for as many products.
  static bool are_fast();
  // Whether it has a matrix unit for them: many times the rate of other instructions.
  static bool have_tiles();
};

struct FloatProducts : ProductTypes<float, float, float, float, 1, 1, 128> {
  static void multiply(const Arguments& p) {
    at::native::cpublas::brgemm(
        p.m, p.n, p.k, p.brgemm_row(), p.n, p.c_row, p.adds, p.a, p.b, p.c, /*is_vnni=*/false);
  }
  // Whether torch's products take less time than ours: with AVX2, where they are there.
  static bool are_fast();
};

// Sums of rows of outputs and of a panel: [row][pixel][kProductColumns].
template <class Sum>
struct PanelSums {
  Sum* data;
  int64_t group, panel, pixels; // of a row
  int64_t pitch;                // pixels from a row to the next

  Sum* at(int64_t row, int64_t pixel = 0) const {
    return data + (row * pitch + pixel) * kProductColumns;
  }
};

// The types whose convolutions are computed with these products.
using BrgemmTypes = TypeList<float, c10::BFloat16, c10::Half>;
template <class T>
using ProductsOf = std::conditional_t<std::is_same_v<T, float>, FloatProducts, HalfProducts<T>>;

} // namespace torch_dnnl
