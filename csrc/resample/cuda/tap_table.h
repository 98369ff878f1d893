// The tables of the axes as the CUDA kernels read them.
//
// A table has one record per row: the indices [first, end) that the row reads, and the weights.
// The weight of index i lies in slot i % slots, so that the transpose of a table is built in one
// launch too: the thread of output o knows the slot of its weight in every row that it goes into,
// without knowing where that row begins.
//
// Records of small tables travel in the kernel's arguments, which costs no launch; others are built
// on the device into memory of torch's allocator by one launch for all axes. Neither copies from
// the host nor synchronises, so calls can be captured in CUDA graphs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/launch.h"
#include "resample/axis_table.h"
#include "resample/host_table.h"

namespace torch_dnnl::cuda {

struct alignas(8) TapRecord {
  int32_t first, end;
  // weights[slots] follow
};

// Where the records of an axis are, in bytes from the begin of all tables. An axis that is copied
// has no records.
struct TapTable {
  int64_t offset = 0;
  int32_t record_bytes = 0; // 0: row o reads index o alone, with weight 1
  int32_t slots = 1;

  TORCH_DNNL_HD bool is_identity() const {
    return record_bytes == 0;
  }

  template <class W>
  static int32_t bytes_of(int64_t slots) {
    return static_cast<int32_t>(
        round_up(sizeof(TapRecord) + slots * sizeof(W), alignof(TapRecord)));
  }

  TORCH_DNNL_HD TapRecord* record(unsigned char* tables, int64_t row) const {
    return reinterpret_cast<TapRecord*>(tables + offset + row * record_bytes);
  }
};

template <class W>
TORCH_DNNL_HD inline W* weights_of(TapRecord* record) {
  return reinterpret_cast<W*>(record + 1);
}

// A row, read.
template <class W>
struct Taps {
  int32_t first, count;
  const W* weights; // by slot

  TORCH_DNNL_HD int32_t end() const {
    return first + count;
  }
};

// A row with any number of taps.
template <class W>
struct TapLoop : Taps<W> {
  int32_t slots, first_slot;
  bool is_copy; // there is one tap, of weight 1

  __device__ __forceinline__ TapLoop(const Taps<W>& taps, const TapTable& table)
      : Taps<W>(taps),
        slots(table.slots),
        first_slot(taps.first % table.slots),
        is_copy(table.is_identity()) {}

  // f(index, weight) for each tap.
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) const {
    int32_t slot = first_slot;
#pragma unroll 1
    for (int32_t index = this->first; index < this->end(); index++) {
      f(index, this->weights[slot]);
      slot = slot + 1 == slots ? 0 : slot + 1;
    }
  }
};

constexpr size_t kArgumentTableBytes = 3 << 10;
constexpr int kMostSlotsOfIdentity = 16;

template <class W>
class TapRows;

// All tables of a call; an argument of its kernel.
template <class W>
struct TapTables {
  TapTable d, h, w;                      // of each index of dst, what it reads in src
  TapTable h_transpose;                  // of each row of src, what reads it
  const unsigned char* memory = nullptr; // null: the tables are in `arguments`
  struct {
    TapRecord head{0, 1};
    W weights[kMostSlotsOfIdentity];
  } identity; // the record of every row of an axis that is copied, but for `first`
  alignas(8) unsigned char arguments[kArgumentTableBytes];

  __device__ __forceinline__ Taps<W> row(const TapTable& table, int32_t index) const {
    return TapRows<W>(*this, table, index).next();
  }
  __device__ __forceinline__ TapLoop<W> loop(const TapTable& table, int32_t index) const {
    return TapLoop<W>(row(table, index), table);
  }
};

// The rows of a table from one on, in their order: then a record is one step from the one before.
template <class W>
class TapRows {
 public:
  // Without branches, so that compilers take what the rows of a table share out of loops.
  __device__ __forceinline__
  TapRows(const TapTables<W>& tables, const TapTable& table, int32_t index)
      : record_bytes_(table.record_bytes), index_(index), is_identity_(table.is_identity()) {
    const unsigned char* own =
        (tables.memory != nullptr ? tables.memory : tables.arguments) + table.offset;
    const unsigned char* records =
        is_identity_ ? reinterpret_cast<const unsigned char*>(&tables.identity) : own;
    record_ = records + static_cast<int64_t>(index) * record_bytes_;
  }

  __device__ __forceinline__ Taps<W> next() {
    const auto head = *reinterpret_cast<const TapRecord*>(record_);
    const Taps<W> taps{
        is_identity_ ? index_ : head.first,
        head.end - head.first,
        reinterpret_cast<const W*>(record_ + sizeof(TapRecord))};
    record_ += record_bytes_;
    index_++;
    return taps;
  }

 private:
  const unsigned char* record_;
  int32_t record_bytes_, index_;
  bool is_identity_;
};

// What a table is made from.
struct TapSource {
  AxisSpec spec;
  bool transposed;
  TapTable table;
};

// Builds the records of all tables of a call, with an index for each output of each axis.
template <class W>
struct BuildTapTables {
  static constexpr int kMost = 4;
  TapSource sources[kMost];
  int count = 0;
  int64_t rows = 0;
  unsigned char* tables = nullptr;

  TORCH_DNNL_HD void operator()(int64_t o) const {
    int i = 0;
    while (o >= sources[i].spec.out)
      o -= sources[i++].spec.out;
    const TapSource& source = sources[i];
    const auto record = [&](int64_t row) { return source.table.record(tables, row); };
    const int32_t slots = source.table.slots;
    const Range row = build_row(source.spec, o, [&](int64_t index, int64_t, double weight) {
      const int64_t reader = source.transposed ? index : o, read = source.transposed ? o : index;
      weights_of<W>(record(reader))[read % slots] = static_cast<W>(weight);
    });
    if (source.transposed)
      write_bounds(source, o, row);
    else
      *record(o) = {static_cast<int32_t>(row.begin), static_cast<int32_t>(row.end)};
  }

  // Rows are in order, so input i is read from the first output that ends beyond it to the last one
  // that does not start beyond it. Output o settles this for the inputs between its own bounds and
  // those of the output before it, and the last output for the inputs that follow.
  TORCH_DNNL_HD void write_bounds(const TapSource& source, int64_t o, const Range& row) const {
    Range before{0, 0};
    if (o > 0)
      before = build_row(source.spec, o - 1, [](int64_t, int64_t, double) {});
    const auto record = [&](int64_t i) { return source.table.record(tables, i); };
    const auto output = static_cast<int32_t>(o);
    const bool is_last = o == source.spec.out - 1;
    for (int64_t i = before.end; i < row.end; i++)
      record(i)->first = output;
    for (int64_t i = before.begin; i < row.begin; i++)
      record(i)->end = output;
    for (int64_t i = row.end; is_last && i < source.spec.in; i++)
      record(i)->first = output + 1;
    for (int64_t i = row.begin; is_last && i < source.spec.in; i++)
      record(i)->end = output + 1;
  }
};

} // namespace torch_dnnl::cuda
