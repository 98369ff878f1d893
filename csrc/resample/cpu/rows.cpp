// Runs the plans of the rows kernel.
#include "resample/cpu/rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/cpu/stream.h"
#include "core/dispatch.h"
#include "core/math.h"
#include "resample/cpu/row_plan.h"

namespace torch_dnnl {
namespace {

// Elements of a line that has its place on the stack.
constexpr int64_t kShortLine = 512;
// Operations below which a thread costs more than it brings.
constexpr int64_t kLeastOperations = 16384;

// The passes of a pair of types.
template <class C>
struct RowPasses {
  const ImagePasses<C>&src, &line, &dst;
};

// An output plane, and the first of the source planes that it is made of.
template <class C>
struct Plane {
  const char* src;
  char* dst;
  const C* weights;     // of the source planes
  int64_t start, count; // source planes
};

void copy_row(const char* from, char* to, int64_t bytes) {
  constexpr int64_t line = 64, group = 8 * line;
  for (int64_t i = 0; i < bytes; i += group) {
    const int64_t end = std::min(bytes, i + group);
    for (int64_t at = i; at < end; at += line)
      __builtin_prefetch(to + at + kPrefetch, 1);
    std::memcpy(to + i, from + i, end - i);
  }
}

template <class T>
using Vectors = std::vector<T, VectorAllocator<T>>;

// Source rows as lines, and lines as output rows, with the memory of a thread.
template <class C>
class RowMaker {
 public:
  const RowPlan<C>& plan;
  const RowPasses<C>& passes;

  RowMaker(const RowPlan<C>& plan, const RowPasses<C>& passes) : plan(plan), passes(passes) {}

  void fill_piece(char* dst, const RowPiece& piece) const {
    dispatch_bytes(plan.dst_steps.element, [&]<class E>(std::type_identity<E>) {
      const auto value = static_cast<E>(plan.empty_in_dst); // its first bytes
      std::fill_n(reinterpret_cast<E*>(dst), piece.size * plan.channels, value);
    });
  }

  // A source row, or a part of it: as it is, unless windows would reach beyond the image.
  const void* moved(const char* row, const RowPiece& piece) {
    const int64_t n = source_elements(piece), bytes = plan.src_steps.element;
    return has_slack(row, n) ? row : std::memcpy(line_of(n), row, n * bytes);
  }

  // The line that rows of the source add up to, beside what `line` has; null: nothing yet.
  const void* added(const WeightedRowList<C>& list, const void* line, const RowPiece& piece) {
    const bool is_first = line == nullptr;
    if (plan.source_is_line && is_first && list.count == 1 && list.weights[0] == 1)
      return moved(static_cast<const char*>(list.rows[0]), piece);
    const int64_t n = source_elements(piece);
    C* const to = line_of(n);
    passes.src.read(list, is_first, n, to, Target::line);
    return to;
  }

  // The taps, applied to the part of a source row that begins at piece.low.
  void apply_taps(const char* row, const RowPiece& piece, C* to) {
    if (plan.takes_bytes()) {
      const auto* bytes = static_cast<const char*>(moved(row, piece));
      const RowPart<C> part = part_of(piece, to, Target::line, &plan.empty);
      return passes.src.apply_taps_to_bytes(bytes - piece.low * plan.channels, part);
    }
    const void* rows[] = {row};
    const C weight[] = {1};
    apply_taps(passes.line, added({rows, weight, 1}, nullptr, piece), piece, to, Target::line);
  }

  // The taps, applied to a line from piece.low on, into a row of dst.
  void apply_last_taps(const void* line, const RowPiece& piece, char* dst) {
    if (passes.dst.apply_taps != nullptr)
      return apply_taps(passes.dst, line, piece, dst, plan.target);
    const int64_t n = piece.size * plan.channels;
    result_.resize(std::max<size_t>(result_.size(), n));
    apply_taps(passes.line, line, piece, result_.data(), Target::line);
    const void* rows[] = {result_.data()};
    const C weight[] = {1};
    passes.dst.write({rows, weight, 1}, true, n, dst, plan.target);
  }

  // In registers. False if these rows need a line: there is no such pass, windows of several pixels
  // would reach beyond the image, or one row makes up a result at the border.
  bool add_in_registers(const WeightedRowList<C>& list, const RowPiece& piece, char* dst) const {
    if (passes.src.apply_taps_to_rows == nullptr)
      return false;
    if (plan.taps != nullptr &&
        (list.count != 2 ||
         !has_slack(static_cast<const char*>(list.rows[1]), source_elements(piece))))
      return false;
    const void* rows[kMaxRows]; // from pixel 0 on
    for (int64_t i = 0; i < list.count; i++)
      rows[i] = static_cast<const char*>(list.rows[i]) - piece.low * plan.src_steps.w;
    passes.src.apply_taps_to_rows(
        {rows, list.weights, list.count}, part_of(piece, dst, plan.target, &plan.empty));
    return true;
  }

 private:
  int64_t source_elements(const RowPiece& piece) const {
    return (piece.high - piece.low) * plan.channels;
  }

  // Whether a window that begins among n elements of a source row ends in the image.
  bool has_slack(const char* row, int64_t n) const {
    return row + (n + kSlack<C>)*plan.src_steps.element <= plan.src_end;
  }

  C* line_of(int64_t n) {
    n += kSlack<C>;
    if (n <= kShortLine)
      return short_line_;
    long_line_.resize(std::max<size_t>(long_line_.size(), n));
    return long_line_.data();
  }

  RowPart<C> part_of(const RowPiece& piece, void* to, Target target, const void* empty) const {
    return {*plan.w, plan.taps.get(), plan.channels, piece.begin, piece.size, to, target, empty};
  }

  void apply_taps(
      const ImagePasses<C>& of_type,
      const void* line,
      const RowPiece& piece,
      void* to,
      Target target) const {
    const void* empty = &plan.empty;
    if (plan.only_moves)
      empty = &plan.empty_in_dst;
    const int64_t before = piece.low * plan.channels * plan.line_bytes;
    of_type.apply_taps(static_cast<const char*>(line) - before, part_of(piece, to, target, empty));
  }

  alignas(64) C short_line_[kShortLine]; // of small images: an allocation would take longer
  Vectors<C> long_line_;
  Vectors<C> result_; // what is converted to a rare type
};

// The orders add_first and in_registers: a piece of row h of a plane. `repeats`: it is that of the
// row above.
template <class C>
void make_piece(
    RowMaker<C>& maker,
    const Plane<C>& plane,
    int64_t h,
    const RowPiece& piece,
    bool repeats) {
  const RowPlan<C>& plan = maker.plan;
  const RowSteps &from = plan.src_steps, &to = plan.dst_steps;
  char* const dst = plane.dst + h * to.h + piece.begin * to.w;
  if (repeats && plan.target != Target::stream)
    return copy_row(dst - to.h, dst, piece.size * plan.channels * to.element);
  const HostTable<C>& table = *plan.h;
  const C* const row_weights = &table.weights[h * table.width];
  const char* const first = plane.src + table.start[h] * from.h + piece.low * from.w;
  if (plane.count * table.count[h] == 0)
    return maker.fill_piece(dst, piece);
  if (plan.only_moves)
    return maker.apply_last_taps(maker.moved(first, piece), piece, dst);
  // Lists of kMaxRows, and of those that are left.
  const void* rows[kMaxRows];
  C weights[kMaxRows];
  int64_t count = 0;
  const void* line = nullptr;
  for (int64_t i = 0; i < plane.count; i++) {
    const char* row = first + i * from.d;
    for (int64_t j = 0; j < table.count[h]; j++, row += from.h) {
      if (count == kMaxRows)
        line = maker.added({rows, weights, std::exchange(count, 0)}, line, piece);
      rows[count] = row, weights[count++] = plane.weights[i] * row_weights[j];
    }
  }
  // In registers there is one list: that order is for kMaxRows at most.
  if (plan.order == RowOrder::in_registers &&
      maker.add_in_registers({rows, weights, count}, piece, dst))
    return;
  maker.apply_last_taps(maker.added({rows, weights, count}, line, piece), piece, dst);
}

// The order taps_first: in one piece. Source rows with the taps applied have slots, where they stay
// for the next output rows; rows that are needed together have slots of their own.
template <class C>
class TapsFirst {
 public:
  explicit TapsFirst(RowMaker<C>& maker)
      : maker_(maker),
        plan_(maker.plan),
        line_(round_up(plan_.pieces[0].size * plan_.channels, kLanes<C>)),
        slots_d_(std::bit_ceil(static_cast<uint64_t>(plan_.d->width))),
        slots_h_(std::bit_ceil(static_cast<uint64_t>(plan_.h->width))),
        slots_(line_ * slots_d_ * slots_h_) {}

  // Rows [begin, end) of a plane.
  void make(const Plane<C>& plane, int64_t begin, int64_t end) {
    const HostTable<C>& table = *plan_.h;
    const RowPiece& piece = plan_.pieces[0];
    const void* rows[kMaxRows];
    C weights[kMaxRows];
    for (int64_t h = begin; h < end; h++) {
      char* const dst = plane.dst + h * plan_.dst_steps.h;
      const int64_t count = table.count[h];
      if (plane.count * count == 0) {
        maker_.fill_piece(dst, piece);
        continue;
      }
      if (h == begin || !plan_.repeats_row(h))
        find_rows(plane, h, rows);
      const C* row_weights = &table.weights[h * table.width];
      for (int64_t i = 0; i < plane.count; i++)
        for (int64_t j = 0; j < count; j++)
          weights[i * count + j] = plane.weights[i] * row_weights[j];
      const int64_t n = piece.size * plan_.channels;
      maker_.passes.dst.write({rows, weights, plane.count * count}, true, n, dst, plan_.target);
    }
  }

 private:
  // The source rows of output row h.
  void find_rows(const Plane<C>& plane, int64_t h, const void** rows) {
    const HostTable<C>& table = *plan_.h;
    const RowPiece& piece = plan_.pieces[0];
    const RowSteps& step = plan_.src_steps;
    for (int64_t i = plane.start; i < plane.start + plane.count; i++) {
      for (int64_t j = table.start[h]; j < table.start[h] + table.count[h]; j++) {
        // Numbers of slots are powers of two: to find one takes no division.
        const int64_t slot = (i & (slots_d_ - 1)) * slots_h_ + (j & (slots_h_ - 1));
        const char* row = plane.src + (i - plane.start) * step.d + j * step.h + piece.low * step.w;
        C* to = slots_.data() + slot * line_;
        if (source_[slot] != row) {
          maker_.apply_taps(row, piece, to);
          source_[slot] = row;
        }
        *rows++ = to;
      }
    }
  }

  RowMaker<C>& maker_;
  const RowPlan<C>& plan_;
  int64_t line_;              // elements of a slot
  int64_t slots_d_, slots_h_; // kMaxRows at most
  Vectors<C> slots_;
  const char* source_[kMaxRows] = {}; // which row of the source a slot has
};

template <class C>
Plane<C> plane_of(const RowPlan<C>& plan, int64_t n, int64_t c, int64_t d) {
  const RowSteps &src = plan.src_steps, &dst = plan.dst_steps;
  const HostTable<C>& table = *plan.d;
  return {
      plan.src + n * src.n + c * src.c + table.start[d] * src.d,
      plan.dst + n * dst.n + c * dst.c + d * dst.d,
      &table.weights[d * table.width],
      table.start[d],
      table.count[d]};
}

// A task is a piece of an output row. A thread has tasks of neighbouring rows.
template <class C>
void run_tasks(const RowPlan<C>& plan, const RowPasses<C>& passes, int64_t begin, int64_t end) {
  RowMaker<C> maker(plan, passes);
  std::optional<TapsFirst<C>> taps_first;
  if (plan.order == RowOrder::taps_first)
    taps_first.emplace(maker);
  const int64_t pieces = plan.pieces.size();
  Digits task{begin};
  int64_t piece = task.next(pieces), h = task.next(plan.rows), d = task.next(plan.planes);
  int64_t c = task.next(plan.images), n = task.rest;
  const int64_t above = begin + pieces; // from here on this thread made the row above, too
  while (begin < end) {
    const Plane<C> plane = plane_of(plan, n, c, d);
    if (taps_first) {
      const int64_t first = h;
      h = std::min(plan.rows, first + end - begin);
      begin += h - first;
      taps_first->make(plane, first, h);
    }
    for (; h < plan.rows && begin < end; h++, piece = 0) {
      const bool repeats = plan.only_moves && begin >= above && plan.repeats_row(h);
      for (; piece < pieces && begin < end; piece++, begin++)
        make_piece(maker, plane, h, plan.pieces[piece], repeats);
    }
    h = 0;
    if (++d == plan.planes) {
      d = 0;
      if (++c == plan.images)
        c = 0, n++;
    }
  }
  if (plan.target == Target::stream)
    finish_streaming();
}

template <class C>
void run_plan(const RowPlan<C>& plan, const RowPasses<C>& passes) {
  const int64_t tasks =
      plan.n * plan.images * plan.planes * plan.rows * static_cast<int64_t>(plan.pieces.size());
  const int64_t operations =
      plan.pieces[0].size * plan.channels * (plan.d->width * plan.h->width + plan.w->width + 2);
  at::parallel_for(0, tasks, kLeastOperations / operations + 1, [&](int64_t begin, int64_t end) {
    run_tasks(plan, passes, begin, end);
  });
}

bool is_step(const int64_t* size, const int64_t* stride, int64_t step) {
  return size[2] == 1 || stride[4] == step;
}

bool is_planar(const ResampleProblem& p) {
  return is_step(p.src_size, p.src_stride, 1) && is_step(p.dst_size, p.dst_stride, 1);
}

template <class C>
bool is_moved(const ResampleProblem& p, const Tables<C>& tables) {
  return p.src_dtype == p.dst_dtype && tables[0]->copies && tables[1]->copies && tables[2]->copies;
}

// Elements are moved as integers of their size.
void run_moves(const ResampleProblem& p) {
  dispatch_bytes(c10::elementSize(p.src_dtype), [&]<class E>(std::type_identity<E>) {
    using C = WeightOf<E>;
    const ImagePasses<C>& passes = moves_of<E>();
    const auto tables = cached_tables<C>(p.axes, p.transposed);
    run_plan<C>(plan_rows(p, tables, true), {passes, passes, passes});
  });
}

} // namespace

bool is_interleaved(const ResampleProblem& p) {
  return p.src_stride[1] == 1 && p.dst_stride[1] == 1 && is_step(p.src_size, p.src_stride, p.c) &&
      is_step(p.dst_size, p.dst_stride, p.c);
}

bool supports_rows(const ResampleProblem& p) {
  return (is_planar(p) || is_interleaved(p)) &&
      p.src_size[2] <= std::numeric_limits<int32_t>::max() / p.c; // the taps' index
}

void run_rows(const ResampleProblem& p) {
  dispatch(ImageTypes{}, p.src_dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    const auto tables = cached_tables<C>(p.axes, p.transposed);
    if (is_moved(p, tables))
      return run_moves(p);
    const auto plan = plan_rows(p, tables, false);
    dispatch(ImageTypes{}, p.dst_dtype, [&]<class U>(std::type_identity<U>) {
      run_plan<C>(plan, {passes_of<T, C>(), passes_of<C, C>(), passes_of<U, C>()});
    });
  });
}

} // namespace torch_dnnl
