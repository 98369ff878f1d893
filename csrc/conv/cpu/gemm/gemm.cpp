// Convolution whose taps never meet in a pixel, on the CPU: 1x1 kernels with any stride, and
// patches side by side. Each of its three passes is one matrix product, whatever the layouts.
#include <algorithm>
#include <cstring>

#include "conv/cpu/gemm/blocking.h"
#include "conv/cpu/gemm/operand.h"
#include "conv/cpu/gemm/output.h"
#include "conv/cpu/gemm/view.h"
#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/kernels.h"
#include "conv/cpu/shared/reduce.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// A part of the product, which is computed at once.
struct GemmPart {
  Range rows, columns, depth;
};

// What a thread works with.
template <class C>
struct Workspace {
  GemmOffsets offsets;
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
    parallel_tasks(tasks, operations, [&](int64_t begin, int64_t end) {
      const Workspace<C> own{
          GemmOffsets(b),
          left_.workspace(),
          right_.workspace(),
          Scratch<C>(b.keeps_sums ? 0 : b.block_size())};
      for (int64_t task = begin; task < end; task++) {
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
      for (int64_t j = 0; j < columns; j += kPanel<C>) {
        C *const panel = sums + j * rows, *to = panel;
        const C* start = panel;
        int64_t to_row = kPanel<C>, start_row = kPanel<C>, start_vector = kLanes<C>;
        if (is_last && output_.is_direct(block, j, own.offsets)) {
          const int64_t *row = own.offsets.rows.data(), *column = own.offsets.columns.data();
          to = reinterpret_cast<C*>(output_.group(block.group)) + row[0] + column[j];
          to_row = rows > 1 ? row[1] - row[0] : 0;
        }
        if (is_first && view_.is_transposed) {
          start = bias_.at(block.group, block.columns.begin + j);
          start_row = 0;
          start_vector = bias_.channel_step() * kLanes<C>;
        } else if (is_first) {
          start = bias_.at(block.group, block.rows.begin);
          start_row = bias_.channel_step();
          start_vector = 0;
        }
        for (int64_t i = 0; i < rows; i += kGemmRows) {
          gemm<C>(
              std::min<int64_t>(kGemmRows, rows - i),
              ceil_div(std::min(kPanel<C>, columns - j), kLanes<C>),
              step.count(),
              {{a.data + i / kGemmRows * a.step, {a.row}, {a.column}},
               {b.data + j / kPanel<C> * b.step, {kPanel<C>}},
               {start + i * start_row, start_row, start_vector},
               {to + i * to_row, to_row}});
        }
      }
    }
  }

  void store_kept() const {
    const GemmBlocking& b = blocking_;
    const int64_t step = b.chunks * b.block_size();
    add_chunks<C>({kept_.data(), outputs(), step, b.block_size(), b.chunks, b.block_size()});
    parallel_tasks(outputs(), b.block_size(), [&](int64_t begin, int64_t end) {
      const GemmOffsets offsets(b);
      for (int64_t i = begin; i < end; i++) {
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
  GemmOperand<T, GemmSide::left> left_{view_, blocking_};
  GemmOperand<T, GemmSide::right> right_{view_, blocking_};
  const GemmOutput<T> output_{p_, view_, blocking_.keeps_sums};
  const Bias<T> bias_{p_, round_up(p_.oc, kPanel<C>), view_.is_transposed ? 1 : kLanes<C>};
  // Sums of [group][block][chunk].
  const Scratch<C> kept_{
      blocking_.keeps_sums ? outputs() * blocking_.chunks * blocking_.block_size() : 0};
};

// Pixels of src that no pixel of dst is computed from have a gradient of 0.
void clear_uncovered(const ConvProblem& p) {
  bool is_covered = true;
  for (int a = 0; a < 3; a++)
    is_covered &= p.dst_size[a] * p.kernel[a] == p.src_size[a];
  if (is_covered)
    return;
  const int64_t bytes =
      p.n * p.groups * p.ic * product(p.src_size) * int64_t(c10::elementSize(p.dtype));
  at::parallel_for(0, bytes, int64_t(1) << 18, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(p.out) + begin, 0, end - begin);
  });
}

} // namespace

// Kernels that lie within the image; and pixels of the source that belong to one pixel of the
// result each, so that what is made of them is a matrix.
bool supports_gemm(const ConvProblem& p) {
  for (int a = 0; a < 3; a++) {
    const int64_t reach = (p.kernel[a] - 1) * p.dilation[a] + 1;
    const bool is_inside =
        p.pad[a] == 0 && (p.dst_size[a] - 1) * p.stride[a] + reach <= p.src_size[a];
    if (!is_inside || (p.kernel[a] > 1 && reach > p.stride[a]))
      return false;
  }
  return true;
}

void run_gemm(const ConvProblem& p) {
  if (p.pass == ConvPass::backward_data)
    clear_uncovered(p);
  const GemmView view = gemm_view(p);
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    const GemmBlocking blocking = gemm_blocking(view, at::get_num_threads(), sizeof(compute_t<T>));
    Gemm<T>(p, view, blocking).run();
  });
}

} // namespace torch_dnnl
