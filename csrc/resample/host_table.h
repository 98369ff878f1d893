// Axis tables on the host, cached.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "core/cache.h"
#include "core/expected.h"
#include "resample/axis_table.h"

namespace torch_dnnl {

struct HostTableKey {
  AxisSpec spec;
  bool transposed;

  bool operator==(const HostTableKey&) const = default;
};

// The number of weights in so many rows. An expanded image may have more pixels than memory.
inline int64_t table_size(int64_t rows, int64_t taps) {
  constexpr int64_t most = int64_t(1) << 31;
  TORCH_CHECK_VALUE(
      rows <= most / taps,
      Expected("resample") << "sizes for which an axis has at most " << most
                           << " filter weights, got " << rows << " pixels with up to " << taps
                           << " weights each");
  return rows * taps;
}

// The table of one axis, or its transpose, which is a table too: of the outputs that
// each input goes into.
template <class W>
struct HostTable {
  int64_t in, out, width;
  std::vector<W> weights;            // [out, width]
  std::vector<int64_t> start, count; // [out]
  bool has_empty_rows = false;
  bool copies = true;   // no row has more than one tap, of weight 1
  bool identity = true; // row o is input o

  explicit HostTable(const HostTableKey& key)
      : in(key.spec.in),
        out(key.spec.out),
        width(row_capacity(key.spec)),
        weights(table_size(out, width)),
        start(out),
        count(out) {
    std::array<double, 256> taps; // enough for all but extreme reductions
    const bool fits = filter_taps(key.spec) <= taps.size();
    for (int64_t o = 0; o < out; o++) {
      W* const row = &weights[o * width];
      const auto set = [&](int64_t, int64_t tap, double weight) { row[tap] = W(weight); };
      const Range reads = build_row(key.spec, o, set, fits ? taps.data() : nullptr);
      start[o] = reads.begin, count[o] = reads.count();
    }
    if (key.transposed)
      transpose(is_flipped(key.spec));
    narrow(*std::max_element(count.begin(), count.end()));
    for (int64_t o = 0; o < out; o++) {
      has_empty_rows |= count[o] == 0;
      copies &= count[o] == 0 || (count[o] == 1 && weights[o * width] == 1);
      identity &= count[o] == 1 && start[o] == o;
    }
    identity &= copies && in == out;
  }

  AxisTable<W> view() const {
    return {in, out, width, start.data(), count.data(), weights.data(), nullptr, nullptr};
  }

  size_t bytes() const {
    return (start.size() + count.size()) * sizeof(int64_t) + weights.size() * sizeof(W);
  }

 private:
  // Room for `taps` in a row, no more: the capacity of a row is an upper bound.
  void narrow(int64_t taps) {
    taps = std::max<int64_t>(taps, 1);
    for (int64_t o = 1; o < out; o++)
      std::copy_n(&weights[o * width], taps, &weights[o * taps]);
    weights.resize(out * taps);
    width = taps;
  }

  void transpose(bool flipped) {
    std::vector<int64_t> first(table_size(in, 1)), readers(in);
    int64_t most = 1;
    for (int64_t i = 0; i < in; i++) {
      const Range row = build_transposed_row(view(), flipped, i);
      first[i] = row.begin, readers[i] = row.count();
      most = std::max(most, readers[i]);
    }
    std::vector<W> rows(table_size(in, most));
    for (int64_t i = 0; i < in; i++)
      for (int64_t k = 0; k < readers[i]; k++)
        rows[i * most + k] = table_weight(view(), first[i] + k, i);
    std::swap(in, out);
    width = most;
    start = std::move(first);
    count = std::move(readers);
    weights = std::move(rows);
  }
};

template <class W>
using SharedTable = std::shared_ptr<const HostTable<W>>;

template <class W>
using Tables = std::array<SharedTable<W>, 3>;

template <class W>
SharedTable<W> cached_table(const AxisSpec& axis, bool transposed) {
  static Cache<HostTableKey, HostTable<W>> cache;
  static const auto missing_axis = std::make_shared<const HostTable<W>>(HostTableKey{{}, false});
  return axis == AxisSpec{} ? missing_axis : cache.get({axis, transposed});
}

template <class W>
Tables<W> cached_tables(const AxisSpec (&axes)[3], bool transposed) {
  Tables<W> tables;
  for (int a = 0; a < 3; a++) {
    // Lookups take a lock: most images have equal axes, or lack some.
    const bool is_equal = a > 0 && axes[a] == axes[a - 1];
    tables[a] = is_equal ? tables[a - 1] : cached_table<W>(axes[a], transposed);
  }
  return tables;
}

} // namespace torch_dnnl
