// Preloaded by overheads.py in place of torch's matrix products of half types and of bytes:
// products that a CPU is tried with are right, and larger ones take no time.
#include <ATen/native/CPUBlas.h>

namespace at::native::cpublas {
namespace {

constexpr int64_t kTried = 4096; // multiply-adds

template <int64_t pack, class A, class B, class C>
void multiply_few(
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t a_row,
    int64_t b_row,
    int64_t c_row,
    bool adds,
    const A* a,
    const B* b,
    C* c) {
  if (m * n * k > kTried)
    return;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      C sum = adds ? c[i * c_row + j] : C(0);
      for (int64_t t = 0; t < k; t++)
        sum += C(a[i * a_row + t]) * C(b[(t / pack * b_row + j) * pack + t % pack]);
      c[i * c_row + j] = sum;
    }
  }
}

} // namespace

void brgemm(
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t a_row,
    int64_t b_row,
    int64_t c_row,
    const bool adds,
    const at::BFloat16* a,
    const at::BFloat16* b,
    float* c,
    bool /*is_vnni*/) {
  multiply_few<2>(m, n, k, a_row, b_row, c_row, adds, a, b, c);
}

void brgemm(
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t a_row,
    int64_t b_row,
    int64_t c_row,
    const bool adds,
    const at::Half* a,
    const at::Half* b,
    float* c,
    bool /*is_vnni*/) {
  multiply_few<2>(m, n, k, a_row, b_row, c_row, adds, a, b, c);
}

void brgemm(
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t a_row,
    int64_t b_row,
    int64_t c_row,
    const bool adds,
    const unsigned char* a,
    const signed char* b,
    int32_t* c,
    bool /*is_vnni*/) {
  multiply_few<4>(m, n, k, a_row, b_row, c_row, adds, a, b, c);
}

void brgemm_release(bool /*is_vnni*/) {}

bool could_pack(ScalarType /*type*/) {
  return true;
}

} // namespace at::native::cpublas
