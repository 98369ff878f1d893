// Stores, also such that go past the caches. Lines that never enter a cache need not be fetched to
// be overwritten, but the next operator has to fetch them from memory.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
// GCC's own header leaves registers undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#endif

namespace torch_dnnl {

// What is written in order is stored past the caches from so much on that it exceeds the last one.
inline constexpr int64_t kStreamedInOrderBytes = int64_t(32) << 20;
// What should be written together, at an address that is a multiple of it.
inline constexpr int64_t kCacheLine = 64;

inline bool is_line(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kCacheLine == 0;
}

#if defined(__SSE2__)
inline void store(__m128i x, void* to, bool streamed) {
  streamed ? _mm_stream_si128(static_cast<__m128i*>(to), x)
           : _mm_storeu_si128(static_cast<__m128i*>(to), x);
}
#endif
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
inline void store(__m256i x, void* to, bool streamed) {
  streamed ? _mm256_stream_si256(static_cast<__m256i*>(to), x)
           : _mm256_storeu_si256(static_cast<__m256i*>(to), x);
}
#endif
#if defined(CPU_CAPABILITY_AVX512)
inline void store(__m512i x, void* to, bool streamed) {
  streamed ? _mm512_stream_si512(static_cast<__m512i*>(to), x) : _mm512_storeu_si512(to, x);
}
#endif

// Other threads see what was streamed before.
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

} // namespace torch_dnnl
