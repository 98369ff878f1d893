// The table of the W axis as vector code reads it: for every vector of elements of an
// output row and every tap, where its elements are and what they weigh.
//
// The elements are fetched by permuting a window of the source row. In a row that was just written
// it starts at a whole number of vectors: a load then matches one store to the row that it reads,
// whose value it gets from the store queue. Across two stores it would have to wait for both to
// reach the cache, behind stores to the image that have to wait for memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "core/cache.h"
#include "core/cpu/windows.h"
#include "core/math.h"
#include "resample/host_table.h"

namespace torch_dnnl {

// For arrays that are read in whole vectors.
template <class T>
struct VectorAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), kAlignment));
  }
  void deallocate(T* p, size_t) {
    ::operator delete(p, kAlignment);
  }
  bool operator==(const VectorAllocator&) const = default;
};

// The type of the weights of elements E.
template <class E>
using WeightOf = std::conditional_t<sizeof(E) == 8, double, float>;

enum class Window : int8_t {
  shared_1, // a vector holds what a block reads for all its taps
  shared_2, // two vectors
  shared_4, // four
  own_4,    // four vectors hold what a block reads for one tap
  bytes,    // 16 bytes do, of a row of bytes
  none,
};

// Of how many vectors it is; of bytes or none: 0.
constexpr int vectors_of(Window window) {
  using enum Window;
  return window == shared_1                   ? 1
      : window == shared_2                    ? 2
      : window == shared_4 || window == own_4 ? 4
                                              : 0;
}

// Whether rows of an image can be added up on the way into such a window.
inline bool can_gather_rows(Window window) {
  return window == Window::shared_1 || window == Window::shared_2;
}

// What the taps are applied to.
enum class Row : int8_t {
  written, // a line that was just written: windows start at a whole number of vectors
  read,    // a row of an image
  bytes,   // a row of an image of bytes, which a window converts
};

template <class W>
struct TapsKey {
  SharedTable<W> table;
  int64_t channels; // of a pixel: they are neighbours in a row
  Row row;

  bool operator==(const TapsKey&) const = default;
};

template <class W>
struct Taps {
  static constexpr int64_t kBlock = kLanes<W>;
  template <class T>
  using Array = std::vector<T, VectorAllocator<T>>;

  int64_t width; // taps of an element
  int64_t elements, blocks;
  size_t table_bytes;
  Window window = Window::none;
  std::vector<int64_t> base; // [blocks, width]
  Array<int32_t> index;      // [blocks, width, kBlock], added to base
  Array<W> weight;           // [blocks, width, kBlock]
  Array<W> empty;            // [blocks, kBlock], all bits set in empty rows; or nothing
  // Neighbouring blocks that differ in their bases only: all but those at the ends, where an image
  // grows or shrinks by a whole number.
  int64_t alike_begin = 0, alike_end = 0;

  explicit Taps(const TapsKey<W>& key)
      : width(key.table->width),
        elements(key.table->out * key.channels),
        blocks(ceil_div(elements, kBlock)),
        table_bytes(key.table->bytes()),
        base(blocks * width),
        index(blocks * width * kBlock),
        weight(blocks * width * kBlock) {
    fill(*key.table, key.channels);
    if (key.row == Row::bytes) {
      if (set_bases(1, ByteWindow::kBytes, false)) {
        window = Window::bytes;
        for (int32_t& i : index)
          i |= ByteWindow::kNone;
      }
    } else {
      set_window(key.row == Row::written);
    }
    find_alike();
  }

  // With the table, which the key keeps alive.
  size_t bytes() const {
    return table_bytes + base.size() * sizeof(int64_t) + index.size() * sizeof(int32_t) +
        (weight.size() + empty.size()) * sizeof(W);
  }

 private:
  void set_window(bool aligned) {
    using enum Window;
    for (const Window kind : {shared_1, shared_2, shared_4, own_4}) {
      if (set_bases(kind == own_4 ? 1 : width, vectors_of(kind) * kBlock, aligned)) {
        window = kind;
        return;
      }
    }
  }

  // A row is filled up to `width` taps with repetitions of its last one, which share its weight
  // (a weight of 0 would turn an infinite neighbour into NaN). Halves add up without rounding.
  // Beyond the last element, too, indices are those of an element.
  void fill(const HostTable<W>& table, int64_t channels) {
    for (int64_t element = 0; element < blocks * kBlock; element++) {
      const int64_t o = std::min(element / channels, table.out - 1), c = element % channels;
      const int64_t last = std::max<int64_t>(table.count[o] - 1, 0);
      const int64_t start = std::min(table.start[o], table.in - 1); // of an empty row, too
      const int64_t at = element / kBlock * width * kBlock + element % kBlock;
      if (table.count[o] == 0)
        mark_empty(element);
      W share = table.count[o] == 0 ? W(0) : table.weights[o * width + last];
      for (int64_t t = 0; t < width; t++) {
        if (t >= last && t < width - 1)
          share /= 2;
        index[at + t * kBlock] = static_cast<int32_t>((start + std::min(t, last)) * channels + c);
        weight[at + t * kBlock] = t < last ? table.weights[o * width + t] : share;
      }
    }
  }

  void mark_empty(int64_t element) {
    empty.resize(blocks * kBlock);
    std::memset(&empty[element], 0xff, sizeof(W));
  }

  // Gives every `taps` taps of a block a common base; false if one of their windows were longer
  // than `room`.
  bool set_bases(int64_t taps, int64_t room, bool aligned) {
    std::vector<int64_t> bases(base.size());
    for (int64_t group = 0; group < blocks * width; group += taps) {
      const auto begin = index.begin() + group * kBlock;
      const auto [least, most] = std::minmax_element(begin, begin + taps * kBlock);
      const int64_t first = aligned ? *least / kBlock * kBlock : *least;
      if (*most - first >= room)
        return false;
      std::fill_n(bases.begin() + group, taps, first);
    }
    base = std::move(bases);
    for (int64_t i = 0; i < blocks * width * kBlock; i++)
      index[i] -= static_cast<int32_t>(base[i / kBlock]);
    return true;
  }

  // The longest run.
  void find_alike() {
    const int64_t size = width * kBlock;
    const auto repeats = [&](int64_t block) { // the one before
      return std::equal(
                 &index[block * size], &index[block * size] + size, &index[(block - 1) * size]) &&
          std::equal(
                 &weight[block * size], &weight[block * size] + size, &weight[(block - 1) * size]);
    };
    for (int64_t begin = 0, end; begin < blocks && empty.empty(); begin = end) {
      for (end = begin + 1; end < blocks && repeats(end);)
        end++;
      if (end - begin > alike_end - alike_begin)
        alike_begin = begin, alike_end = end;
    }
  }
};

template <class W>
std::shared_ptr<const Taps<W>> cached_taps(const SharedTable<W>& table, int64_t channels, Row row) {
  static Cache<TapsKey<W>, Taps<W>> cache;
  return cache.get({table, channels, row});
}

} // namespace torch_dnnl
