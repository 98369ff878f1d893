// Where the tables of a call come from.
//
// They travel in the arguments of the kernel if they fit, which costs no launch. Every launch
// copies all bytes that its kernel's arguments have room for, so each kernel has two instances:
// with room for a few rows, and for as many as may be. The records are kept on the host between
// calls. Larger tables are built on the device into memory of torch's allocator by one launch for
// all axes. Neither copies from the host nor synchronises, so calls can be captured in CUDA graphs.
#pragma once

#include <cstdint>

#include "core/cuda/launch.h"
#include "resample/cuda/kernel_arguments.h"
#include "resample/host_table.h"

namespace torch_dnnl::cuda {

constexpr int kFewTableBytes = 3 << 10, kMostTableBytes = 28 << 10;

template <class W>
struct KernelInstances {
  void (*few)(ArgumentsWithTables<W, kFewTableBytes>);
  void (*most)(ArgumentsWithTables<W, kMostTableBytes>);
};

// What the records of a call are made from. Equal axes share one table.
template <class W>
struct TapSources {
  struct Source {
    HostTableKey axis;
    TapTable table;
  };
  Source sources[4];
  int count = 0;
  int64_t bytes = 0; // of all records

  TapTable add(const HostTableKey& axis, int64_t slots) {
    int i = 0;
    while (i < count && !(sources[i].axis == axis && sources[i].table.slots == slots))
      i++;
    if (i == count) {
      const TapTable table{bytes, TapTable::bytes_of<W>(slots), static_cast<int32_t>(slots)};
      bytes += (axis.transposed ? axis.spec.in : axis.spec.out) * table.record_bytes;
      sources[count++] = {axis, table};
    }
    return sources[i].table;
  }
};

// Copies the records from those that are kept on the host.
template <class W>
void copy_records(const TapSources<W>& sources, unsigned char* records);

// Builds them on the device. The memory must live until the kernel that reads it is queued.
template <class W>
Scratch build_records(const TapSources<W>& sources);

} // namespace torch_dnnl::cuda
