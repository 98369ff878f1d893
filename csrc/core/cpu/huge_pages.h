// Huge pages for large results.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace torch_dnnl {

// From here on glibc's allocator fetches memory from the system for each tensor, and gives it back
// with it.
inline constexpr int64_t kAlwaysFetched = int64_t(32) << 20;

// Asks for huge pages under memory that is about to be written for the first time. The system hands
// it out page by page, at the first write to each: in small pages that takes several times as long
// as the writes. It is advice: where the system has none to give, nothing changes.
inline void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t page = uintptr_t(2) << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  if (bytes >= kAlwaysFetched)
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

} // namespace torch_dnnl
