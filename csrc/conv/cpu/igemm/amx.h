// The AMX executor: accumulators stay in tile registers for all blocks of k. brgemm would store and
// reload them for each row of the kernel.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "conv/cpu/igemm/input_rows.h"
#include "conv/cpu/igemm/output.h"

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
// The AMX state of a thread. brgemm must not run while it is configured.
class AmxState {
 public:
  AmxState() = default;
  ~AmxState() {
    if (rows_ > 0)
      asm volatile("tilerelease");
  }
  AmxState(const AmxState&) = delete;
  AmxState& operator=(const AmxState&) = delete;

  // Configures tiles of a and of accumulators to have so many rows, up to kAmxRows.
  void configure(int64_t rows) {
    if (rows == rows_)
      return;
    rows_ = rows;
    Configuration configuration;
    for (int tile = 0; tile < kTiles; tile++) {
      configuration.row_bytes[tile] = kAmxRowBytes;
      configuration.rows[tile] = static_cast<uint8_t>(tile >= kFirstB ? kAmxRows : rows);
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }

  // Tiles 0 to 3 are accumulators, then come two of a and two of b.
  static constexpr int kFirstA = 4, kFirstB = 6, kTiles = 8;

 private:
  // The operand of ldtilecfg.
  struct Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Configuration) == 64);

  int64_t rows_ = 0;
};

namespace amx_detail {

// Written as asm because the library is compiled without the flags of these instructions.
template <int tile>
inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
template <int tile>
inline void load_tile(const void* from, int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(tile));
}
template <int tile>
inline void store_tile(void* to, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(tile) : "memory");
}
template <class Gemm, int acc, int a, int b>
inline void multiply_tiles() {
  if constexpr (std::is_same_v<Gemm, Int8Gemm>)
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(acc), "i"(a), "i"(b));
  else
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(acc), "i"(a), "i"(b));
}

// f(i) for i = 0 ... n - 1, as constants.
template <int n, class F>
inline void for_each_tile(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, n>());
}

// A part of a BatchReduceGemm: some blocks of k, and k from `begin` to `end` of each.
struct PartOfK {
  Range blocks;
  int64_t begin, end;
};

// Where a tile of rows begins, in a and in c.
struct TileRows {
  int64_t a, c;
};

// One or two tiles of rows with one or two tiles of columns, from `column` on. Accumulators begin
// with c if they accumulate, else with `initial` or, if that is null, with 0. Unless `prefetched`
// is 0, rows of a that are so many rows ahead are prefetched.
template <class Gemm, int rows, int vectors, class C>
void multiply_block(
    const BatchReduceGemm<Gemm>& g,
    const PartOfK& part,
    const TileRows (&at)[2],
    int64_t column,
    const C* initial,
    bool accumulates,
    int64_t prefetched,
    C* c) {
  static_assert(rows <= 2 && vectors <= 2);
  constexpr int kA = AmxState::kFirstA, kB = AmxState::kFirstB;
  constexpr int64_t c_row = kPanelColumns * sizeof(C);
  constexpr int64_t b_column = Gemm::kVnni * sizeof(typename Gemm::B);
  constexpr int64_t b_row = vectors * kPanelLanes * b_column;
  const int64_t a_row = g.lda * sizeof(typename Gemm::A);
  C* const acc[] = {c + at[0].c * kPanelColumns + column, c + at[1].c * kPanelColumns + column};
  const int64_t to_second = (at[1].a - at[0].a) * a_row;
  asm volatile("" : : : "memory"); // completes the writes of what load_tile reads
  for_each_tile<rows * vectors>([&](auto tile) {
    constexpr int r = tile / vectors, v = tile % vectors;
    if (accumulates)
      load_tile<tile>(acc[r] + v * kPanelLanes, c_row);
    else if (initial != nullptr)
      load_tile<tile>(initial + column + v * kPanelLanes, /*row_bytes=*/0);
    else
      clear_tile<tile>();
  });
  for (int64_t i = part.blocks.begin; i < part.blocks.end; i++) {
    const auto* a = reinterpret_cast<const char*>(g.a[i] + part.begin) + at[0].a * a_row;
    const auto* b =
        reinterpret_cast<const char*>(g.b[i] + column * g.k) + part.begin / Gemm::kVnni * b_row;
    for (int64_t k = part.begin; k < part.end; k += kAmxK<Gemm>) {
      if (prefetched != 0)
        for (const char *next = a + prefetched * a_row, *end = next + rows * kAmxRows * a_row;
             next != end;
             next += a_row)
          __builtin_prefetch(next);
      load_tile<kA>(a, a_row);
      load_tile<kB>(b, b_row);
      multiply_tiles<Gemm, 0, kA, kB>();
      if constexpr (vectors == 2) {
        load_tile<kB + 1>(b + kAmxRowBytes, b_row);
        multiply_tiles<Gemm, 1, kA, kB + 1>();
      }
      if constexpr (rows == 2) {
        load_tile<kA + 1>(a + to_second, a_row);
        multiply_tiles<Gemm, vectors, kA + 1, kB>();
      }
      if constexpr (rows == 2 && vectors == 2)
        multiply_tiles<Gemm, 3, kA + 1, kB + 1>();
      a += kAmxRowBytes;
      b += kAmxRows * b_row;
    }
  }
  for_each_tile<rows * vectors>([&](auto tile) {
    constexpr int r = tile / vectors, v = tile % vectors;
    store_tile<tile>(acc[r] + v * kPanelLanes, c_row);
  });
}

// f(part) for parts of k, in order, whose weights stay in the first-level cache while they meet all
// tiles of rows.
template <class Gemm, class F>
void for_each_part_of_k(int64_t blocks, int64_t k, const F& f) {
  constexpr int64_t most = kAmxCachedK<Gemm>;
  const int64_t chunk = round_up(ceil_div(k, ceil_div(k, most)), kAmxK<Gemm>);
  const int64_t at_once = std::max<int64_t>(most / k, 1);
  for (int64_t block = 0; block < blocks; block += at_once)
    for (int64_t begin = 0; begin < k; begin += chunk)
      f(PartOfK{{block, std::min(block + at_once, blocks)}, begin, std::min(begin + chunk, k)});
}

// c[m x columns] = initial + the sum of all products. Rows of c are kPanelColumns apart, with
// memory for whole tiles. k is a multiple of kAmxK, and b interleaves kAmxNr columns.
template <class Gemm, class C>
void multiply(
    const BatchReduceGemm<Gemm>& g,
    const C* initial,
    int64_t prefetched,
    C* c,
    AmxState& state) {
  const int64_t tiles = ceil_div(g.m, kAmxRows);
  // The last tile ends with the last row and computes rows of the tile before again.
  const int64_t again = g.m < kAmxRows ? 0 : tiles * kAmxRows - g.m;
  const auto tile_rows = [&](int64_t tile) {
    return TileRows{tile * kAmxRows - (tile + 1 == tiles ? again : 0), tile * kAmxRows};
  };
  state.configure(std::min(g.m, kAmxRows));
  for (int64_t column = 0; column < g.columns; column += kAmxNr) {
    const bool has_two_vectors = column + kPanelLanes < g.columns;
    const auto multiply_part = [&](const PartOfK& part) {
      const bool accumulates = part.blocks.begin > 0 || part.begin > 0;
      for (int64_t tile = 0; tile < tiles; tile += 2) {
        const TileRows at[] = {tile_rows(tile), tile_rows(std::min(tile + 1, tiles - 1))};
        const bool has_two_tiles = tile + 1 < tiles;
        const auto block = has_two_tiles
            ? (has_two_vectors ? multiply_block<Gemm, 2, 2, C> : multiply_block<Gemm, 2, 1, C>)
            : (has_two_vectors ? multiply_block<Gemm, 1, 2, C> : multiply_block<Gemm, 1, 1, C>);
        block(g, part, at, column, initial, accumulates, column == 0 ? prefetched : 0, c);
      }
    };
    if (tiles <= 2 || g.count == 0)
      multiply_part({{0, g.count}, 0, g.k});
    else
      for_each_part_of_k<Gemm>(g.count, g.k, multiply_part);
  }
  if (again > 0) {
    C* const last = c + (tiles - 1) * kAmxRows * kPanelColumns;
    std::copy_n(last + again * kPanelColumns, (kAmxRows - again) * kPanelColumns, last);
  }
}

} // namespace amx_detail

template <class Gemm, class Rows, class Output>
class AmxExecutor {
  using A = typename Gemm::A;
  using C = typename Gemm::C;
  using Group = RowGroup<A>;

 public:
  explicit AmxExecutor(const Igemm<Gemm, Output>& igemm)
      : p_(igemm.p), plan_(igemm.plan), weights_(igemm.weights), output_(igemm.output) {}

  // Memory of a thread.
  struct Workspace {
    GemmWorkspace<Gemm>& gemm;
    AmxState& state;
    const typename Output::Workspace& output;
  };

  void compute(const IgemmTask& task, InputRows<Gemm, Rows>& rows, const Workspace& own) const {
    if (plan_.im2col_pitch == 0)
      return multiply_groups(task, row_groups(task, rows), own);
    const int64_t pixels = task.pixels.count(), at_once = std::max<int64_t>(kAmxPixels / pixels, 1);
    A* const im2col = own.gemm.im2col.data();
    for (int64_t end, h = task.rows.begin; h < task.rows.end; h = end) {
      end = std::min(h + at_once, task.rows.end);
      rows.im2col({h, end}, im2col);
      multiply_groups(task, {{{h, end}, pixels, plan_.im2col_pitch, {im2col}, {0}, {}}}, own);
    }
  }

 private:
  // Joins rows of the task whose inputs are at one distance, because short rows leave tiles empty.
  // Accumulators of the pixels between two rows are computed and discarded.
  std::vector<Group> row_groups(const IgemmTask& task, InputRows<Gemm, Rows>& rows) const {
    std::vector<Group> groups;
    for (int64_t h = task.rows.begin; h < task.rows.end; h = groups.back().rows.end) {
      rows.read(h, groups.emplace_back());
      join_rows(task, rows, groups.back());
    }
    return groups;
  }

  // Appends as many rows as fill pairs of tiles best.
  void join_rows(const IgemmTask& task, InputRows<Gemm, Rows>& rows, Group& group) const {
    const int64_t pixels = task.pixels.count(), first = group.rows.begin;
    const auto tiles = [&](int64_t count) {
      return round_up(ceil_div((count - 1) * group.pitch + pixels, kAmxRows), 2);
    };
    if (group.lda == 0 || first + 1 == task.rows.end)
      return;
    const A* const next = rows.row(first + 1, first_tap(p_, plan_, group.blocks[0])).data;
    if (next == nullptr || (next - group.a[0]) % group.lda != 0)
      return;
    group.pitch = (next - group.a[0]) / group.lda;
    for (int64_t count = 2; group.pitch >= pixels && first + count <= task.rows.end; count++) {
      if (tiles(count) * kAmxRows > kAmxPixels || !is_at_pitch(rows, group, count - 1))
        break;
      if (tiles(count) * group.rows.count() <= tiles(group.rows.count()) * count)
        group.rows.end = first + count;
    }
  }

  // Whether the row so many rows after the first of a group has its inputs at the group's pitch.
  bool is_at_pitch(InputRows<Gemm, Rows>& rows, const Group& group, int64_t after) const {
    const int64_t h = group.rows.begin + after;
    for (size_t i = 0; i < group.a.size(); i++) {
      const auto [data, step] = rows.row(h, first_tap(p_, plan_, group.blocks[i]));
      if (data != group.a[i] + after * group.pitch * group.lda || step != group.lda)
        return false;
    }
    return std::none_of(group.skipped.begin(), group.skipped.end(), [&](int64_t block) {
      return rows.row(h, first_tap(p_, plan_, block)).data != nullptr;
    });
  }

  // Weights that stay in the first-level cache meet the pixels of two tiles at a time, whose inputs
  // stay there too. Other weights meet all pixels of a group, panel by panel.
  void multiply_groups(
      const IgemmTask& task,
      const std::vector<Group>& groups,
      const Workspace& own) const {
    constexpr int64_t two_tiles = 2 * kAmxRows;
    const int64_t pixels = task.pixels.count();
    if (plan_.blocks * plan_.k > kAmxCachedK<Gemm>) {
      for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
        for (const Group& group : groups)
          multiply(task, group, {0, pixels}, panel, own);
      return;
    }
    for (const Group& group : groups) {
      const int64_t at_once = group.rows.count() == 1 ? two_tiles : pixels;
      for (int64_t end, x = 0; x < pixels; x = end) {
        end = std::min(x + at_once, pixels);
        for (int64_t panel = task.panels.begin; panel < task.panels.end; panel++)
          multiply(task, group, {x, end}, panel, own);
      }
    }
  }

  // pixels: of the task.
  void multiply(
      const IgemmTask& task,
      const Group& group,
      Range pixels,
      int64_t panel,
      const Workspace& own) const {
    const int64_t rows = group.rows.count(), count = pixels.count();
    const Accumulators<C> acc{
        own.gemm.accumulators.data(), task.group, panel, count, std::max(group.pitch, count)};
    auto& a = own.gemm.a;
    auto& b = own.gemm.b;
    a.clear();
    b.clear();
    for (size_t i = 0; i < group.a.size(); i++) {
      a.push_back(group.a[i] + pixels.begin * group.lda);
      b.push_back(weights_.at(task.group, panel, group.blocks[i]));
    }
    IgemmTask part = task;
    part.pixels = {task.pixels.begin + pixels.begin, task.pixels.begin + pixels.end};
    output_.prefetch(acc, part, group.rows);
    // A 1x1 kernel reads each input once, so the inputs of the next pixels are prefetched.
    const bool prefetches =
        panel == task.panels.begin && plan_.im2col_pitch == 0 && plan_.blocks == 1;
    const BatchReduceGemm<Gemm> gemm{
        (rows - 1) * acc.pitch + count,
        plan_.columns(panel),
        round_up(plan_.k, plan_.kr),
        group.lda,
        std::ssize(a),
        a.data(),
        b.data()};
    amx_detail::multiply(gemm, output_.initial(acc), prefetches ? count : 0, acc.data, own.state);
    for (int64_t block : group.skipped)
      for (int64_t row = 0; row < rows; row++)
        output_.compensate(acc, row, {0, count}, block);
    output_.store(acc, part, group.rows, own.output);
  }

  const ConvProblem& p_;
  const IgemmPlan& plan_;
  const WeightPanels<Gemm>& weights_;
  const Output& output_;
};
#endif

} // namespace torch_dnnl
