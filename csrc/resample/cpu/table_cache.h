// Axis tables on the host, built once per specification and kept: the most
// recently used ones, up to a fixed amount of memory, shared by all threads.
#pragma once

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "resample/axis_table.h"

namespace torch_dnnl {

// The table of one axis, or its transpose, which is a table too: of the outputs that
// each input goes into.
template <class W>
struct HostTable {
  int64_t in, out, width;
  std::vector<int64_t> start, count; // [out]
  std::vector<W> weights;            // [out, width]
  bool has_empty_rows = false;
  // For vector code: [width, out], rows filled up to `width` taps with repetitions of the last
  // one, which share its weight (and do not multiply an infinity by 0).
  std::vector<int32_t> tap_index;
  std::vector<W> tap_weight;

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
    if (transposed)
      transpose(is_flipped(spec));
    fill_taps();
  }

  AxisTable<W> view() const {
    return {in, out, width, start.data(), count.data(), weights.data(), nullptr, nullptr};
  }

  // The ends of what row `o` reads.
  int64_t lowest(int64_t o) const {
    return tap_index[o];
  }
  int64_t highest(int64_t o) const {
    return tap_index[(width - 1) * out + o];
  }

  size_t bytes() const {
    return (start.size() + count.size()) * sizeof(int64_t) + tap_index.size() * sizeof(int32_t) +
        (weights.size() + tap_weight.size()) * sizeof(W);
  }

 private:
  void transpose(bool flipped) {
    std::vector<int64_t> first(in), last(in);
    int64_t most = 1;
    for (int64_t i = 0; i < in; i++) {
      build_transposed_row(start.data(), count.data(), out, flipped, i, &first[i], &last[i]);
      most = std::max(most, last[i] - first[i]);
    }
    std::vector<W> rows(in * most);
    for (int64_t i = 0; i < in; i++) {
      for (int64_t o = first[i]; o < last[i]; o++) {
        rows[i * most + o - first[i]] = table_weight(view(), o, i);
      }
      last[i] -= first[i];
    }
    std::swap(in, out);
    width = most;
    start = std::move(first);
    count = std::move(last);
    weights = std::move(rows);
  }

  void fill_taps() {
    tap_index.resize(width * out);
    tap_weight.resize(width * out);
    for (int64_t o = 0; o < out; o++) {
      const int64_t taps = count[o];
      has_empty_rows |= taps == 0;
      W share = taps == 0 ? W(0) : weights[o * width + taps - 1];
      for (int64_t t = 0; t < width; t++) {
        const bool whole = t < taps - 1, halved = !whole && t < width - 1;
        const int64_t index = start[o] + (whole ? t : std::max<int64_t>(taps - 1, 0));
        share = halved ? share / 2 : share;
        tap_index[t * out + o] = static_cast<int32_t>(std::min(index, in - 1));
        tap_weight[t * out + o] = whole ? weights[o * width + t] : share;
      }
    }
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

template <class W>
using HostTables = std::array<std::shared_ptr<const HostTable<W>>, 3>;

template <class W>
HostTables<W> cached_tables(const AxisSpec (&axes)[3], bool transposed) {
  return {
      cached_table<W>(axes[0], transposed),
      cached_table<W>(axes[1], transposed),
      cached_table<W>(axes[2], transposed)};
}

} // namespace torch_dnnl
