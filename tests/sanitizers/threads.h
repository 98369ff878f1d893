// at::parallel_for over threads of the C++ library, whose starts and ends ThreadSanitizer knows.
// For files that are compiled without OpenMP, but with INTRA_OP_PARALLEL.
#pragma once

#include <cstdint>

namespace at::internal {

template <typename F>
void invoke_parallel(int64_t begin, int64_t end, int64_t grain_size, const F& f);

} // namespace at::internal

#include <ATen/Parallel.h> // which calls that

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace at::internal {

template <typename F>
void invoke_parallel(int64_t begin, int64_t end, int64_t grain_size, const F& f) {
  int64_t parts = at::get_num_threads();
  if (grain_size > 0)
    parts = std::min(parts, divup(end - begin, grain_size));
  const int64_t each = divup(end - begin, parts);
  std::vector<std::exception_ptr> errors(parts);
  std::vector<std::thread> threads;
  for (int64_t part = 0; part < parts; part++)
    threads.emplace_back([&, part] {
      const ThreadIdGuard guard(static_cast<int>(part));
      const int64_t first = begin + part * each;
      try {
        if (first < end)
          f(first, std::min(end, first + each));
      } catch (...) {
        errors[part] = std::current_exception();
      }
    });
  for (std::thread& thread : threads)
    thread.join();
  for (const std::exception_ptr& error : errors)
    if (error)
      std::rethrow_exception(error);
}

} // namespace at::internal
