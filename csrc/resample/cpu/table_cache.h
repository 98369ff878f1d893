// Axis tables on the host, built once per specification and kept: the most
// recently used ones, up to a fixed amount of memory, shared by all threads.
#pragma once

#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "resample/axis_table.h"

namespace torch_dnnl {

template <class W>
struct HostTable {
  int64_t in, out, width;
  std::vector<int64_t> start, count, first, last;
  std::vector<W> weights;

  HostTable(const AxisSpec& spec, bool transposed)
      : in(spec.in),
        out(spec.out),
        width(row_capacity(spec)),
        start(out),
        count(out),
        weights(out * width) {
    for (int64_t o = 0; o < out; o++) {
      build_row(spec, o, &start[o], &count[o], &weights[o * width]);
    }
    if (!transposed)
      return;
    first.resize(in);
    last.resize(in);
    for (int64_t i = 0; i < in; i++) {
      build_transposed_row(
          start.data(), count.data(), out, is_flipped(spec), i, &first[i], &last[i]);
    }
  }

  AxisTable<W> view() const {
    return {in, out, width, start.data(), count.data(), weights.data(), first.data(), last.data()};
  }

  size_t bytes() const {
    return (start.size() + count.size() + first.size() + last.size()) * sizeof(int64_t) +
        weights.size() * sizeof(W);
  }
};

template <class W>
class TableCache {
 public:
  using Table = std::shared_ptr<const HostTable<W>>;

  Table get(const AxisSpec& spec, bool transposed) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        if (it->transposed == transposed && it->spec == spec) {
          entries_.splice(entries_.begin(), entries_, it);
          return entries_.front().table;
        }
      }
    }
    auto table = std::make_shared<const HostTable<W>>(spec, transposed);
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_front({spec, transposed, table});
    bytes_ += table->bytes();
    while (entries_.size() > 1 && (bytes_ > kMaxBytes || entries_.size() > kMaxEntries)) {
      bytes_ -= entries_.back().table->bytes();
      entries_.pop_back();
    }
    return table;
  }

 private:
  static constexpr size_t kMaxBytes = size_t(16) << 20;
  static constexpr size_t kMaxEntries = 64; // few enough to be searched in order

  struct Entry {
    AxisSpec spec;
    bool transposed;
    Table table;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
  size_t bytes_ = 0;
};

template <class W>
std::shared_ptr<const HostTable<W>> cached_table(const AxisSpec& spec, bool transposed) {
  static TableCache<W> cache;
  return cache.get(spec, transposed);
}

} // namespace torch_dnnl
