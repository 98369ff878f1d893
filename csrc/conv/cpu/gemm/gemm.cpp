// Convolution whose taps never meet in a pixel, on the CPU: 1x1 kernels with any stride, and
// patches side by side. Each of its three passes is one matrix product, whatever the layouts.
#include <algorithm>

#include "conv/cpu/gemm/output.h"
#include "conv/cpu/gemm/plan.h"
#include "conv/cpu/gemm/targets.h"
#include "conv/cpu/shared/clear.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/reduce.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// Panels `step` apart, of kPanel rows each or, of the left unless it is packed, of kGemmRows.
// Element (i, d) of a panel is at i * row + d * column; panels of the right have rows next to each
// other. The first row is row `first` of a panel.
template <class C>
struct GemmPanels {
  const C* data;
  int64_t step, row, column;
  bool is_wide;
  int64_t first = 0;

  const C* at(int64_t i) const {
    return data + panel_of(i) * step + (first + i - panel_of(i) * width()) * row;
  }
  // Rows from row i to the end of its panel.
  int64_t rows_from(int64_t i) const {
    return (panel_of(i) + 1) * width() - first - i;
  }

 private:
  int64_t width() const {
    return is_wide ? kPanel<C> : kGemmRows;
  }
  int64_t panel_of(int64_t i) const { // a quotient by a constant
    return is_wide ? (first + i) / kPanel<C> : (first + i) / kGemmRows;
  }
};

// Panels begin a few lines apart from a power of two, for they are written side by side.
constexpr int64_t panel_step(int64_t width, int64_t depth) {
  return width * depth + 16;
}
constexpr int64_t panels_size(int64_t rows, int64_t width, int64_t depth) {
  return ceil_div(rows, width) * panel_step(width, depth);
}

// Memory of one thread, for panels of a block in one step of the depth.
template <class C>
struct GemmWorkspace {
  Scratch<C> panels;
  Scratch<int64_t> rows, depth; // offsets
};

// The panels that a product reads of one of its two matrices: packed once for all tasks, packed by
// the task that reads them, or, of a left matrix, the rows where they lie.
template <class T, bool kIsLeft>
class GemmOperand {
 public:
  using C = compute_t<T>;
  static constexpr int64_t kWidth = kIsLeft ? kGemmRows : kPanel<C>;

  GemmOperand(const GemmView& view, const GemmBlocking& b) : view_(view), b_(b) {}

  GemmWorkspace<C> workspace() const {
    const bool is_packed = is_shared_ || matrix_.packed != nullptr;
    const int64_t rows = is_packed ? 0 : kIsLeft ? b_.rows : b_.columns;
    const int64_t depth = is_packed ? 0 : kGemmDepth;
    return {Scratch<C>(size(rows, depth)), Scratch<int64_t>(rows), Scratch<int64_t>(depth)};
  }

  // Packs these rows and depth of all groups, if the matrix is shared and they are not packed yet.
  void share(Range rows, Range depth) {
    if (!is_shared_ || (rows == rows_ && depth == depth_))
      return;
    rows_ = rows;
    depth_ = depth;
    constexpr int64_t at_once = kTaskRows / kWidth * kWidth;
    const int64_t n = rows.count(), tasks = ceil_div(n, at_once), terms = depth.count();
    parallel_tasks(view_.groups * tasks, 16 * at_once * terms, [&](SharedTasks::OfThread mine) {
      const Scratch<int64_t> row_offsets(at_once), depth_offsets(terms);
      const Offsets columns = matrix_.columns.offsets(depth, depth_offsets.data());
      for (const int64_t task : mine) {
        const int64_t group = task / tasks, first = task % tasks * at_once;
        const Range some{rows.begin + first, rows.begin + std::min(first + at_once, n)};
        const Offsets of_rows = matrix_.rows.offsets(some, row_offsets.data());
        pack(group, of_rows, columns, shared_at(group, first));
      }
    });
  }

  // Panels of these rows and depth of a group: part of what is shared, or else packed into `own`.
  GemmPanels<C> panels(int64_t group, Range rows, Range depth, const GemmWorkspace<C>& own) const {
    if (is_shared_) {
      const C* first = shared_at(group, rows.begin - rows_.begin);
      return {
          first + (depth.begin - depth_.begin) * kWidth, step(depth_.count()), 1, kWidth, !kIsLeft};
    }
    if (matrix_.packed != nullptr) {
      constexpr int64_t width = kPanel<C>;
      const int64_t all = kIsLeft ? view_.rows : view_.columns, panel = rows.begin / width;
      const C* first = static_cast<const C*>(matrix_.packed) +
          group * panels_size(all, width, view_.depth) + panel * panel_step(width, view_.depth);
      return {
          first + depth.begin * width,
          panel_step(width, view_.depth),
          1,
          width,
          true,
          rows.begin % width};
    }
    const Offsets row = matrix_.rows.offsets(rows, own.rows.data());
    const Offsets column = matrix_.columns.offsets(depth, own.depth.data());
    if constexpr (kIsLeft && std::is_same_v<T, C>) {
      if (are_even(row) && is_run(column)) {
        const int64_t row_step = row.size() > 1 ? row[1] - row[0] : 0;
        return {data(group) + row[0] + column[0], row_step * kWidth, row_step, 1, !kIsLeft};
      }
    }
    pack(group, row, column, own.panels.data());
    return {own.panels.data(), step(depth.count()), 1, kWidth, !kIsLeft};
  }

 private:
  static constexpr int64_t kTaskRows = 128; // that a task packs for all tasks

  static int64_t step(int64_t depth) {
    return panel_step(kWidth, depth);
  }
  static int64_t size(int64_t rows, int64_t depth) {
    return panels_size(rows, kWidth, depth);
  }

  const T* data(int64_t group) const {
    return static_cast<const T*>(matrix_.data) + group * matrix_.group_step;
  }
  // [group][panel][depth][row of the panel]
  C* shared_at(int64_t group, int64_t row) const {
    const int64_t depth = depth_.count();
    return shared_.data() + group * size(rows_.count(), depth) + size(row, depth);
  }

  void pack(int64_t group, Offsets rows, Offsets depth, C* to) const {
    pack_panels<kWidth>(data(group), rows, depth, to, step(std::ssize(depth)));
  }

  const GemmView& view_;
  const GemmBlocking& b_;
  const GemmMatrix& matrix_ = kIsLeft ? view_.left : view_.right;
  const bool is_shared_ = kIsLeft ? b_.shares_left : b_.shares_right;
  const int64_t part_rows_ = kIsLeft ? b_.part_rows : b_.part_columns;
  const Scratch<C> shared_{is_shared_ ? view_.groups * size(part_rows_, b_.part_depth) : 0};
  Range rows_{}, depth_{}; // that are packed
};

// A part of the product, which is computed at once.
struct GemmPart {
  Range rows, columns, depth;
};

// Bytes of panels that are read at the rate of products for each row of the left.
constexpr int64_t kCachedPanels = 64 * 1024;

// What a thread works with.
template <class C>
struct Workspace {
  GemmOffsets offsets;
  Scratch<GemmTarget<C>> targets; // of the panels of a block
  GemmWorkspace<C> left, right;
  Scratch<C> sums;
};

// Runs a blocking of a view. A task computes one block for one chunk of the depth. Sums are made in
// the order of the depth; where they are results, the last step of the depth stores them there from
// registers.
template <class T>
class Gemm {
  using C = compute_t<T>;

 public:
  Gemm(const ConvProblem& p, const GemmView& view, const GemmBlocking& blocking)
      : p_(p), view_(view), blocking_(blocking) {}

  void run() {
    const GemmBlocking& b = blocking_;
    const int64_t row_parts = ceil_div(view_.rows, b.part_rows);
    const int64_t column_parts = ceil_div(view_.columns, b.part_columns);
    for (int64_t d = 0; d < view_.depth; d += b.part_depth) {
      for (int64_t i = 0; i < row_parts * column_parts; i++) {
        // Parts of the weights change last, for weights take longer to pack than images.
        const int64_t row = view_.is_transposed ? i % row_parts : i / column_parts;
        const int64_t column = view_.is_transposed ? i / row_parts : i % column_parts;
        const GemmPart part{
            nth_range(row, b.part_rows, view_.rows),
            nth_range(column, b.part_columns, view_.columns),
            {d, std::min(d + b.part_depth, view_.depth)}};
        left_.share(part.rows, part.depth);
        right_.share(part.columns, part.depth);
        multiply(part);
      }
    }
    if (b.keeps_sums)
      store_kept();
  }

 private:
  int64_t outputs() const {
    return view_.groups * blocking_.blocks();
  }

  // Stores the results of a part, or adds its sums to those that are kept.
  void multiply(const GemmPart& part) {
    const GemmBlocking& b = blocking_;
    const Range chunks = b.chunks_in(part.depth);
    const int64_t count = chunks.count();
    // Parts are whole blocks, but for the last one.
    const int64_t first_row = part.rows.begin / b.rows;
    const int64_t first_column = part.columns.begin / b.columns;
    const int64_t rows = ceil_div(part.rows.end, b.rows) - first_row;
    const int64_t columns = ceil_div(part.columns.end, b.columns) - first_column;
    const int64_t operations = b.block_size() * ceil_div(part.depth.count(), count);
    const int64_t tasks = view_.groups * rows * columns * count;
    parallel_tasks(tasks, operations, [&](SharedTasks::OfThread mine) {
      const Workspace<C> own{
          GemmOffsets(b),
          Scratch<GemmTarget<C>>(ceil_div(b.columns, kPanel<C>)),
          left_.workspace(),
          right_.workspace(),
          Scratch<C>(b.keeps_sums ? 0 : b.block_size())};
      for (const int64_t task : mine) {
        Digits digits{task};
        const int64_t chunk = chunks.begin + digits.next(count);
        const int64_t column = first_column + digits.next(columns);
        const int64_t row = first_row + digits.next(rows);
        const GemmBlock block = gemm_block(view_, b, digits.rest, row, column);
        const Range of_chunk{b.begin_of(chunk), b.begin_of(chunk + 1)};
        const Range depth{
            std::max(of_chunk.begin, part.depth.begin), std::min(of_chunk.end, part.depth.end)};
        C* const sums = b.keeps_sums
            ? kept_.data() + (block.index * b.chunks + chunk) * b.block_size()
            : own.sums.data();
        own.offsets.select(view_, block);
        multiply(block, depth, depth.begin == of_chunk.begin, own, sums);
        if (!b.keeps_sums)
          output_.store(block, own.offsets, sums);
      }
    });
  }

  void multiply(const GemmBlock& block, Range depth, bool begins, const Workspace<C>& own, C* sums)
      const {
    const int64_t rows = block.rows.count(), columns = block.columns.count();
    for (int64_t d = depth.begin; d < depth.end; d += kGemmDepth) {
      const Range step{d, std::min(d + kGemmDepth, depth.end)};
      const GemmPanels<C> a = left_.panels(block.group, block.rows, step, own.left);
      const GemmPanels<C> b = right_.panels(block.group, block.columns, step, own.right);
      const bool is_first = begins && d == depth.begin, is_last = step.end == depth.end;
      const Bounds<C> bounds = is_last ? output_.bounds() : Bounds<C>{};
      GemmTarget<C>* const targets = own.targets.data();
      for (int64_t j = 0; j < columns; j += kPanel<C>)
        targets[j / kPanel<C>] = targets_.at(block, j, is_first, is_last, own.offsets, sums);
      // Lines of pixels are far apart: each is written to its end, if the panels stay in a cache.
      const bool are_lines = !view_.is_transposed && targets[0].data != sums;
      const bool stay = columns * step.count() * int64_t(sizeof(C)) <= kCachedPanels;
      const int64_t strip = are_lines && stay ? kGemmRows : rows;
      for (int64_t first = 0; first < rows; first += strip) {
        const int64_t end = std::min(first + strip, rows);
        for (int64_t j = 0; j < columns; j += kPanel<C>) {
          const GemmTarget<C>& c = targets[j / kPanel<C>];
          for (int64_t count, i = first; i < end; i += count) {
            count = std::min(a.rows_from(i), end - i);
            gemm<C>(
                count,
                ceil_div(std::min(kPanel<C>, columns - j), kLanes<C>),
                step.count(),
                {{a.at(i), {a.row}, {a.column}},
                 {b.at(j), {kPanel<C>}},
                 {c.start + i * c.start_row, c.start_row, c.start_vector},
                 {c.data + i * c.row, c.row},
                 bounds});
          }
        }
      }
    }
  }

  void store_kept() const {
    const GemmBlocking& b = blocking_;
    const int64_t step = b.chunks * b.block_size();
    add_chunks<C>({kept_.data(), outputs(), step, b.block_size(), b.chunks, b.block_size()});
    parallel_tasks(outputs(), b.block_size(), [&](SharedTasks::OfThread mine) {
      const GemmOffsets offsets(b);
      for (const int64_t i : mine) {
        Digits digits{i};
        const int64_t column = digits.next(b.column_blocks), row = digits.next(b.row_blocks);
        const GemmBlock block = gemm_block(view_, b, digits.rest, row, column);
        offsets.select(view_, block);
        output_.store(block, offsets, kept_.data() + i * step);
      }
    });
  }

  const ConvProblem& p_;
  const GemmView& view_;
  const GemmBlocking& blocking_;
  GemmOperand<T, /*kIsLeft=*/true> left_{view_, blocking_};
  GemmOperand<T, /*kIsLeft=*/false> right_{view_, blocking_};
  const GemmOutput<T> output_{p_, view_, blocking_.keeps_sums};
  const GemmTargets<T> targets_{p_, view_, output_};
  // Sums of [group][block][chunk].
  const Scratch<C> kept_{
      blocking_.keeps_sums ? outputs() * blocking_.chunks * blocking_.block_size() : 0};
};

// Whether every pixel of src belongs to a pixel of dst.
bool is_covered(const ConvProblem& p) {
  bool result = true;
  for (int a = 0; a < 3; a++)
    result &= p.dst_size[a] * p.kernel[a] == p.src_size[a];
  return result;
}

// Backward data completes pixels next to each other; of several taps, it only adds a bias.
bool supports_epilogue(const ConvProblem& p) {
  if (p.pass != ConvPass::backward_data || !has_epilogue(p))
    return true;
  return is_covered(p) && (product(p.kernel) == 1 || Epilogue<float>(p).is_empty());
}

} // namespace

// [group][panel of output channels][term][channel of the panel]
int64_t packed_size(const ConvProblem& p) {
  int64_t size = 0;
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    size = p.groups * panels_size(p.oc, kPanel<C>, p.ic * product(p.kernel)) * sizeof(C);
  });
  return size;
}

bool pack(const ConvProblem& p, void* to) {
  const GemmMatrix weights = weights_matrix(p);
  const int64_t terms = weights.columns.count();
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    constexpr int64_t width = kPanel<C>;
    const int64_t panels = ceil_div(p.oc, width), step = panel_step(width, terms);
    parallel_tasks(p.groups * panels, 16 * width * terms, [&](SharedTasks::OfThread mine) {
      const Scratch<int64_t> row_offsets(width), depth_offsets(terms);
      const Offsets columns = weights.columns.offsets({0, terms}, depth_offsets.data());
      for (const int64_t i : mine) {
        const Range channels = nth_range(i % panels, width, p.oc);
        const Offsets rows = weights.rows.offsets(channels, row_offsets.data());
        const T* from = static_cast<const T*>(p.weights) + i / panels * weights.group_step;
        pack_panels<width>(from, rows, columns, static_cast<C*>(to) + i * step, step);
      }
    });
  });
  return true;
}

// With several taps, the terms have the order of the image's memory.
int64_t layout(const ConvProblem& p) {
  return product(p.kernel) > 1 && are_channels_fastest(p);
}

// Kernels that lie within the image; and pixels of the source that belong to one pixel of the
// result each, so that what is made of them is a matrix.
bool supports_gemm(const ConvProblem& p) {
  if (!supports_epilogue(p))
    return false;
  for (int a = 0; a < 3; a++) {
    const int64_t reach = (p.kernel[a] - 1) * p.dilation[a] + 1;
    const bool is_inside =
        p.pad[a] == 0 && (p.dst_size[a] - 1) * p.stride[a] + reach <= p.src_size[a];
    if (!is_inside || (p.kernel[a] > 1 && reach > p.stride[a]))
      return false;
  }
  return true;
}

const Packing<ConvProblem> gemm_packing{packed_size, pack, layout};

void run_gemm(const ConvProblem& p) {
  // Pixels of src that no pixel of dst is computed from have a gradient of 0.
  if (p.pass == ConvPass::backward_data && !is_covered(p))
    clear_images(p);
  const GemmView view = gemm_view(p);
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    const GemmBlocking blocking = gemm_blocking(view, at::get_num_threads(), sizeof(compute_t<T>));
    Gemm<T>(p, view, blocking).run();
  });
}

} // namespace torch_dnnl
