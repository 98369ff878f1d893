// The choices of the rows kernel, and what they were measured by.
#include "resample/cpu/row_plan.h"

#include <algorithm>

#include "core/cpu/stream.h"
#include "core/math.h"
#include "resample/cpu/rows.h"

namespace torch_dnnl {
namespace {

// Elements of a piece of an output row: its source rows fit in the first-level cache.
constexpr int64_t kPiece = 2048;
// Elements of an output row that is made in one piece, taps first: kMaxRows lines of them fit in
// the second-level cache.
constexpr int64_t kLongestRow = 16384;
// Pixels with few channels are treated as a row of elements, unless its taps grow beyond this.
constexpr int64_t kMaxTaps = int64_t(1) << 16;
// A tap of a gathered element takes as long as this many of an element of a whole row (measured).
constexpr double kGatherCost = 2.5;
constexpr double kByteGatherCost = 1.5; // of a row of bytes
// Pixels of many channels: so many products take less time than a pass that results would share
// (x2, bilinear: 0.52 ms instead of 0.70).
constexpr int64_t kFewProducts = 4;

// What the choices depend on.
template <class C>
struct RowTask {
  const HostTable<C>&d, &h, &w;
  int64_t channels; // of a pixel of a row
  bool only_moves;
  bool has_one_type; // source and result
  c10::ScalarType src_dtype;
};

// Whether a pixel is made of vectors of its own.
template <class C>
bool has_wide_pixels(const RowTask<C>& t) {
  return t.channels > 1 &&
      (t.channels >= 2 * kLanes<C> || t.w.width * t.w.out * t.channels > kMaxTaps);
}

// Whether the taps are better applied to source rows, at a cost of `gather_cost`, and the rows
// added up then. A source row serves several output rows when the image grows.
template <class C>
bool prefers_taps_first(const RowTask<C>& t, double gather_cost) {
  const int64_t most = t.d.width * t.h.width;
  if (t.only_moves || t.w.has_empty_rows || most == 1 || most > kMaxRows ||
      t.w.out * t.channels > kLongestRow)
    return false;
  const auto size = [](int64_t n) { return static_cast<double>(n); };
  const double taps = size(t.w.width) * size(t.w.out), rows = size(most);
  const double sources_per_row = size(t.h.in) / size(t.h.out);
  return sources_per_row * gather_cost * taps + rows * size(t.w.out) <
      kGatherCost * taps + rows * size(t.w.in);
}

// Whether the rows of wide pixels are better added up tap by tap: where products are few, or hardly
// an element of a line would be read twice.
template <class C>
bool prefers_registers(const RowTask<C>& t) {
  const int64_t rows = t.d.width * t.h.width;
  return !t.only_moves && t.has_one_type && rows <= kMaxRows &&
      (rows * t.w.width <= kFewProducts || t.w.out * t.w.width <= t.w.in + t.w.in / 2);
}

// Whether rows of narrow pixels may be added up and their taps applied in registers: what is
// written to a line and read at once has to wait for the stores before it.
template <class C>
bool may_gather_two_rows(const RowTask<C>& t) {
  return LanesWindow<1, C>::is_loaded && !t.only_moves && t.has_one_type && t.d.width == 1 &&
      t.h.width == 2 && t.w.width == 2;
}

template <class C>
struct Approach {
  RowOrder order;
  std::shared_ptr<const Taps<C>> taps;
};

template <class C>
Approach<C> choose_approach(const RowTask<C>& t, const SharedTable<C>& table) {
  using enum RowOrder;
  const auto taps_of = [&](Row row) { return cached_taps(table, t.channels, row); };
  if (has_wide_pixels(t)) {
    if (prefers_registers(t))
      return {in_registers, nullptr};
    return {prefers_taps_first(t, kGatherCost) ? taps_first : add_first, nullptr};
  }
  if (may_gather_two_rows(t)) {
    auto taps = taps_of(Row::read);
    if (can_gather_rows(taps->window))
      return {in_registers, std::move(taps)};
  }
  if constexpr (std::is_same_v<C, float> && ByteWindow::kBytes > 0) {
    if (t.src_dtype == c10::ScalarType::Byte && prefers_taps_first(t, kByteGatherCost)) {
      auto taps = taps_of(Row::bytes);
      if (taps->window == Window::bytes)
        return {taps_first, std::move(taps)};
    }
  }
  const RowOrder order = prefers_taps_first(t, kGatherCost) ? taps_first : add_first;
  const bool is_line = t.only_moves || t.src_dtype == c10::CppTypeToScalarType<C>::value;
  const bool meets_image = is_line && (order == taps_first || (t.d.copies && t.h.copies));
  return {order, taps_of(meets_image ? Row::read : Row::written)};
}

template <class C>
c10::SmallVector<RowPiece, 2> cut_pieces(const RowTask<C>& t, const Approach<C>& approach) {
  const HostTable<C>& w = t.w;
  int64_t width = std::max<int64_t>(1, kPiece / t.channels);
  if (approach.order == RowOrder::taps_first) {
    width = w.out;
  } else if (approach.taps != nullptr) {
    width = std::max(width / kLanes<C>, int64_t(1)) * kLanes<C>; // whole blocks of taps
  }
  const auto end_of = [&](int64_t o) { return w.start[o] + w.count[o]; };
  c10::SmallVector<RowPiece, 2> pieces;
  for (int64_t begin = 0; begin < w.out; begin += width) {
    const int64_t size = std::min(width, w.out - begin);
    // Rows of the table are in order, or in reverse order.
    const int64_t one = begin, other = begin + size - 1;
    const int64_t low = std::min({w.start[one], w.start[other], w.in - 1});
    const int64_t high = std::max({end_of(one), end_of(other), low + 1});
    // `low` is a whole number of vectors, as the bases of the taps are.
    pieces.push_back({begin, size, low / kLanes<C> * kLanes<C>, high});
  }
  return pieces;
}

RowSteps steps_of(const int64_t (&stride)[5], c10::ScalarType type) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(type));
  return {
      .n = stride[0] * bytes,
      .c = stride[1] * bytes,
      .d = stride[2] * bytes,
      .h = stride[3] * bytes,
      .w = stride[4] * bytes,
      .element = bytes};
}

} // namespace

template <class C>
RowPlan<C> plan_rows(const ResampleProblem& p, const Tables<C>& tables, bool only_moves) {
  const int64_t channels = is_interleaved(p) ? p.c : 1;
  const RowTask<C> task{
      .d = *tables[0],
      .h = *tables[1],
      .w = *tables[2],
      .channels = channels,
      .only_moves = only_moves,
      .has_one_type = p.src_dtype == p.dst_dtype,
      .src_dtype = p.src_dtype};
  const Approach<C> approach = choose_approach(task, tables[2]);
  const RowSteps src = steps_of(p.src_stride, p.src_dtype);
  const RowSteps dst = steps_of(p.dst_stride, p.dst_dtype);
  const auto* const begin = static_cast<const char*>(p.src);
  const int64_t last = (p.n - 1) * src.n + (p.c - 1) * src.c + (p.src_size[0] - 1) * src.d +
      (p.src_size[1] - 1) * src.h + (p.src_size[2] - 1) * src.w;
  const bool is_large = p.n * p.c * product(p.dst_size) * dst.element > kStreamedImageBytes;
  const auto empty = static_cast<C>(p.extrapolation_value);
  uint64_t empty_in_dst = 0;
  store(&empty_in_dst, p.dst_dtype, 0, empty);
  return {
      .src = begin,
      .src_end = begin + last + src.element,
      .dst = static_cast<char*>(p.dst),
      .src_steps = src,
      .dst_steps = dst,
      .n = p.n,
      .images = channels == 1 ? p.c : 1,
      .planes = p.dst_size[0],
      .rows = p.dst_size[1],
      .channels = channels,
      .tables = tables,
      .order = approach.order,
      .taps = approach.taps,
      .pieces = cut_pieces(task, approach),
      .only_moves = only_moves,
      .source_is_line = only_moves || p.src_dtype == c10::CppTypeToScalarType<C>::value,
      .line_bytes = only_moves ? src.element : static_cast<int64_t>(sizeof(C)),
      .target = is_large ? Target::stream : Target::image,
      .empty = empty,
      .empty_in_dst = empty_in_dst};
}

template RowPlan<float> plan_rows(const ResampleProblem&, const Tables<float>&, bool);
template RowPlan<double> plan_rows(const ResampleProblem&, const Tables<double>&, bool);

} // namespace torch_dnnl
