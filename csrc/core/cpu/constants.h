// Loops and copies whose sizes are constants of the compiler.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace torch_dnnl {

// f(0), ..., f(n - 1), with constants. Vectors are named by constants: of an array that a loop runs
// over the compiler may keep a copy in memory, even if the loop is unrolled.
template <size_t n, class F>
[[gnu::always_inline]] inline void for_constants(const F& f) {
  [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<size_t, i>()), ...);
  }(std::make_index_sequence<n>());
}

// {f(1), ..., f(n)}, with constants: a table of the instances of a template.
template <int n, class F>
constexpr auto table_of(const F& f) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return std::array{f(std::integral_constant<int, i + 1>())...};
  }(std::make_integer_sequence<int, n>());
}

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

} // namespace torch_dnnl
