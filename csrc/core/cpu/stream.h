// Stores past the caches, and when they pay. A line that never enters a cache need not be fetched
// to be overwritten, but the next operator has to fetch it from memory.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
// GCC's own header leaves registers undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#endif

namespace torch_dnnl {

// What should be written together, at an address that is a multiple of it.
inline constexpr int64_t kCacheLine = 64;

inline bool is_line(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kCacheLine == 0;
}

// ---- From how many bytes on ----

// Written in order, beside what is read: more than the last cache holds. Below, the next operator
// would have found the result there.
inline constexpr int64_t kStreamedInOrderBytes = int64_t(32) << 20;
// An image of a resampled tensor, which the next operator reads at once: most of the last cache.
inline constexpr int64_t kStreamedImageBytes = int64_t(24) << 20;
// The result of a transpose. Processors fetch badly ahead for stores to many places, so that it and
// a reader after it are faster together from here on, though the last cache holds the result.
inline constexpr int64_t kStreamedTransposeBytes = int64_t(4) << 20;

// ---- Stores ----

// streamed: past the caches; then `to` is aligned to the register.
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
