// The tables of the axes as the CUDA kernels read them.
//
// A table has one record per row: the indices [first, end) that the row reads, and the weights.
// The weight of index i lies in slot i % slots, so that the transpose of a table is built in one
// launch too: the thread of output o knows the slot of its weight in every row that it goes into,
// without knowing where that row begins.
//
// Records travel in the kernel's arguments if they fit, which costs no launch; see make_tables.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/launch.h"
#include "core/math.h"

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

constexpr int kMostSlotsOfIdentity = 16;

template <class W>
class TapRows;

// All tables of a call, in the arguments of its kernel.
template <class W>
struct TapTables {
  TapTable d, h, w;                      // of each index of dst, what it reads in src
  TapTable h_transpose;                  // of each row of src, what reads it
  const unsigned char* memory = nullptr; // where the records are; null: right behind this
  struct {
    TapRecord head{0, 1};
    W weights[kMostSlotsOfIdentity];
  } identity; // the record of every row of an axis that is copied, but for `first`

  __device__ __forceinline__ const unsigned char* records() const {
    return memory != nullptr ? memory : reinterpret_cast<const unsigned char*>(this + 1);
  }
  __device__ __forceinline__ Taps<W> row(const TapTable& table, int32_t index) const {
    return TapRows<W>(*this, table, index).next(index);
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
      : record_bytes_(table.record_bytes), is_identity_(table.is_identity()) {
    const unsigned char* own = tables.records() + table.offset;
    const unsigned char* records =
        is_identity_ ? reinterpret_cast<const unsigned char*>(&tables.identity) : own;
    record_ = records + static_cast<int64_t>(index) * record_bytes_;
  }

  // `index`: of the row, which the caller counts.
  __device__ __forceinline__ Taps<W> next(int32_t index) {
    const auto head = *reinterpret_cast<const TapRecord*>(record_);
    const Taps<W> taps{
        is_identity_ ? index : head.first,
        head.end - head.first,
        reinterpret_cast<const W*>(record_ + sizeof(TapRecord))};
    record_ += record_bytes_;
    return taps;
  }

 private:
  const unsigned char* record_;
  int32_t record_bytes_;
  bool is_identity_;
};

} // namespace torch_dnnl::cuda
