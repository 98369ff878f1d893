// Runs the plans of the rows kernel.
#include "resample/cpu/rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
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

// Memory of a thread.
template <class C>
struct RowMemory {
  template <class T>
  using Vectors = std::vector<T, VectorAllocator<T>>;

  alignas(64) C short_line[kShortLine]; // of small images: an allocation would take longer
  Vectors<C> long_line;
  Vectors<C> result; // what is converted to a rare type
  // Taps first: source rows with the taps applied, and which ones they are.
  Vectors<C> slots;
  const char* source[kMaxRows] = {};

  C* line(int64_t n) {
    n += kSlack<C>;
    if (n <= kShortLine)
      return short_line;
    long_line.resize(std::max<size_t>(long_line.size(), n));
    return long_line.data();
  }
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

// n elements of `bytes` each.
void fill(char* dst, int64_t n, int64_t bytes, uint64_t value) {
  const auto as = [&](auto tag) {
    using T = decltype(tag);
    std::fill_n(reinterpret_cast<T*>(dst), n, static_cast<T>(value)); // its first bytes
  };
  switch (bytes) {
    case 1:
      return as(uint8_t{});
    case 2:
      return as(uint16_t{});
    case 4:
      return as(uint32_t{});
    default:
      return as(uint64_t{});
  }
}

// Source rows as lines, and lines as output rows.
template <class C>
class RowMaker {
 public:
  RowMaker(const RowPlan<C>& plan, const RowPasses<C>& passes, RowMemory<C>& memory)
      : plan_(plan), passes_(passes), memory_(memory) {}

  void fill_piece(char* dst, const RowPiece& piece) const {
    fill(dst, piece.size * plan_.channels, plan_.dst_steps.element, plan_.empty_in_dst);
  }

  // A source row, or a part of it: as it is, unless windows would reach beyond the image.
  const void* moved(const char* row, const RowPiece& piece) const {
    const int64_t n = source_elements(piece), bytes = plan_.src_steps.element;
    return has_slack(row, n) ? row : std::memcpy(memory_.line(n), row, n * bytes);
  }

  // The line that rows of the source add up to, beside what `line` has; null: nothing yet.
  const void* added(const WeightedRowList<C>& list, const void* line, const RowPiece& piece) const {
    const bool is_first = line == nullptr;
    if (plan_.source_is_line && is_first && list.count == 1 && list.weights[0] == 1)
      return moved(static_cast<const char*>(list.rows[0]), piece);
    const int64_t n = source_elements(piece);
    C* const to = memory_.line(n);
    passes_.src.read(list, is_first, n, to, Target::line);
    return to;
  }

  // The taps, applied to a line from piece.low on, or to a source row of bytes.
  void apply_taps(const void* line, const RowPiece& piece, C* to) const {
    apply_taps(passes_.line, line, plan_.line_bytes, piece, {to, Target::line, &plan_.empty});
  }
  void apply_taps_to_bytes(const char* row, const RowPiece& piece, C* to) const {
    passes_.src.gather_window_of_bytes(
        static_cast<const char*>(moved(row, piece)) - piece.low * plan_.channels,
        *plan_.taps,
        piece.begin * plan_.channels,
        piece.size * plan_.channels,
        {to, Target::line, &plan_.empty});
  }

  // The same, into a row of dst.
  void apply_last_taps(const void* line, const RowPiece& piece, char* dst) const {
    const void* empty = &plan_.empty;
    if (plan_.only_moves)
      empty = &plan_.empty_in_dst;
    if (passes_.dst.gather != nullptr)
      return apply_taps(passes_.dst, line, plan_.line_bytes, piece, {dst, plan_.target, empty});
    const int64_t n = piece.size * plan_.channels;
    memory_.result.resize(std::max<size_t>(memory_.result.size(), n));
    apply_taps(line, piece, memory_.result.data());
    const void* rows[] = {memory_.result.data()};
    const C weight[] = {1};
    passes_.dst.write({rows, weight, 1}, true, n, dst, plan_.target);
  }

  // In registers. False if these rows need a line: there is no such pass, windows of several pixels
  // would reach beyond the image, or one row makes up a result at the border.
  bool add_in_registers(WeightedRowList<C> list, const RowPiece& piece, char* dst) const {
    const auto& src = passes_.src;
    const RowEnd end{dst, plan_.target, &plan_.empty};
    const void* rows[kMaxRows]; // from pixel 0 on
    for (int64_t i = 0; i < list.count; i++)
      rows[i] = static_cast<const char*>(list.rows[i]) - piece.low * plan_.src_steps.w;
    const WeightedRowList<C> whole{rows, list.weights, list.count};
    const int64_t channels = plan_.channels;
    if (plan_.taps == nullptr) {
      if (src.sum_rows == nullptr)
        return false;
      src.sum_rows(whole, *plan_.w, channels, piece.begin, piece.size, end);
      return true;
    }
    if (src.gather_rows == nullptr || list.count != 2 ||
        !has_slack(static_cast<const char*>(list.rows[1]), source_elements(piece)))
      return false;
    src.gather_rows(whole, *plan_.taps, piece.begin * channels, piece.size * channels, end);
    return true;
  }

 private:
  int64_t source_elements(const RowPiece& piece) const {
    return (piece.high - piece.low) * plan_.channels;
  }

  // Whether a window that begins among n elements of a source row ends in the image.
  bool has_slack(const char* row, int64_t n) const {
    return row + (n + kSlack<C>)*plan_.src_steps.element <= plan_.src_end;
  }

  void apply_taps(
      const ImagePasses<C>& to,
      const void* line,
      int64_t element, // bytes
      const RowPiece& piece,
      const RowEnd& end) const {
    const int64_t channels = plan_.channels;
    const void* from = static_cast<const char*>(line) - piece.low * channels * element;
    if (plan_.taps != nullptr) {
      to.gather(from, *plan_.taps, piece.begin * channels, piece.size * channels, end);
    } else {
      to.sum(from, *plan_.w, channels, piece.begin, piece.size, end);
    }
  }

  const RowPlan<C>& plan_;
  const RowPasses<C>& passes_;
  RowMemory<C>& memory_;
};

// The order add_first, and in_registers.
template <class C>
class AddFirst {
 public:
  AddFirst(const RowPlan<C>& plan, const RowMaker<C>& maker) : plan_(plan), maker_(maker) {}

  // A piece of row h of a plane. `repeats`: it is that of the row above.
  void make(const Plane<C>& plane, int64_t h, const RowPiece& piece, bool repeats) const {
    const RowSteps &from = plan_.src_steps, &to = plan_.dst_steps;
    char* const dst = plane.dst + h * to.h + piece.begin * to.w;
    if (repeats && plan_.target != Target::stream)
      return copy_row(dst - to.h, dst, piece.size * plan_.channels * to.element);
    const HostTable<C>& table = *plan_.h;
    const Grid grid{
        plane.src + table.start[h] * from.h + piece.low * from.w,
        plane.count,
        table.count[h],
        plane.weights,
        &table.weights[h * table.width]};
    if (grid.planes * grid.rows == 0)
      return maker_.fill_piece(dst, piece);
    if (plan_.only_moves)
      return maker_.apply_last_taps(maker_.moved(grid.first, piece), piece, dst);
    if (plan_.order == RowOrder::in_registers && is_made_in_registers(grid, piece, dst))
      return;
    maker_.apply_last_taps(line_of(grid, piece), piece, dst);
  }

 private:
  // The source rows of an output row, planes x rows, and the weight of each plane and row.
  struct Grid {
    const char* first;
    int64_t planes, rows;
    const C *plane_weights, *row_weights;
  };

  // f(rows) for lists of kMaxRows, and of those that are left.
  template <class F>
  void for_each_list(const Grid& grid, const F& f) const {
    const void* rows[kMaxRows];
    C weights[kMaxRows];
    int64_t count = 0;
    for (int64_t i = 0; i < grid.planes; i++) {
      const char* row = grid.first + i * plan_.src_steps.d;
      for (int64_t j = 0; j < grid.rows; j++, row += plan_.src_steps.h) {
        if (count == kMaxRows) {
          f(WeightedRowList<C>{rows, weights, count});
          count = 0;
        }
        rows[count] = row, weights[count++] = grid.plane_weights[i] * grid.row_weights[j];
      }
    }
    f(WeightedRowList<C>{rows, weights, count});
  }

  bool is_made_in_registers(const Grid& grid, const RowPiece& piece, char* dst) const {
    bool is_made = false;
    for_each_list(grid, [&](const auto& list) { // one: an order for kMaxRows at most
      is_made = maker_.add_in_registers(list, piece, dst);
    });
    return is_made;
  }

  const void* line_of(const Grid& grid, const RowPiece& piece) const {
    const void* line = nullptr;
    for_each_list(grid, [&](const auto& list) { line = maker_.added(list, line, piece); });
    return line;
  }

  const RowPlan<C>& plan_;
  const RowMaker<C>& maker_;
};

// The order taps_first: in one piece.
template <class C>
class TapsFirst {
 public:
  TapsFirst(
      const RowPlan<C>& plan,
      const RowPasses<C>& passes,
      const RowMaker<C>& maker,
      RowMemory<C>& memory)
      : plan_(plan),
        passes_(passes),
        maker_(maker),
        memory_(memory),
        line_(round_up(plan.pieces[0].size * plan.channels, kLanes<C>)),
        slots_d_(std::bit_ceil(static_cast<uint64_t>(plan.d->width))),
        slots_h_(std::bit_ceil(static_cast<uint64_t>(plan.h->width))) {
    memory.slots.resize(line_ * slots_d_ * slots_h_);
  }

  // Rows [begin, end) of a plane.
  void make(const Plane<C>& plane, int64_t begin, int64_t end) const {
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
      for (int64_t i = 0; i < plane.count; i++) {
        for (int64_t j = 0; j < count; j++)
          weights[i * count + j] = plane.weights[i] * row_weights[j];
      }
      passes_.dst.write(
          {rows, weights, plane.count * count},
          true,
          piece.size * plan_.channels,
          dst,
          plan_.target);
    }
  }

 private:
  // The source rows of output row h with the taps applied. Rows that are needed together have slots
  // of their own, where they stay for the next output rows.
  void find_rows(const Plane<C>& plane, int64_t h, const void** rows) const {
    const HostTable<C>& table = *plan_.h;
    const RowSteps& step = plan_.src_steps;
    for (int64_t i = plane.start; i < plane.start + plane.count; i++) {
      for (int64_t j = table.start[h]; j < table.start[h] + table.count[h]; j++) {
        // Numbers of slots are powers of two: to find one takes no division.
        const int64_t slot = (i & (slots_d_ - 1)) * slots_h_ + (j & (slots_h_ - 1));
        const char* row =
            plane.src + (i - plane.start) * step.d + j * step.h + plan_.pieces[0].low * step.w;
        C* to = memory_.slots.data() + slot * line_;
        if (memory_.source[slot] != row) {
          apply_taps(row, to);
          memory_.source[slot] = row;
        }
        *rows++ = to;
      }
    }
  }

  void apply_taps(const char* row, C* to) const {
    const RowPiece& piece = plan_.pieces[0];
    if (plan_.takes_bytes())
      return maker_.apply_taps_to_bytes(row, piece, to);
    const void* rows[] = {row};
    const C weight[] = {1};
    maker_.apply_taps(maker_.added({rows, weight, 1}, nullptr, piece), piece, to);
  }

  const RowPlan<C>& plan_;
  const RowPasses<C>& passes_;
  const RowMaker<C>& maker_;
  RowMemory<C>& memory_;
  int64_t line_;              // elements of a slot
  int64_t slots_d_, slots_h_; // kMaxRows at most
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
  RowMemory<C> memory;
  const RowMaker<C> maker(plan, passes, memory);
  const AddFirst<C> add_first(plan, maker);
  std::optional<TapsFirst<C>> taps_first;
  if (plan.order == RowOrder::taps_first)
    taps_first.emplace(plan, passes, maker, memory);
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
        add_first.make(plane, h, plan.pieces[piece], repeats);
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
template <class E>
void run_moves(const ResampleProblem& p) {
  using C = WeightOf<E>;
  const ImagePasses<C>& passes = moves_of<E>();
  run_plan<C>(plan_rows(p, cached_tables<C>(p.axes, p.transposed), true), {passes, passes, passes});
}

void run_moves(const ResampleProblem& p) {
  switch (c10::elementSize(p.src_dtype)) {
    case 1:
      return run_moves<uint8_t>(p);
    case 2:
      return run_moves<uint16_t>(p);
    case 4:
      return run_moves<uint32_t>(p);
    default:
      return run_moves<uint64_t>(p);
  }
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
  dispatch(ImageTypes{}, p.src_dtype, [&](auto src) {
    using T = typename decltype(src)::type;
    using C = compute_t<T>;
    const auto tables = cached_tables<C>(p.axes, p.transposed);
    if (is_moved(p, tables))
      return run_moves(p);
    const auto plan = plan_rows(p, tables, false);
    dispatch(ImageTypes{}, p.dst_dtype, [&](auto dst) {
      using U = typename decltype(dst)::type;
      run_plan<C>(plan, {passes_of<T, C>(), passes_of<C, C>(), passes_of<U, C>()});
    });
  });
}

} // namespace torch_dnnl
