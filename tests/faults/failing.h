// When allocations fail, and how much is in use: what the two allocators of these tests share, and
// what Python calls of them.
#pragma once

#include <atomic>
#include <cstdint>

namespace failing {

inline std::atomic<int64_t> blocks{0}, bytes{0}; // in use
inline std::atomic<int64_t> asked{0};            // since fail_at()
inline std::atomic<int64_t> at{0};               // which one fails; 0: none
inline std::atomic<bool> is_on{false};

// Counts an allocation; whether it is to fail. Later ones succeed: what handles the failure may
// need memory.
inline bool fails() {
  return is_on && ++asked == at;
}

inline void add(int64_t size) {
  blocks++;
  bytes += size;
}

inline void remove(int64_t size) {
  blocks--;
  bytes -= size;
}

} // namespace failing

extern "C" {

// From here on the allocation of this number fails, the first being 1; with 0 they are counted.
__attribute__((visibility("default"))) void fail_at(int64_t number) {
  failing::asked = 0;
  failing::at = number;
  failing::is_on = true;
}

// None fails any more; how many there were.
__attribute__((visibility("default"))) int64_t stop_failing() {
  failing::is_on = false;
  return failing::asked;
}

__attribute__((visibility("default"))) int64_t blocks_in_use() {
  return failing::blocks;
}

__attribute__((visibility("default"))) int64_t bytes_in_use() {
  return failing::bytes;
}

} // extern "C"
