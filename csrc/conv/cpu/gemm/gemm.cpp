#include "conv/cpu/gemm/gemm.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "conv/cpu/shared/epilogue.h"
#include "conv/cpu/shared/packed_weights.h"
#include "conv/cpu/shared/panels.h"
#include "core/dispatch.h"

namespace torch_dnnl {
namespace {

// The blocks that stay in the second-level cache: of both matrices, and of their product.
constexpr int64_t kRows = 43 * kGemmRows; // 256, and the rest of a panel
constexpr int64_t kColumns = 256;
constexpr int64_t kDepth = 256;

// Of what is copied once, by each task.
constexpr int64_t kSharedRows = 128;
// Elements of an image that are copied at once, for each thread, and for the fewest of them.
constexpr int64_t kShared = int64_t(1) << 18, kFewThreads = 4;

// Of the sums over pixels: tasks for the threads to share, each of so many pixels at least.
constexpr int64_t kTasks = 32;
constexpr int64_t kTaskPixels = 1024;

// out(i, j) = sum over d of left(i, d) right(j, d). Of source, weights and result, two are
// multiplied and the third is `out`; each is a matrix of two of these axes: output channels, pixels
// of the result, and what a pixel of the result is computed from, which is input channels and taps.
//
// A task computes a block of the product, one block of the depth after the other. What it reads is
// copied into panels: by each task, or once for all if it is weights, or read by many tasks. Rows
// that few tasks read are not copied where they lie as products read them. Of an image, which may
// be large, only a part is copied at a time. Sums are made in the order of the depth: in chunks
// that depend on the problem alone for the weights' gradient, and in one chunk otherwise; the last
// of them go from registers to the result, if it can hold them.
template <class T>
class Patches {
  using C = compute_t<T>;

 public:
  explicit Patches(const ConvProblem& p) : p_(p), epilogue_(p) {
    const int64_t *xs = p.src_stride, *ys = p.dst_stride, *ws = p.weights_stride;
    const int64_t *y = p.dst_size, *k = p.kernel, *s = p.stride, *d = p.dilation;
    const Axis pixels_of_src{
        {p.n, y[0], y[1], y[2]}, {xs[0], xs[2] * s[0], xs[3] * s[1], xs[4] * s[2]}};
    const Axis pixels_of_dst{{p.n, y[0], y[1], y[2]}, {ys[0], ys[2], ys[3], ys[4]}};
    const Axis channels_of_dst{{1, 1, 1, p.oc}, {0, 0, 0, ys[1]}};
    const Axis channels_of_weights{{1, 1, 1, p.oc}, {0, 0, 0, ws[0]}};
    Axis terms_of_src{{p.ic, k[0], k[1], k[2]}, {xs[1], xs[2] * d[0], xs[3] * d[1], xs[4] * d[2]}};
    Axis terms_of_weights{{p.ic, k[0], k[1], k[2]}, {ws[1], ws[2], ws[3], ws[4]}};
    if (xs[1] == 1) { // channels run fastest
      for (Axis* axis : {&terms_of_src, &terms_of_weights}) {
        std::rotate(axis->size, axis->size + 1, axis->size + 4);
        std::rotate(axis->stride, axis->stride + 1, axis->stride + 4);
      }
    }
    const int64_t src_step = p.ic * xs[1], dst_step = p.oc * ys[1], weights_step = p.weights_group;
    switch (p.pass) {
      case ConvPass::forward:
        left_ = {p.weights, weights_step, channels_of_weights, terms_of_weights, channels_of_dst};
        right_ = {p.src, src_step, pixels_of_src, terms_of_src, pixels_of_dst};
        out_step_ = dst_step;
        break;
      case ConvPass::backward_data:
        left_ = {p.weights, weights_step, terms_of_weights, channels_of_weights, terms_of_src};
        right_ = {p.dst, dst_step, pixels_of_dst, channels_of_dst, pixels_of_src};
        out_step_ = src_step;
        break;
      case ConvPass::backward_weights:
        left_ = {p.dst, dst_step, channels_of_dst, pixels_of_dst, channels_of_weights};
        right_ = {p.src, src_step, terms_of_src, pixels_of_src, terms_of_weights};
        out_step_ = weights_step;
        break;
    }
    left_.is_shared = p.pass != ConvPass::backward_weights;
    // Columns of the product are those that lie next to each other.
    is_turned_ = right_.out.stride[3] != 1 && left_.out.stride[3] == 1;
    if (is_turned_)
      std::swap(left_, right_);
    rows_ = left_.across.count();
    columns_ = right_.across.count();
    depth_ = left_.depth.count();
    row_block_ = round_up(ceil_div(rows_, ceil_div(rows_, kRows)), kGemmRows);
    column_block_ = round_up(ceil_div(columns_, ceil_div(columns_, kColumns)), kPanel<C>);
    if (p.pass == ConvPass::backward_weights) {
      chunks_ = std::clamp<int64_t>(
          std::min(kTasks / blocks(), depth_ / kTaskPixels), 1, ceil_div(depth_, kDepth));
    }
    choose_blocks();
    left_.is_shared |= ceil_div(columns_, column_block_) > 2;
    right_.is_shared |= ceil_div(rows_, row_block_) > 2;
    sums_size_ = row_block_ * column_block_;
    choose_part();
    adds_up_ = chunks_ > 1 || part_.depth < depth_;
    fill_starts();
  }

  void run() {
    clear_uncovered();
    const Scratch<C> left(shared_size(left_)), right(shared_size(right_));
    const Scratch<C> partial(adds_up_ ? p_.groups * blocks() * chunks_ * sums_size_ : 0);
    const int64_t row_parts = ceil_div(rows_, part_.rows);
    const int64_t column_parts = ceil_div(columns_, part_.columns);
    for (int64_t d = 0; d < depth_; d += part_.depth) {
      for (int64_t i = 0; i < row_parts * column_parts; i++) {
        // Parts of the weights change last: to pack them takes longer.
        const int64_t row = (is_turned_ ? i % row_parts : i / column_parts) * part_.rows;
        const int64_t column = (is_turned_ ? i / row_parts : i % column_parts) * part_.columns;
        const Part part{
            row,
            std::min(part_.rows, rows_ - row),
            column,
            std::min(part_.columns, columns_ - column),
            d,
            std::min(part_.depth, depth_ - d)};
        pack_shared(left_, {row, part.rows, d, part.depth}, left.data());
        pack_shared(right_, {column, part.columns, d, part.depth}, right.data());
        multiply(part, partial.data());
      }
    }
    if (adds_up_)
      store_sums(partial.data());
  }

 private:
  // Rows of a matrix, and which of their depth.
  struct Panels {
    int64_t row, rows, first, depth;

    bool operator==(const Panels&) const = default;
  };

  // One of the two matrices that are multiplied, and where its rows are in the product.
  struct Operand {
    const void* data = nullptr;
    int64_t group_step = 0;
    Axis across{}, depth{}, out{};
    bool is_shared = false;
    const C* panels = nullptr; // [group][panel][depth][width] of `held`, if shared
    Panels held{};
  };

  // Of the product, what is computed at once: in blocks.
  struct Part {
    int64_t row, rows, column, columns, first, depth;
  };

  // Its index is that in the whole product.
  struct Block {
    int64_t index, group, row, rows, column, columns;
  };

  // What a thread works on.
  struct Workspace {
    explicit Workspace(const Patches& product)
        : sums(product.sums_size_),
          left(product.size(product.left_, product.row_block_, kDepth)),
          right(product.size(product.right_, product.column_block_, kDepth)),
          across(std::max(product.row_block_, product.column_block_)),
          depth(kDepth),
          rows(product.row_block_),
          columns(product.column_block_) {}
    Scratch<C> sums, left, right;
    Scratch<int64_t> across, depth; // offsets
    Scratch<int64_t> rows, columns; // of a block in the result
  };

  // Panels of one side of a block, `step` apart. Those of the left may be the matrix itself.
  struct PanelList {
    const C* data;
    int64_t step, row = 1, column = kGemmRows;
  };

  // Smaller blocks change no sum. As many blocks of rows for each thread are as much work.
  void choose_blocks() {
    const int64_t threads = at::get_num_threads(), enough = threads == 1 ? 1 : 4 * threads;
    const int64_t equal = round_up(ceil_div(rows_, row_block_), threads);
    if (chunks_ == 1 && rows_ >= equal * 16 * kGemmRows)
      row_block_ = round_up(ceil_div(rows_, equal), kGemmRows);
    while (chunks_ * blocks() < enough && column_block_ > kPanel<C>)
      column_block_ = round_up(column_block_ / 2, kPanel<C>);
    while (chunks_ * blocks() < enough && row_block_ > 4 * kGemmRows)
      row_block_ = round_up(row_block_ / 2, kGemmRows);
  }

  // How much of the product: that no more of an image or of the weights has to be copied, whatever
  // their sizes.
  void choose_part() {
    part_ = {0, rows_, 0, columns_, 0, depth_};
    const int64_t most = kShared * std::max<int64_t>(kFewThreads, at::get_num_threads());
    const auto units = [&](int64_t unit, int64_t elements, int64_t in_all) {
      return std::max<int64_t>(1, in_all / std::max<int64_t>(1, p_.groups * unit * elements)) *
          unit;
    };
    if (p_.pass == ConvPass::backward_weights) {
      const int64_t of_left = left_.is_shared ? rows_ : 0;
      const int64_t of_right = right_.is_shared ? columns_ : 0;
      part_.depth = std::min(depth_, units(kDepth, of_left + of_right, most));
      return;
    }
    constexpr int64_t most_weights = kMostPacked / sizeof(C);
    if (left_.is_shared)
      part_.rows = std::min(rows_, units(row_block_, depth_, is_turned_ ? most : most_weights));
    if (right_.is_shared) {
      part_.columns =
          std::min(columns_, units(column_block_, depth_, is_turned_ ? most_weights : most));
    }
  }

  int64_t blocks() const {
    return ceil_div(rows_, row_block_) * ceil_div(columns_, column_block_);
  }

  int64_t width(const Operand& side) const {
    return &side == &left_ ? kGemmRows : kPanel<C>;
  }

  Block block_of(const Part& part, int64_t index) const {
    const int64_t row_blocks = ceil_div(part.rows, row_block_);
    const int64_t column_blocks = ceil_div(part.columns, column_block_);
    Block block;
    block.column = part.column + index % column_blocks * column_block_;
    block.columns = std::min(column_block_, columns_ - block.column);
    index /= column_blocks;
    block.row = part.row + index % row_blocks * row_block_;
    block.rows = std::min(row_block_, rows_ - block.row);
    block.group = index / row_blocks;
    block.index = (block.group * ceil_div(rows_, row_block_) + block.row / row_block_) *
            ceil_div(columns_, column_block_) +
        block.column / column_block_;
    return block;
  }

  // Sums begin at the bias, of their row or of their column.
  void fill_starts() {
    const T* bias = static_cast<const T*>(p_.bias);
    starts_.assign(kPanel<C>, C(0));
    if (bias == nullptr)
      return;
    const int64_t copies = is_turned_ ? 1 : kLanes<C>;
    start_group_ = round_up(p_.oc, kPanel<C>) * copies;
    start_row_ = is_turned_ ? 0 : kLanes<C>;
    start_vector_ = is_turned_ ? kLanes<C> : 0;
    starts_.assign(p_.groups * start_group_, C(0));
    for (int64_t group = 0; group < p_.groups; group++) {
      for (int64_t c = 0; c < p_.oc; c++) {
        std::fill_n(
            starts_.data() + group * start_group_ + c * copies,
            copies,
            static_cast<C>(bias[(group * p_.oc + c) * p_.bias_stride]));
      }
    }
  }

  const C* start_of(const Block& block, int64_t column) const {
    const C* starts = starts_.data() + block.group * start_group_;
    return starts +
        (is_turned_ ? (block.column + column) * start_vector_ / kLanes<C> : block.row * start_row_);
  }

  // Where a chunk of the depth begins.
  int64_t begin_of(int64_t chunk) const {
    return std::min(ceil_div(depth_, kDepth) * chunk / chunks_ * kDepth, depth_);
  }

  // Pixels of the source that no pixel of the result is computed from.
  void clear_uncovered() const {
    if (p_.pass != ConvPass::backward_data)
      return;
    bool is_covered = true;
    for (int a = 0; a < 3; a++)
      is_covered &= p_.dst_size[a] * p_.kernel[a] == p_.src_size[a];
    if (is_covered)
      return;
    const int64_t bytes = p_.n * p_.groups * p_.ic * product(p_.src_size) * sizeof(T);
    at::parallel_for(0, bytes, int64_t(1) << 18, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(p_.out) + begin, 0, end - begin);
    });
  }

  void pack(
      const Operand& side,
      int64_t group,
      const int64_t* rows,
      int64_t n,
      const int64_t* columns,
      int64_t depth,
      C* to,
      int64_t step) const {
    const T* from = static_cast<const T*>(side.data) + group * side.group_step;
    if (&side == &left_) {
      pack_panels<kGemmRows>(from, rows, n, columns, depth, to, step);
    } else {
      pack_panels<kPanel<C>>(from, rows, n, columns, depth, to, step);
    }
  }

  // Panels begin a few lines apart from a power of two, for they are written side by side.
  int64_t panel_step(const Operand& side, int64_t depth) const {
    return width(side) * depth + 16;
  }

  int64_t size(const Operand& side, int64_t rows, int64_t depth) const {
    return ceil_div(rows, width(side)) * panel_step(side, depth);
  }

  int64_t shared_size(const Operand& side) const {
    const int64_t rows = &side == &left_ ? part_.rows : part_.columns;
    return side.is_shared ? p_.groups * size(side, rows, part_.depth) : 0;
  }

  void pack_shared(Operand& side, const Panels& part, C* to) const {
    if (!side.is_shared || side.held == part)
      return;
    const int64_t panel = width(side), rows = part.rows;
    const int64_t at_once = kSharedRows / panel * panel, tasks = ceil_div(rows, at_once);
    parallel_tasks(p_.groups * tasks, 16 * at_once * part.depth, [&](int64_t begin, int64_t end) {
      const Scratch<int64_t> across(at_once), depth(part.depth);
      side.depth.offsets(part.first, part.depth, depth.data());
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / tasks, first = task % tasks * at_once;
        const int64_t n = std::min(at_once, rows - first);
        side.across.offsets(part.row + first, n, across.data());
        C* panels = to + group * size(side, rows, part.depth) + size(side, first, part.depth);
        const int64_t step = panel_step(side, part.depth);
        pack(side, group, across.data(), n, depth.data(), part.depth, panels, step);
      }
    });
    side.panels = to;
    side.held = part;
  }

  PanelList panels(
      const Operand& side,
      int64_t group,
      int64_t first,
      int64_t n,
      int64_t from,
      int64_t depth,
      const Workspace& local,
      C* to) const {
    if (side.is_shared) {
      const Panels& held = side.held;
      const int64_t begin = group * size(side, held.rows, held.depth) +
          size(side, first - held.row, held.depth) + (from - held.first) * width(side);
      return {side.panels + begin, panel_step(side, held.depth)};
    }
    const int64_t step = panel_step(side, depth);
    int64_t *across = local.across.data(), *columns = local.depth.data();
    side.across.offsets(first, n, across);
    side.depth.offsets(from, depth, columns);
    if constexpr (std::is_same_v<T, C>) {
      if (&side == &left_ && are_even(across, n) && run_length(columns, depth) == depth) {
        const int64_t row = n > 1 ? across[1] - across[0] : 0;
        const C* data = static_cast<const C*>(side.data) + group * side.group_step;
        return {data + across[0] + columns[0], row * kGemmRows, row, 1};
      }
    }
    pack(side, group, across, n, columns, depth, to, step);
    return {to, step};
  }

  // Stores the product, or adds it to the sums of blocks and chunks.
  void multiply(const Part& part, C* partial) const {
    const int64_t end_of_part = part.first + part.depth;
    int64_t first_chunk = 0, last_chunk = 0; // that have some of the part's depth
    while (begin_of(first_chunk + 1) <= part.first)
      first_chunk++;
    while (last_chunk < chunks_ && begin_of(last_chunk) < end_of_part)
      last_chunk++;
    const int64_t chunks = last_chunk - first_chunk;
    const int64_t outputs =
        p_.groups * ceil_div(part.rows, row_block_) * ceil_div(part.columns, column_block_);
    const int64_t operations = row_block_ * column_block_ * ceil_div(part.depth, chunks);
    parallel_tasks(outputs * chunks, operations, [&](int64_t begin, int64_t end) {
      Workspace local(*this);
      for (int64_t task = begin; task < end; task++) {
        const Block block = block_of(part, task / chunks);
        const int64_t chunk = first_chunk + task % chunks;
        const int64_t first = std::max(begin_of(chunk), part.first);
        C* sums =
            adds_up_ ? partial + (block.index * chunks_ + chunk) * sums_size_ : local.sums.data();
        locate(block, local);
        const int64_t last = std::min(begin_of(chunk + 1), end_of_part);
        multiply(block, first, last, first == begin_of(chunk), local, sums);
        if (!adds_up_)
          store(block, local, sums);
      }
    });
  }

  void store_sums(C* partial) const {
    const int64_t outputs = p_.groups * blocks();
    parallel_tasks(outputs, chunks_ * sums_size_, [&](int64_t begin, int64_t end) {
      Workspace local(*this);
      for (int64_t i = begin; i < end; i++) {
        C* sums = partial + i * chunks_ * sums_size_;
        for (int64_t chunk = 1; chunk < chunks_; chunk++) {
          const C* more = sums + chunk * sums_size_;
          for (int64_t j = 0; j < sums_size_; j++)
            sums[j] += more[j];
        }
        const Block block = block_of({0, rows_, 0, columns_, 0, depth_}, i);
        locate(block, local);
        store(block, local, sums);
      }
    });
  }

  // Sums: [panel of columns][row][column of the panel], or in the result.
  void multiply(
      const Block& block,
      int64_t first,
      int64_t last,
      bool begins,
      const Workspace& local,
      C* sums) const {
    for (int64_t d = first; d < last; d += kDepth) {
      const int64_t depth = std::min(kDepth, last - d);
      const PanelList a =
          panels(left_, block.group, block.row, block.rows, d, depth, local, local.left.data());
      const PanelList b = panels(
          right_, block.group, block.column, block.columns, d, depth, local, local.right.data());
      for (int64_t j = 0; j < block.columns; j += kPanel<C>) {
        C *panel = sums + j * block.rows, *to = panel;
        int64_t to_row = kPanel<C>;
        if (d + depth == last && stores_at_once(block, j, local)) {
          to = static_cast<C*>(p_.out) + block.group * out_step_ + local.rows.data()[0] +
              local.columns.data()[j];
          to_row = block.rows > 1 ? local.rows.data()[1] - local.rows.data()[0] : 0;
        }
        const bool is_first = begins && d == first;
        const int64_t start_row = is_first ? start_row_ : kPanel<C>;
        const C* start = is_first ? start_of(block, j) : panel;
        for (int64_t i = 0; i < block.rows; i += kGemmRows) {
          torch_dnnl::multiply<C, Strided, Strided, Strided>(
              std::min<int64_t>(kGemmRows, block.rows - i),
              ceil_div(std::min(kPanel<C>, block.columns - j), kLanes<C>),
              depth,
              {a.data + i / kGemmRows * a.step,
               {a.row},
               {a.column},
               b.data + j / kPanel<C> * b.step,
               {kPanel<C>},
               start + i * start_row,
               start_row,
               is_first ? start_vector_ : kLanes<C>,
               to + i * to_row,
               to_row});
        }
      }
    }
  }

  // Whether sums are results: of whole vectors, at one distance, of columns that lie next to each
  // other.
  bool stores_at_once(const Block& block, int64_t column, const Workspace& local) const {
    const int64_t columns = std::min(kPanel<C>, block.columns - column);
    return std::is_same_v<T, C> && !adds_up_ && epilogue_.is_empty() && columns % kLanes<C> == 0 &&
        run_length(local.columns.data() + column, columns) == columns &&
        are_even(local.rows.data(), block.rows);
  }

  // Where the rows and columns of a block are in the result.
  void locate(const Block& block, const Workspace& local) const {
    left_.out.offsets(block.row, block.rows, local.rows.data());
    right_.out.offsets(block.column, block.columns, local.columns.data());
  }

  void store(const Block& block, const Workspace& local, const C* sums) const {
    if (!epilogue_.is_empty())
      return complete(block, sums);
    const int64_t *row = local.rows.data(), *column = local.columns.data();
    T* out = static_cast<T*>(p_.out) + block.group * out_step_;
    for (int64_t end, first = 0; first < block.columns; first = end) {
      const auto next = [&](int64_t j) { return std::min(j + kPanel<C>, block.columns); };
      end = next(first);
      if (stores_at_once(block, first, local))
        continue;
      while (end < block.columns && !stores_at_once(block, end, local))
        end = next(end);
      for (int64_t at = first; at < end;) {
        const int64_t run = run_length(column + at, end - at);
        for (int64_t i = 0; i < block.rows; i++)
          store_run(
              sums + i * kPanel<C>, block.rows * kPanel<C>, at, run, out + row[i] + column[at]);
        at += run;
      }
    }
  }

  // The same with an epilogue: by runs of pixels in one row of the result, or in joined rows.
  void complete(const Block& block, const C* sums) const {
    const int64_t *size = p_.dst_size, row_panel = block.rows * kPanel<C>;
    const int64_t longest = size[2] * (epilogue_.has_joined_rows(size[2]) ? size[1] : 1);
    const int64_t first = is_turned_ ? block.row : block.column;
    const int64_t pixels = is_turned_ ? block.rows : block.columns;
    OutputRun run;
    for (int64_t at = 0; at < pixels; at += run.pixels) {
      const int64_t w = first + at, h = w / size[2], d = h / size[1], n = d / size[0];
      run.n = n, run.d = d % size[0], run.h = h % size[1], run.w = w % size[2];
      run.pixels = std::min(pixels - at, longest - w % longest);
      if (is_turned_) {
        for (int64_t c = 0; c < block.columns; c += kPanel<C>) {
          run.channel = block.group * p_.oc + block.column + c;
          run.channels = std::min(kPanel<C>, block.columns - c);
          epilogue_.store_pixels(sums + c * block.rows + at * kPanel<C>, kLanes<C>, kPanel<C>, run);
        }
        continue;
      }
      run.channels = 1;
      for (int64_t i = 0; i < block.rows; i++) {
        C line[kColumns];
        store_run(sums + i * kPanel<C>, row_panel, at, run.pixels, line);
        run.channel = block.group * p_.oc + block.row + i;
        epilogue_.store_line(line, run);
      }
    }
  }

  // Columns [first, first + n) of a row whose panels are `step` apart.
  template <class U>
  static void store_run(const C* row, int64_t step, int64_t first, int64_t n, U* to) {
    for (int64_t j = first, end = first + n; j < end;) {
      const C* from = row + j / kPanel<C> * step + j % kPanel<C>;
      const int64_t count = std::min(end - j, kPanel<C> - j % kPanel<C>);
      if (count == 1) {
        *to = convert<U>(*from);
      } else {
        at::vec::convert(from, to, count);
      }
      j += count;
      to += count;
    }
  }

  const ConvProblem& p_;
  const Epilogue<T> epilogue_;
  Operand left_, right_;
  int64_t out_step_ = 0;
  bool is_turned_ = false; // columns are output channels, or terms
  int64_t rows_, columns_, depth_, row_block_, column_block_, chunks_ = 1, sums_size_;
  Part part_{};           // what is computed at once, the first one
  bool adds_up_ = false;  // sums of several chunks or parts of the depth
  std::vector<C> starts_; // where sums begin; of groups, rows and vectors, these apart:
  int64_t start_group_ = 0, start_row_ = 0, start_vector_ = 0;
};

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
  dispatch(
      FloatingTypes{}, p.dtype, [&](auto tag) { Patches<typename decltype(tag)::type>(p).run(); });
}

} // namespace torch_dnnl
