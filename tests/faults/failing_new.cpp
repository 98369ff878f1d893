// The other memory: what C++ takes by `new`, and what torch, oneDNN in it and its allocator of
// tensors ask the system for. To be loaded before the program, by LD_PRELOAD.
//
// What fails: what the libraries of this project ask for themselves and what torch asks for below
// their kernels. Not what torch asks for elsewhere, as its engine and the destructors of its nodes
// do not survive that.
#include <link.h>
#include <malloc.h>
#include <unwind.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "failing.h"

namespace {

struct Range {
  uintptr_t begin, end;
  bool has_kernels;
};

// Where the code of this project is: of the folder that FAIL_IN names.
struct Libraries {
  Range ranges[16];
  int count = 0;

  Libraries() {
    dl_iterate_phdr(&add, this);
  }

  const Range* find(uintptr_t address) const {
    for (int i = 0; i < count; i++)
      if (address >= ranges[i].begin && address < ranges[i].end)
        return &ranges[i];
    return nullptr;
  }

  static int add(dl_phdr_info* info, size_t /*size*/, void* to) {
    auto& libraries = *static_cast<Libraries*>(to);
    if (std::strstr(info->dlpi_name, std::getenv("FAIL_IN")) == nullptr)
      return 0;
    const bool has_kernels = std::strstr(info->dlpi_name, "/_cpu_") != nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
      const auto& segment = info->dlpi_phdr[i];
      if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0) {
        const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
        libraries.ranges[libraries.count++] = {begin, begin + segment.p_memsz, has_kernels};
      }
    }
    return 0;
  }
};

const Libraries& libraries() {
  static const Libraries all;
  return all;
}

_Unwind_Reason_Code look_at(_Unwind_Context* frame, void* is_below_kernels) {
  const Range* const range = libraries().find(_Unwind_GetIP(frame));
  const bool found = range != nullptr && range->has_kernels;
  *static_cast<bool*>(is_below_kernels) = found;
  return found ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool fails(const void* caller) {
  if (!failing::is_on)
    return false;
  bool is_ours = libraries().find(reinterpret_cast<uintptr_t>(caller)) != nullptr;
  if (!is_ours)
    _Unwind_Backtrace(&look_at, &is_ours);
  return is_ours && failing::fails();
}

void* allocate(size_t size, size_t alignment, const void* caller) {
  size = size == 0 ? 1 : size;
  void* block = nullptr;
  if (!fails(caller))
    block = alignment == 0 ? std::malloc(size) : memalign(alignment, size);
  if (block == nullptr)
    throw std::bad_alloc();
  failing::add(0); // malloc knows a block's size only roughly
  return block;
}

void release(void* block) {
  if (block != nullptr)
    failing::remove(0);
  std::free(block);
}

} // namespace

#define CALLER __builtin_return_address(0)

void* operator new(size_t size) {
  return allocate(size, 0, CALLER);
}
void* operator new[](size_t size) {
  return allocate(size, 0, CALLER);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment), CALLER);
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment), CALLER);
}
void operator delete(void* block) noexcept {
  release(block);
}
void operator delete[](void* block) noexcept {
  release(block);
}
void operator delete(void* block, size_t) noexcept {
  release(block);
}
void operator delete[](void* block, size_t) noexcept {
  release(block);
}
void operator delete(void* block, std::align_val_t) noexcept {
  release(block);
}
void operator delete[](void* block, std::align_val_t) noexcept {
  release(block);
}
void operator delete(void* block, size_t, std::align_val_t) noexcept {
  release(block);
}
void operator delete[](void* block, size_t, std::align_val_t) noexcept {
  release(block);
}

extern "C" int posix_memalign(void** block, size_t alignment, size_t size) noexcept {
  *block = fails(CALLER) ? nullptr : memalign(alignment, size);
  return *block == nullptr ? ENOMEM : 0;
}
