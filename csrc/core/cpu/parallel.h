// Loops over independent work on the CPU's threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace torch_dnnl {

// A multiply-add takes a core about 10 ps: tasks of fewer are not worth a thread.
inline constexpr int64_t kTaskOperations = 500000;

// The tasks [0, n), shared by threads. A thread begins with a range of its own: neighbouring tasks
// read much of the same memory. When the range is empty, the thread takes tasks of other ranges.
class SharedTasks {
 public:
  SharedTasks(int64_t n, int64_t threads) : ranges_(threads) {
    for (int64_t i = 0; i < threads; i++)
      ranges_[i] = {n * i / threads, n * (i + 1) / threads};
  }

  // The tasks of one thread. A loop over the object takes them one by one, and can run once.
  class OfThread {
   public:
    OfThread(SharedTasks& all, int64_t thread) : all_(all), thread_(thread) {}

    struct End {};
    struct Iterator {
      OfThread& mine;
      int64_t task;
      int64_t operator*() const {
        return task;
      }
      void operator++() {
        task = mine.next();
      }
      bool operator!=(End) const {
        return task >= 0;
      }
    };
    Iterator begin() {
      return {*this, next()};
    }
    End end() const {
      return {};
    }

   private:
    // The next task, or -1.
    int64_t next() {
      const auto threads = std::ssize(all_.ranges_);
      for (; tried_ < threads; tried_++) {
        Range& range = all_.ranges_[(thread_ + tried_) % threads];
        const int64_t task = __atomic_fetch_add(&range.next, 1, __ATOMIC_RELAXED);
        if (task < range.end)
          return task;
      }
      return -1;
    }

    SharedTasks& all_;
    int64_t thread_, tried_ = 0;
  };

 private:
  struct alignas(64) Range { // a line of the cache each
    int64_t next, end;
  };
  std::vector<Range> ranges_;
};

// Calls f(mine) on the threads. `mine` has the tasks of a thread. One task takes about `operations`
// multiply-adds.
template <class F>
void parallel_tasks(int64_t tasks, int64_t operations, const F& f) {
  const int64_t grain = kTaskOperations / std::max<int64_t>(operations, 1) + 1;
  const int64_t available = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t threads = std::clamp<int64_t>((tasks + grain - 1) / grain, 1, available);
  SharedTasks shared(tasks, threads);
  at::parallel_for(0, threads, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; thread++)
      f(SharedTasks::OfThread(shared, thread));
  });
}

// Calls f(begin, end) for parts of [0, n). One element takes about `operations` multiply-adds.
template <class F>
void parallel_ranges(int64_t n, int64_t operations, const F& f) {
  at::parallel_for(0, n, kTaskOperations / std::max<int64_t>(operations, 1) + 1, f);
}

// f(i) for i in [0, n), where one call takes roughly `cost` operations of any kind.
template <class F>
void for_each_element(int64_t n, int64_t cost, const F& f) {
  const int64_t grain = 32768 / (cost < 1 ? 1 : cost) + 1;
  at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      f(i);
  });
}

} // namespace torch_dnnl
