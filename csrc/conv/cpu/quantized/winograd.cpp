// Quantized convolution by Winograd's algorithm in integers, where products of 16 bits are what the
// machine has: the same sums of less than half as many products.
#include <algorithm>
#include <vector>

#include "conv/cpu/quantized/epilogue.h"
#include "conv/cpu/quantized/kernels.h"
#include "conv/cpu/quantized/winograd_tiles.h"
#include "conv/cpu/shared/image_rows.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/transpose.h"

namespace torch_dnnl {
namespace {

constexpr int64_t kNr = Int16Gemm::kNr;

// A task computes panels of output channels of some tiles of 2 x 2 outputs: `width` of each of
// `rows` rows of tiles, which are counted through all images.
struct WinogradPlan {
  int64_t terms;                  // of the sum of an element: input channels, of all depths
  int64_t chunks, chunk;          // of the terms, in a product
  int64_t panels, task_panels;    // of output channels; of a task
  int64_t image_rows, all_rows;   // of tiles: of a plane, and in all
  int64_t rows, row_blocks;       // of a task
  int64_t columns, width, widths; // tiles of a row, and of a task's

  int64_t tiles() const {
    return rows * width;
  }
  int64_t tasks(const ConvProblem& p) const {
    return p.groups * row_blocks * widths * panel_blocks();
  }
  int64_t panel_blocks() const {
    return ceil_div(panels, task_panels);
  }
  Range chunk_range(int64_t i) const {
    return nth_range(i, chunk, terms);
  }
  // Output channels of a panel, in whole vectors.
  int64_t panel_columns(const ConvProblem& p, int64_t panel) const {
    return std::min(kPanelColumns, round_up(p.oc - panel * kPanelColumns, kNr));
  }
};

WinogradPlan plan_winograd(const ConvProblem& p, int64_t threads) {
  constexpr int64_t cached = 8192, most_tiles = 32, least_tiles = 8; // cached: terms of all tiles
  WinogradPlan plan{};
  plan.terms = p.kernel[0] * p.ic;
  plan.chunk = round_up(ceil_div(plan.terms, ceil_div(plan.terms, Int16Gemm::kMaxK)), 2);
  plan.chunks = ceil_div(plan.terms, plan.chunk);
  plan.panels = plan.task_panels = ceil_div(p.oc, kPanelColumns);
  plan.image_rows = ceil_div(p.dst_size[1], 2);
  plan.all_rows = p.n * p.dst_size[0] * plan.image_rows;
  plan.columns = ceil_div(p.dst_size[2], 2);
  const int64_t tiles = std::clamp(cached / plan.terms, least_tiles, most_tiles);
  plan.width = ceil_div(plan.columns, ceil_div(plan.columns, tiles));
  plan.widths = ceil_div(plan.columns, plan.width);
  const auto set_rows = [&](int64_t rows) {
    plan.row_blocks = ceil_div(plan.all_rows, rows);
    plan.rows = ceil_div(plan.all_rows, plan.row_blocks);
  };
  set_rows(std::max<int64_t>(tiles / plan.width, 1));
  const int64_t enough = threads == 1 ? 1 : 3 * threads;
  while (plan.tasks(p) < enough && plan.rows > 1)
    set_rows(plan.rows / 2);
  while (plan.tasks(p) < enough && plan.task_panels > 1)
    plan.task_panels = ceil_div(plan.task_panels, 2);
  return plan;
}

// A row of tiles: of an image and a depth, from output row h on.
struct TileRow {
  int64_t n, d, h;
};

TileRow tile_row(const ConvProblem& p, const WinogradPlan& plan, int64_t index) {
  Digits digits{index};
  TileRow row{};
  row.h = 2 * digits.next(plan.image_rows);
  row.d = digits.next(p.dst_size[0]);
  row.n = digits.rest;
  return row;
}

// [group][panel][element][chunk][columns / kNr][term / 2][column % kNr][term % 2]
class WinogradWeights {
 public:
  WinogradWeights(const ConvProblem& p, const WinogradPlan& plan) : p_(p), plan_(plan) {}

  int64_t size() const { // elements
    return p_.groups * group_size_;
  }
  void pack(int16_t* to) const {
    const int64_t parts = ceil_div(p_.oc, kNr);
    parallel_tasks(p_.groups * parts, 16 * kNr * plan_.terms, [&](SharedTasks::OfThread mine) {
      const Scratch<int16_t> taps(2 * 9 * p_.ic);
      const Scratch<int16_t> lines(kWinogradElements * kNr * rows_);
      std::fill_n(lines.data(), kWinogradElements * kNr * rows_, int16_t(0));
      for (const int64_t i : mine)
        transform(i / parts, i % parts * kNr, taps.data(), lines.data(), to);
    });
  }
  // The offset of a product's packed weights.
  int64_t at(int64_t group, int64_t panel, int64_t element, int64_t chunk) const {
    const int64_t columns = plan_.panel_columns(p_, panel);
    return group * group_size_ + kWinogradElements * panel * kPanelColumns * rows_ +
        (element * rows_ + chunk * plan_.chunk) * columns;
  }

 private:
  // Those of an output channel and a depth, [tap][input channel]. Behind them is room for as many.
  void copy_taps(const int8_t* from, int16_t* taps) const {
    const int64_t *const ws = p_.weights_stride, ic = p_.ic;
    auto* const bytes = reinterpret_cast<int8_t*>(taps + 9 * ic);
    if (ws[3] == 3 && ws[4] == 1) {
      transpose_numbers(from, ws[1], ic, bytes, ic, 9);
    } else {
      for (int64_t t = 0; t < 9; t++) {
        const int8_t* const tap = from + t / 3 * ws[3] + t % 3 * ws[4];
        if (ws[1] == 1)
          std::copy_n(tap, ic, bytes + t * ic);
        else
          for (int64_t i = 0; i < ic; i++)
            bytes[t * ic + i] = tap[i * ws[1]];
      }
    }
    std::copy_n(bytes, 9 * ic, taps);
  }

  // Of kNr output channels from `first` on; those that are not there are 0.
  void
  transform(int64_t group, int64_t first, int16_t* taps, int16_t* lines, int16_t* packed) const {
    const int64_t* const ws = p_.weights_stride;
    const int64_t channels = std::min(kNr, p_.oc - first);
    for (int64_t c = 0; c < kNr; c++) {
      for (int64_t d = 0; d < p_.kernel[0]; d++) {
        const auto* from = static_cast<const int8_t*>(p_.weights) + group * p_.weights_group +
            (first + c) * ws[0] + d * ws[2];
        if (c < channels)
          copy_taps(from, taps);
        else
          std::fill_n(taps, 9 * p_.ic, int16_t(0));
        transform_weights_tile(taps, p_.ic, lines + c * rows_ + d * p_.ic, kNr * rows_);
      }
    }
    const int64_t panel = first / kPanelColumns, column = first % kPanelColumns;
    for (int64_t element = 0; element < kWinogradElements; element++) {
      for (int64_t i = 0; i < plan_.chunks; i++) {
        const Range chunk = plan_.chunk_range(i);
        const int64_t depth = round_up(chunk.count(), 2);
        int16_t* const to = packed + at(group, panel, element, i) + column * depth;
        interleave_vnni<2>(lines + element * kNr * rows_ + chunk.begin, rows_, kNr, depth, to);
      }
    }
  }

  const ConvProblem& p_;
  const WinogradPlan& plan_;
  const int64_t rows_ = round_up(plan_.terms, 2);
  const int64_t group_size_ = kWinogradElements * rows_ * round_up(p_.oc, kNr);
};

class Winograd {
 public:
  explicit Winograd(const QuantizedProblem& problem) : problem_(problem) {}

  void run() const {
    const int64_t operations = plan_.tiles() * kWinogradElements * plan_.terms * p_.oc / 4;
    parallel_tasks(plan_.tasks(p_), operations, [&](SharedTasks::OfThread mine) {
      const Workspace own(*this);
      for (const int64_t i : mine)
        compute(i, own);
    });
  }

 private:
  // Memory of a thread.
  struct Workspace {
    explicit Workspace(const Winograd& all)
        : line(all.line_pixels_ * all.p_.ic),
          lines(4 * all.line_pixels_ * all.p_.ic),
          inputs(kWinogradElements * all.plan_.tiles() * all.plan_.terms + kPanelLanes),
          products(kWinogradElements * all.plan_.tiles() * kPanelColumns),
          sums(4 * all.plan_.width * kPanelColumns),
          epilogue(2 * all.plan_.width * kPanelColumns) {}
    Scratch<uint8_t> line;
    Scratch<int16_t> lines, inputs; // inputs: [element][tile][term]
    Scratch<int32_t> products;      // [element][tile][output channel]
    Scratch<int32_t> sums;          // of a row of tiles: [row][pixel][output channel]
    QuantizedEpilogue::Workspace epilogue;
  };

  void compute(int64_t task, const Workspace& own) const {
    Digits digits{task};
    const Range columns = nth_range(digits.next(plan_.widths), plan_.width, plan_.columns);
    const Range rows = nth_range(digits.next(plan_.row_blocks), plan_.rows, plan_.all_rows);
    const Range panels =
        nth_range(digits.next(plan_.panel_blocks()), plan_.task_panels, plan_.panels);
    const int64_t group = digits.rest;
    const auto for_each_row = [&](const auto& f) {
      for (int64_t row = rows.begin; row < rows.end; row++)
        f(tile_row(p_, plan_, row), (row - rows.begin) * columns.count());
    };
    for_each_row([&](const TileRow& row, int64_t tile) {
      transform_inputs(group, row, columns, tile, own);
    });
    for (int64_t panel = panels.begin; panel < panels.end; panel++) {
      multiply(group, panel, rows.count() * columns.count(), own);
      for_each_row(
          [&](const TileRow& row, int64_t tile) { store(group, panel, row, columns, tile, own); });
    }
  }

  // Of a row of tiles, the first of which is number `tile` of the task's.
  void transform_inputs(
      int64_t group,
      const TileRow& row,
      Range columns,
      int64_t tile,
      const Workspace& own) const {
    const int64_t ic = p_.ic, line_size = line_pixels_ * ic, *xs = p_.src_stride;
    for (int64_t kd = 0; kd < p_.kernel[0]; kd++) {
      const int64_t d = row.d * p_.stride[0] + kd * p_.dilation[0] - p_.pad[0];
      for (int64_t r = 0; r < 4; r++) {
        const int64_t h = row.h + r - p_.pad[1];
        int16_t* const line = own.lines.data() + r * line_size;
        if (d < 0 || d >= p_.src_size[0] || h < 0 || h >= p_.src_size[1]) {
          std::fill_n(line, line_size, lines_.padding());
          continue;
        }
        const auto* image = static_cast<const uint8_t*>(p_.src) + row.n * xs[0] +
            group * ic * xs[1] + d * xs[2] + h * xs[3];
        const int64_t first = 2 * columns.begin - p_.pad[2], pixels = 2 * columns.count() + 2;
        lines_.copy(
            {image, ic, xs[1], first, pixels, 1, p_.src_size[2], xs[4]}, ic, own.line.data(), line);
      }
      for (int64_t x = 0; x < columns.count(); x++) {
        const int16_t* const first = own.lines.data() + 2 * x * ic;
        transform_input_tile(
            {first, first + line_size, first + 2 * line_size, first + 3 * line_size},
            ic,
            own.inputs.data() + (tile + x) * plan_.terms + kd * ic,
            plan_.tiles() * plan_.terms);
      }
    }
  }

  void multiply(int64_t group, int64_t panel, int64_t tiles, const Workspace& own) const {
    for (int64_t element = 0; element < kWinogradElements; element++) {
      for (int64_t i = 0; i < plan_.chunks; i++) {
        const Range chunk = plan_.chunk_range(i);
        Int16Gemm::multiply(
            {tiles,
             plan_.panel_columns(p_, panel),
             chunk.count(),
             plan_.terms,
             kPanelColumns,
             own.inputs.data() + element * plan_.tiles() * plan_.terms + chunk.begin,
             weights_.data() + layout_.at(group, panel, element, i),
             own.products.data() + element * plan_.tiles() * kPanelColumns,
             /*adds=*/i > 0});
      }
    }
  }

  void store(
      int64_t group,
      int64_t panel,
      const TileRow& row,
      Range columns,
      int64_t tile,
      const Workspace& own) const {
    const int64_t row_step = 2 * plan_.width * kPanelColumns;
    for (int64_t x = 0; x < columns.count(); x++)
      transform_output_tile(
          own.products.data() + (tile + x) * kPanelColumns,
          plan_.tiles() * kPanelColumns,
          plan_.panel_columns(p_, panel),
          own.sums.data() + 2 * x * kPanelColumns,
          row_step,
          kPanelColumns);
    const int64_t first = panel * kPanelColumns, w = 2 * columns.begin;
    for (int64_t h = row.h; h < std::min(row.h + 2, p_.dst_size[1]); h++)
      epilogue_.store(
          {own.sums.data() + (h - row.h) * row_step,
           kPanelColumns,
           row.n,
           group * p_.oc + first,
           row.d,
           h,
           w,
           std::min(kPanelColumns, p_.oc - first),
           std::min(2 * columns.count(), p_.dst_size[2] - w),
           no_compensation_.data()},
          own.epilogue);
  }

  const QuantizedProblem& problem_;
  const ConvProblem& p_ = problem_.conv;
  const WinogradPlan plan_ = plan_winograd(p_, at::get_num_threads());
  const int64_t line_pixels_ = 2 * plan_.width + 2;
  const IntegerRows<int16_t> lines_{
      p_.dtype == c10::kChar,
      static_cast<int>(problem_.src_zero_point.get())};
  const WinogradWeights layout_{p_, plan_};
  const PackedWeights<int16_t> weights_{p_, layout_.size(), [&](int16_t* to) { layout_.pack(to); }};
  const std::vector<int32_t> no_compensation_ = std::vector<int32_t>(kPanelColumns);
  const QuantizedEpilogue epilogue_{problem_};
};

template <class F>
auto with_weights(const QuantizedProblem& p, const F& f) {
  const WinogradPlan plan = plan_winograd(p.conv, /*threads=*/1);
  return f(WinogradWeights(p.conv, plan));
}

} // namespace

const Packing<QuantizedProblem> quantized_winograd_packing{
    [](const QuantizedProblem& p) {
      return with_weights(p, [](const WinogradWeights& weights) {
        return weights.size() * static_cast<int64_t>(sizeof(int16_t));
      });
    },
    [](const QuantizedProblem& p, void* to) {
      with_weights(
          p, [&](const WinogradWeights& weights) { weights.pack(static_cast<int16_t*>(to)); });
      return true;
    }};

bool supports_quantized_winograd(const QuantizedProblem& q) {
  const ConvProblem& p = q.conv;
  for (int a = 1; a < 3; a++)
    if (p.kernel[a] != 3 || p.stride[a] != 1 || p.dilation[a] != 1)
      return false;
  return p.kernel[0] * p.ic <= kWinogradMostTerms;
}

// Of many channels, whose products take longer than their transforms, and of enough outputs: to
// transform the weights takes as long as so many products of each more than to copy them.
bool prefers_quantized_winograd(const QuantizedProblem& q) {
  constexpr int64_t many = 32, weights_products = 700;
  const ConvProblem& p = q.conv;
  const int64_t planes = p.n * p.dst_size[0], h = p.dst_size[1], w = p.dst_size[2];
  const int64_t products = planes * 9 * h * w;
  const int64_t of_tiles = planes * 4 * round_up(h, 2) * round_up(w, 2);
  return p.ic >= many && p.oc >= many && products > of_tiles + weights_products;
}

void run_quantized_winograd(const QuantizedProblem& p) {
  Winograd(p).run();
}

} // namespace torch_dnnl
