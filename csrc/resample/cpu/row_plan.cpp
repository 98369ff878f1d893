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

// Whether a pixel is made of vectors of its own.
template <class C>
bool has_wide_pixels(const RowPlan<C>& p) {
  return p.channels > 1 &&
      (p.channels >= 2 * kLanes<C> || p.w->width * p.w->out * p.channels > kMaxTaps);
}

// Whether the taps are better applied to source rows, at a cost of `gather_cost`, and the rows
// added up then. A source row serves several output rows when the image grows.
template <class C>
bool prefers_taps_first(const RowPlan<C>& p, double gather_cost) {
  const HostTable<C>&h = *p.h, &w = *p.w;
  const int64_t most = p.d->width * h.width;
  if (p.only_moves || w.has_empty_rows || most == 1 || most > kMaxRows ||
      w.out * p.channels > kLongestRow)
    return false;
  const auto size = [](int64_t n) { return static_cast<double>(n); };
  const double taps = size(w.width) * size(w.out), rows = size(most);
  const double sources_per_row = size(h.in) / size(h.out);
  return sources_per_row * gather_cost * taps + rows * size(w.out) <
      kGatherCost * taps + rows * size(w.in);
}

// Whether the rows of wide pixels are better added up tap by tap: where products are few, or hardly
// an element of a line would be read twice.
template <class C>
bool prefers_registers(const RowPlan<C>& p) {
  const int64_t rows = p.d->width * p.h->width, taps = p.w->width;
  return !p.only_moves && p.has_one_type && rows <= kMaxRows &&
      (rows * taps <= kFewProducts || p.w->out * taps <= p.w->in + p.w->in / 2);
}

// Whether rows of narrow pixels may be added up and their taps applied in registers: what is
// written to a line and read at once has to wait for the stores before it.
template <class C>
bool may_gather_two_rows(const RowPlan<C>& p) {
  return LanesWindow<1, C>::is_loaded && !p.only_moves && p.has_one_type && p.d->width == 1 &&
      p.h->width == 2 && p.w->width == 2;
}

// Chooses plan.order and plan.taps, given the images.
template <class C>
void choose_order(RowPlan<C>& plan) {
  using enum RowOrder;
  const auto taps_of = [&](Row row) { return cached_taps(plan.w, plan.channels, row); };
  plan.order = prefers_taps_first(plan, kGatherCost) ? taps_first : add_first;
  if (has_wide_pixels(plan)) {
    if (prefers_registers(plan))
      plan.order = in_registers;
    return;
  }
  if (may_gather_two_rows(plan)) {
    plan.taps = taps_of(Row::read);
    if (can_gather_rows(plan.taps->window)) {
      plan.order = in_registers;
      return;
    }
  }
  if constexpr (std::is_same_v<C, float> && ByteWindow::kBytes > 0) {
    if (plan.source_is_bytes && prefers_taps_first(plan, kByteGatherCost)) {
      plan.taps = taps_of(Row::bytes);
      if (plan.takes_bytes()) {
        plan.order = taps_first;
        return;
      }
    }
  }
  const bool meets_image =
      plan.source_is_line && (plan.order == taps_first || (plan.d->copies && plan.h->copies));
  plan.taps = taps_of(meets_image ? Row::read : Row::written);
}

template <class C>
c10::SmallVector<RowPiece, 2> cut_pieces(const RowPlan<C>& plan) {
  const HostTable<C>& w = *plan.w;
  int64_t width = std::max<int64_t>(1, kPiece / plan.channels);
  if (plan.order == RowOrder::taps_first)
    width = w.out;
  else if (plan.taps != nullptr)
    width = std::max(width / kLanes<C>, int64_t(1)) * kLanes<C>; // whole blocks of taps
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
  const RowSteps src = steps_of(p.src_stride, p.src_dtype);
  const RowSteps dst = steps_of(p.dst_stride, p.dst_dtype);
  const auto* const begin = static_cast<const char*>(p.src);
  const int64_t last = (p.n - 1) * src.n + (p.c - 1) * src.c + (p.src_size[0] - 1) * src.d +
      (p.src_size[1] - 1) * src.h + (p.src_size[2] - 1) * src.w;
  const bool is_large = p.n * p.c * product(p.dst_size) * dst.element > kStreamedImageBytes;
  RowPlan<C> plan{
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
      .d = tables[0],
      .h = tables[1],
      .w = tables[2],
      .only_moves = only_moves,
      .has_one_type = p.src_dtype == p.dst_dtype,
      .source_is_line = only_moves || p.src_dtype == c10::CppTypeToScalarType<C>::value,
      .source_is_bytes = p.src_dtype == c10::ScalarType::Byte,
      .line_bytes = only_moves ? src.element : static_cast<int64_t>(sizeof(C)),
      .target = is_large ? Target::stream : Target::image,
      .empty = static_cast<C>(p.extrapolation_value)};
  store(&plan.empty_in_dst, p.dst_dtype, 0, plan.empty);
  choose_order(plan);
  plan.pieces = cut_pieces(plan);
  return plan;
}

template RowPlan<float> plan_rows(const ResampleProblem&, const Tables<float>&, bool);
template RowPlan<double> plan_rows(const ResampleProblem&, const Tables<double>&, bool);

} // namespace torch_dnnl
