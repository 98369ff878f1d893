// The records of the tables of a call, copied or built; see make_tables.h.
#include "resample/cuda/make_tables.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/cache.h"

namespace torch_dnnl::cuda {
namespace {

struct RecordsKey {
  HostTableKey axis;
  int64_t slots;

  bool operator==(const RecordsKey&) const = default;
};

// The records that BuildTapTables would build, from the table on the host.
template <class W>
class HostRecords {
 public:
  explicit HostRecords(const RecordsKey& key) {
    const SharedTable<W> host = cached_table<W>(key.axis.spec, key.axis.transposed);
    const TapTable table{0, TapTable::bytes_of<W>(key.slots), static_cast<int32_t>(key.slots)};
    records_.resize(host->out * table.record_bytes);
    for (int64_t row = 0; row < host->out; row++) {
      TapRecord* record = table.record(records_.data(), row);
      const int64_t start = host->start[row], count = host->count[row];
      *record = {static_cast<int32_t>(start), static_cast<int32_t>(start + count)};
      for (int64_t tap = 0; tap < count; tap++)
        weights_of<W>(record)[(start + tap) % key.slots] = host->weights[row * host->width + tap];
    }
  }

  void copy_to(unsigned char* records) const {
    std::copy(records_.begin(), records_.end(), records);
  }
  size_t bytes() const {
    return records_.size();
  }

 private:
  std::vector<unsigned char> records_;
};

// Builds the records of all tables of a call, with an index for each output of each axis.
template <class W>
struct BuildTapTables {
  using Source = typename TapSources<W>::Source;
  TapSources<W> tables;
  unsigned char* records;

  int64_t outputs() const {
    int64_t outputs = 0;
    for (int i = 0; i < tables.count; i++)
      outputs += tables.sources[i].axis.spec.out;
    return outputs;
  }

  TORCH_DNNL_HD void operator()(int64_t o) const {
    int i = 0;
    while (o >= tables.sources[i].axis.spec.out)
      o -= tables.sources[i++].axis.spec.out;
    const Source& source = tables.sources[i];
    const AxisSpec& spec = source.axis.spec;
    const bool transposed = source.axis.transposed;
    const auto record = [&](int64_t row) { return source.table.record(records, row); };
    const int32_t slots = source.table.slots;
    const Range row = build_row(spec, o, [&](int64_t index, int64_t, double weight) {
      const int64_t reader = transposed ? index : o, read = transposed ? o : index;
      weights_of<W>(record(reader))[read % slots] = static_cast<W>(weight);
    });
    if (transposed)
      write_bounds(source, o, row);
    else
      *record(o) = {static_cast<int32_t>(row.begin), static_cast<int32_t>(row.end)};
  }

  // Rows are in order, so input i is read from the first output that ends beyond it to the last one
  // that does not start beyond it. Output o settles this for the inputs between its own bounds and
  // those of the output before it, and the last output for the inputs that follow.
  TORCH_DNNL_HD void write_bounds(const Source& source, int64_t o, const Range& row) const {
    const AxisSpec& spec = source.axis.spec;
    Range before{0, 0};
    if (o > 0)
      before = build_row(spec, o - 1, [](int64_t, int64_t, double) {});
    const auto record = [&](int64_t i) { return source.table.record(records, i); };
    const auto output = static_cast<int32_t>(o);
    const bool is_last = o == spec.out - 1;
    for (int64_t i = before.end; i < row.end; i++)
      record(i)->first = output;
    for (int64_t i = before.begin; i < row.begin; i++)
      record(i)->end = output;
    for (int64_t i = row.end; is_last && i < spec.in; i++)
      record(i)->first = output + 1;
    for (int64_t i = row.begin; is_last && i < spec.in; i++)
      record(i)->end = output + 1;
  }
};

} // namespace

template <class W>
void copy_records(const TapSources<W>& sources, unsigned char* records) {
  static Cache<RecordsKey, HostRecords<W>> cache;
  for (int i = 0; i < sources.count; i++) {
    const auto& [axis, table] = sources.sources[i];
    cache.get({axis, table.slots})->copy_to(records + table.offset);
  }
}

template <class W>
Scratch build_records(const TapSources<W>& sources) {
  Scratch memory(sources.bytes);
  const BuildTapTables<W> build{sources, static_cast<unsigned char*>(memory.data())};
  for_each_element(build.outputs(), build);
  return memory;
}

template void copy_records(const TapSources<float>&, unsigned char*);
template void copy_records(const TapSources<double>&, unsigned char*);
template Scratch build_records(const TapSources<float>&);
template Scratch build_records(const TapSources<double>&);

} // namespace torch_dnnl::cuda
