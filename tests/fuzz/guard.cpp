// Guards memory: while this is on, each allocation of the process lies between two pages that
// cannot be touched, is filled with bytes that are NaN in every floating type, and its addresses
// are not used again for a long time. An access outside stops the process and says which allocation
// it missed, and so does one after the memory is freed.
//
// LD_PRELOAD puts these functions in the place of the C library's. Everything goes through them:
// tensors and scratch memory (posix_memalign), and what C++ allocates (malloc). While the guard is
// off, they are the C library's.
//
// Pages come from one reserved region, one after another and round again, so that an address tells
// whose memory it is. Where alignment leaves some bytes between an allocation and its page's end,
// these are checked when it is freed.

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kRegion = size_t(16) << 30;
constexpr size_t kPages = kRegion / kPage;
constexpr int kPoison = 0xff; // NaN in every floating type, -1 in signed integers

struct Allocation {
  uint32_t pages; // of the data; 0 where none begins
  uint32_t begin; // of the data, in the first page
  uint64_t size;
};

char* region = nullptr;
Allocation* allocations = nullptr; // by first page
size_t next_page = 0;
volatile int placement = 0; // 0: off, 1: the end of the data is the end of a page, 2: the beginning
unsigned long guarded = 0;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

bool is_ours(const void* p) {
  return region != nullptr && p >= region && p < region + kRegion;
}

void say(const char* text) {
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text, strlen(text));
}

[[noreturn]] void stop(const char* text) {
  say(text);
  abort();
}

// The first page of `count` free ones with a free one before and behind them; 0 if there are none.
// Pages that were freed last come up last.
size_t find_pages(size_t count) {
  size_t page = next_page, scanned = 0, run = 0;
  while (scanned < 2 * kPages) {
    if (page >= kPages)
      page = 0, run = 0;
    const size_t taken = allocations[page].pages;
    if (taken != 0) {
      page += taken, scanned += taken, run = 0;
      continue;
    }
    page++, scanned++;
    if (++run == count + 2) {
      next_page = page - 1; // the page behind is the one before the next allocation
      return page - 1 - count;
    }
  }
  return 0;
}

size_t first_page_of(const void* p) {
  size_t page = (static_cast<const char*>(p) - region) / kPage;
  while (page > 0 && allocations[page].pages == 0)
    page--;
  return page;
}

// Whether the bytes beside the data, in its pages, are as they were.
bool is_intact(size_t page) {
  const Allocation& a = allocations[page];
  const auto* pages = reinterpret_cast<const unsigned char*>(region + page * kPage);
  for (size_t i = 0; i < a.begin; i++)
    if (pages[i] != kPoison)
      return false;
  for (size_t i = a.begin + a.size; i < a.pages * kPage; i++)
    if (pages[i] != kPoison)
      return false;
  return true;
}

void* allocate(size_t size, size_t alignment, int where) {
  const size_t count = (size + kPage - 1) / kPage + (size == 0);
  pthread_mutex_lock(&mutex);
  const size_t page = count < kPages / 4 ? find_pages(count) : 0;
  if (page == 0 || alignment > kPage) {
    pthread_mutex_unlock(&mutex);
    return nullptr;
  }
  const size_t slack = count * kPage - size;
  const size_t begin = where == 1 ? slack / alignment * alignment : 0;
  allocations[page] = {static_cast<uint32_t>(count), static_cast<uint32_t>(begin), size};
  guarded++;
  pthread_mutex_unlock(&mutex);
  char* const pages = region + page * kPage;
  if (mprotect(pages, count * kPage, PROT_READ | PROT_WRITE) != 0)
    stop("guard: no memory\n");
  memset(pages, kPoison, count * kPage);
  return pages + begin;
}

void release(void* p) {
  pthread_mutex_lock(&mutex);
  const size_t page = (static_cast<char*>(p) - region) / kPage;
  const Allocation a = allocations[page];
  if (a.pages == 0 || region + page * kPage + a.begin != p)
    stop("guard: what is freed is not the beginning of an allocation, or was freed before\n");
  const bool intact = is_intact(page);
  allocations[page] = {};
  madvise(region + page * kPage, a.pages * kPage, MADV_DONTNEED);
  mprotect(region + page * kPage, a.pages * kPage, PROT_NONE);
  pthread_mutex_unlock(&mutex);
  if (!intact)
    stop("guard: bytes beside an allocation were written\n");
}

// Says which allocation an access missed, and lets the signal end the process.
void on_fault(int signal_number, siginfo_t* info, void* context) {
  if (is_ours(info->si_addr)) {
    const auto* const at = static_cast<const char*>(info->si_addr);
    const bool writes = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
    const size_t below = first_page_of(at);
    size_t above = (at - region) / kPage + 1;
    while (above < kPages - 1 && allocations[above].pages == 0 && above < below + 4096)
      above++;
    const Allocation &before = allocations[below], &after = allocations[above];
    const ptrdiff_t behind = at - (region + below * kPage + before.begin + before.size);
    const ptrdiff_t ahead = region + above * kPage + after.begin - at;
    // A page that belongs to no allocation, beside none, was freed.
    const auto limit = static_cast<ptrdiff_t>(kPage);
    const bool is_behind = before.pages != 0 && behind < limit;
    const bool is_before = after.pages != 0 && ahead <= limit && (!is_behind || ahead < behind);
    char text[200];
    const char* const verb = writes ? "write" : "read";
    if (is_before)
      snprintf(
          text,
          sizeof text,
          "guard: a %s %td bytes before an allocation of %zu bytes\n",
          verb,
          ahead,
          static_cast<size_t>(after.size));
    else if (is_behind)
      snprintf(
          text,
          sizeof text,
          "guard: a %s %td bytes behind an allocation of %zu bytes\n",
          verb,
          behind,
          static_cast<size_t>(before.size));
    else
      snprintf(text, sizeof text, "guard: a %s of memory that was freed, or is far off\n", verb);
    say(text);
  }
  signal(signal_number, SIG_DFL);
}

void* aligned(size_t alignment, size_t size) {
  if (placement != 0)
    if (void* const p = allocate(size, alignment, placement))
      return p;
  return __libc_memalign(alignment, size);
}

} // namespace

extern "C" {

// Reserves the region. 0 if that is possible.
int guard_open() {
  if (region != nullptr)
    return 0;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const table =
      mmap(nullptr, kPages * sizeof(Allocation), PROT_READ | PROT_WRITE, flags, -1, 0);
  void* const reserved = mmap(nullptr, kRegion, PROT_NONE, flags, -1, 0);
  if (table == MAP_FAILED || reserved == MAP_FAILED)
    return 1;
  allocations = static_cast<Allocation*>(table);
  region = static_cast<char*>(reserved);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
  return 0;
}

// 0: off; 1: allocations end where a page ends, as nearly as their alignment allows; 2: they begin
// where a page begins.
void guard_place(int where) {
  placement = where;
}

// Memory at any address, for tensors that a call is given: it ends or begins exactly at the guard.
void* guard_allocate(size_t size, int where) {
  return allocate(size, 1, where);
}

unsigned long guard_count() {
  return guarded;
}

void* malloc(size_t size) {
  if (placement != 0)
    if (void* const p = allocate(size, 16, placement))
      return p;
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  size_t total = 0;
  if (placement != 0 && !__builtin_mul_overflow(count, size, &total))
    if (void* const p = allocate(total, 16, placement))
      return memset(p, 0, total);
  return __libc_calloc(count, size);
}

void free(void* p) {
  if (is_ours(p))
    release(p);
  else
    __libc_free(p);
}

void* realloc(void* p, size_t size) {
  if (!is_ours(p))
    return __libc_realloc(p, size);
  void* const result = malloc(size);
  const Allocation& a = allocations[first_page_of(p)];
  if (result != nullptr)
    memcpy(result, p, size < a.size ? size : a.size), release(p);
  return result;
}

int posix_memalign(void** result, size_t alignment, size_t size) {
  *result = aligned(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}

void* aligned_alloc(size_t alignment, size_t size) {
  return aligned(alignment, size);
}

void* memalign(size_t alignment, size_t size) {
  return aligned(alignment, size);
}

size_t malloc_usable_size(void* p) {
  using Function = size_t (*)(void*);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "malloc_usable_size"));
  return is_ours(p) ? allocations[first_page_of(p)].size : original(p);
}

} // extern "C"
