// The scheduler behind cuda_on_host.h: a block's threads are fibers on one operating system thread.
//
// This file is the machine and not the program under test: it is compiled without a sanitizer and
// tells the sanitizers, where one is loaded, about fibers and barriers through their interfaces.
#include "cuda_on_host.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/tsan_interface.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#ifndef __x86_64__
#error "cuda_on_host: switch_stack() is written for x86-64"
#endif

// Null unless that sanitizer is loaded.
#pragma weak __sanitizer_start_switch_fiber
#pragma weak __sanitizer_finish_switch_fiber
#pragma weak __tsan_create_fiber
#pragma weak __tsan_get_current_fiber
#pragma weak __tsan_switch_to_fiber
#pragma weak __tsan_acquire
#pragma weak __tsan_release

// From shared_memory.ld.
extern "C" __attribute__((visibility("hidden"))) unsigned char cuda_shared_begin[];
extern "C" __attribute__((visibility("hidden"))) unsigned char cuda_shared_end[];

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_on_host {
namespace {

// sizes from the CUDA programming guide, compute capability 9.0
constexpr size_t kMaxSharedBytes = 227 * 1024;
constexpr size_t kSharedAlignment = 1024;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kStackBytes = 256 * 1024;

// A point in time to ThreadSanitizer: what came before any release() is ordered before what comes
// after a later acquire().
class Clock {
 public:
  void release() {
    if (__tsan_release)
      __tsan_release(this);
  }
  void acquire() {
    if (__tsan_acquire)
      __tsan_acquire(this);
  }

 private:
  char address_ = 0;
};

// A barrier counts generations. Two clocks by turns: a thread that is already on its way to the
// next barrier must not be ordered before one that has yet to leave this one.
struct Barrier {
  unsigned participants = 0;
  unsigned arrived = 0;
  unsigned generation = 0;
  Clock clocks[2];

  void release_if_complete() {
    if (arrived != 0 && arrived == participants) {
      arrived = 0;
      generation++;
    }
  }
};

// A stack that can be switched to: a fiber's, or the one run() was called on.
struct Context {
  void* stack_pointer = nullptr;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* tsan_fiber = nullptr;
};

struct Fiber : Context {
  uint3 index{};
  unsigned thread = 0;
  bool finished = true;
  const Barrier* barrier = nullptr; // waits for it to leave `generation`
  unsigned generation = 0;
  const void* value = nullptr; // passed to exchange()
};

struct Warp {
  unsigned alive = 0;                   // lanes that have not returned
  std::map<unsigned, Barrier> barriers; // by mask
};

struct Abandoned {}; // thrown in the threads of a block in which another one failed

struct Machine {
  std::mutex mutex; // one launch at a time: __shared__ variables exist once
  int64_t launches = 0;
  std::vector<std::unique_ptr<Fiber>> fibers; // kept for later launches
  Context caller;
  Fiber* running = nullptr;

  // the running block
  const std::function<void()>* thread = nullptr;
  void* dynamic_shared = nullptr;
  Barrier barrier;
  std::vector<Warp> warps;
  Clock start, end;
  std::exception_ptr error;
  bool failed = false;
};

Machine& machine = *new Machine; // lives on: fibers may not be torn down at exit

// Saves the registers that a function must preserve and the stack pointer, and goes on where
// another context did so.
[[gnu::naked, gnu::noinline]] void switch_stack(void** /*save*/, void* /*load*/) {
  asm volatile(
      "pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq %rsi, %rsp\n\t"
      "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\t"
      "ret");
}

// A fiber's switch is always from or to the caller, so what AddressSanitizer reports as the
// previous stack on arrival in a fiber is the caller's.
void arrived_in_fiber(void* fake_stack) {
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(fake_stack, &machine.caller.stack, &machine.caller.stack_bytes);
}

void* announce_switch(const Context& to) {
  void* fake_stack = nullptr;
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(&fake_stack, to.stack, to.stack_bytes);
  if (__tsan_switch_to_fiber)
    __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
  return fake_stack;
}

void resume(Fiber& fiber) {
  machine.running = &fiber;
  threadIdx = fiber.index;
  void* fake_stack = announce_switch(fiber);
  switch_stack(&machine.caller.stack_pointer, fiber.stack_pointer);
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void suspend() {
  void* fake_stack = announce_switch(machine.caller);
  switch_stack(&machine.running->stack_pointer, machine.caller.stack_pointer);
  arrived_in_fiber(fake_stack);
}

Warp& warp_of(const Fiber& fiber) {
  return machine.warps[fiber.thread / warpSize];
}

unsigned lane_bit(const Fiber& fiber) {
  return 1u << fiber.thread % warpSize;
}

// A thread that has returned is no longer waited for.
void finish(Fiber& fiber) {
  fiber.finished = true;
  machine.barrier.participants--;
  machine.barrier.release_if_complete();
  Warp& warp = warp_of(fiber);
  warp.alive &= ~lane_bit(fiber);
  for (auto& [mask, barrier] : warp.barriers) {
    if (mask & lane_bit(fiber)) {
      barrier.participants--;
      barrier.release_if_complete();
    }
  }
}

[[noreturn]] void fiber_main() {
  arrived_in_fiber(nullptr);
  for (;;) {
    machine.start.acquire();
    try {
      if (!machine.failed)
        (*machine.thread)();
    } catch (const Abandoned&) {
    } catch (...) {
      machine.error = std::current_exception();
      machine.failed = true;
    }
    machine.end.release();
    finish(*machine.running);
    suspend();
  }
}

void wait(Barrier& barrier) {
  Fiber& self = *machine.running;
  self.barrier = &barrier;
  self.generation = barrier.generation;
  barrier.arrived++;
  barrier.release_if_complete();
  suspend();
  if (machine.failed)
    throw Abandoned{};
}

void wait_and_order_memory(Barrier& barrier) {
  Clock& clock = barrier.clocks[barrier.generation % 2];
  clock.release();
  wait(barrier);
  clock.acquire();
}

Barrier& warp_barrier(unsigned mask) {
  const Fiber& self = *machine.running;
  if (!(mask & lane_bit(self)))
    throw std::logic_error("CUDA on host: a thread called a warp intrinsic whose mask omits it");
  Warp& warp = warp_of(self);
  const auto [entry, is_new] = warp.barriers.try_emplace(mask);
  if (is_new)
    entry->second.participants = std::popcount(mask & warp.alive);
  return entry->second;
}

std::unique_ptr<Fiber> make_fiber(unsigned thread) {
  constexpr size_t kGuardBytes = 4096; // an overflow of the stack must not go unnoticed
  void* stack = mmap(
      nullptr,
      kGuardBytes + kStackBytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (stack == MAP_FAILED)
    throw std::bad_alloc();
  mprotect(stack, kGuardBytes, PROT_NONE);
  auto fiber = std::make_unique<Fiber>();
  fiber->thread = thread;
  fiber->stack = static_cast<char*>(stack) + kGuardBytes;
  fiber->stack_bytes = kStackBytes;
  if (__tsan_create_fiber)
    fiber->tsan_fiber = __tsan_create_fiber(0);
  // What switch_stack() pops: six registers and where to go. The zero above it stands where a
  // call would have left its return address: there ends the stack for unwinders.
  auto** top = reinterpret_cast<void**>(static_cast<char*>(stack) + kGuardBytes + kStackBytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  fiber->stack_pointer = top - 6;
  return fiber;
}

// A plain fill: to AddressSanitizer a memset() over the variables' red zones would be an error.
void fill(unsigned char* begin, unsigned char* end) {
  size_t bytes = end - begin;
  asm volatile("rep stosb" : "+D"(begin), "+c"(bytes) : "a"(0xff) : "memory");
}

struct Free {
  void operator()(void* memory) const {
    std::free(memory);
  }
};

using DynamicShared = std::unique_ptr<void, Free>;

// Anew for each block, so that use after the block is an error too.
DynamicShared make_dynamic_shared(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kSharedAlignment, bytes) != 0)
    throw std::bad_alloc();
  std::memset(memory, 0xff, bytes);
  return DynamicShared(memory);
}

bool can_go_on(const Fiber& fiber) {
  return !fiber.finished && (!fiber.barrier || fiber.barrier->generation != fiber.generation);
}

void run_block(unsigned threads, size_t shared_bytes) {
  Machine& m = machine;
  const DynamicShared dynamic_shared = make_dynamic_shared(shared_bytes);
  m.dynamic_shared = dynamic_shared.get();
  fill(cuda_shared_begin, cuda_shared_end);
  m.error = nullptr;
  m.failed = false;
  m.barrier.participants = threads;
  m.warps.assign((threads + warpSize - 1) / warpSize, {});
  for (unsigned t = 0; t < threads; t++) {
    Fiber& fiber = *m.fibers[t];
    fiber.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
    fiber.finished = false;
    fiber.barrier = nullptr;
    warp_of(fiber).alive |= lane_bit(fiber);
  }

  m.start.release();
  unsigned left = threads;
  for (bool progress = true; progress && !m.failed;) {
    progress = false;
    for (unsigned t = 0; t < threads && !m.failed; t++) {
      if (can_go_on(*m.fibers[t])) {
        resume(*m.fibers[t]);
        left -= m.fibers[t]->finished;
        progress = true;
      }
    }
  }
  if (left != 0 && !m.failed) {
    m.failed = true;
    m.error = std::make_exception_ptr(
        std::logic_error(
            "CUDA on host: " + std::to_string(left) + " of " + std::to_string(threads) +
            " threads wait at a barrier that the others did not reach"));
  }
  for (unsigned t = 0; t < threads; t++)
    if (!m.fibers[t]->finished)
      resume(*m.fibers[t]); // unwinds its stack
  m.end.acquire();
  m.barrier.arrived = 0;
  if (m.error)
    std::rethrow_exception(std::exchange(m.error, nullptr));
}

void check(bool holds, const char* what) {
  if (!holds)
    throw std::invalid_argument(std::string("CUDA on host: invalid configuration: ") + what);
}

void check_extents(dim3 grid, dim3 block, size_t shared_bytes) {
  constexpr unsigned kMaxGridX = (1u << 31) - 1, kMaxGridYZ = (1u << 16) - 1;
  check(grid.x > 0 && grid.y > 0 && grid.z > 0, "empty grid");
  check(block.x > 0 && block.y > 0 && block.z > 0, "empty block");
  check(
      grid.x <= kMaxGridX && grid.y <= kMaxGridYZ && grid.z <= kMaxGridYZ,
      "grid of more than 2^31-1 x 65535 x 65535 blocks");
  check(
      block.x <= kMaxThreads && block.y <= kMaxThreads && block.z <= 64 &&
          uint64_t(block.x) * block.y * block.z <= kMaxThreads,
      "block of more than 1024 threads, or 64 in z");
  check(shared_bytes <= kMaxSharedBytes, "more than 227 KB of dynamic shared memory");
}

} // namespace

void run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  check_extents(grid, block, shared_bytes);
  const std::lock_guard lock(machine.mutex);
  machine.launches++;
  const unsigned threads = block.x * block.y * block.z;
  while (machine.fibers.size() < threads)
    machine.fibers.push_back(make_fiber(machine.fibers.size()));
  if (__tsan_get_current_fiber)
    machine.caller.tsan_fiber = __tsan_get_current_fiber();
  machine.thread = &thread;
  gridDim = grid;
  blockDim = block;
  for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
        run_block(threads, shared_bytes);
  }
}

void* dynamic_shared() {
  return machine.dynamic_shared;
}

void sync_block() {
  wait_and_order_memory(machine.barrier);
}

void sync_warp(unsigned mask) {
  wait_and_order_memory(warp_barrier(mask));
}

void exchange(
    unsigned mask,
    const void* value,
    size_t bytes,
    unsigned source,
    void* received,
    unsigned count) {
  Barrier& barrier = warp_barrier(mask);
  Fiber& self = *machine.running;
  self.value = value;
  wait(barrier);
  // Copied by hand: ThreadSanitizer sees a memcpy() even in this file, and would demand an order
  // between the lanes that a shuffle does not give.
  auto* out = static_cast<volatile unsigned char*>(received);
  const unsigned present = mask & warp_of(self).alive;
  const unsigned first = self.thread / warpSize * warpSize;
  for (unsigned lane = source; lane < source + count; lane++) {
    const bool has_value = present >> lane & 1;
    const auto* in = has_value
        ? static_cast<const unsigned char*>(machine.fibers[first + lane]->value)
        : nullptr;
    for (size_t i = 0; i < bytes; i++)
      *out++ = in ? in[i] : 0xff;
  }
  wait(barrier); // the values live on the lanes' stacks
}

} // namespace cuda_on_host

int64_t cuda_on_host_launches() {
  const std::lock_guard lock(cuda_on_host::machine.mutex);
  return cuda_on_host::machine.launches;
}
