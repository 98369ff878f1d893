// The plan of a convolution as an implicit GEMM: m counts output pixels, n output channels, and k
// runs over [kd][kh][kw][channel]. Input rows become [pixel][channel], with padding inserted, so
// that a block of k is contiguous for each output pixel.
#pragma once

#include <algorithm>
#include <optional>

#include "conv/cpu/igemm/types.h"
#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

// One GEMM multiplies one block of k: a tap, a row of the kernel (whose taps are adjacent in an
// input row), or all taps, which are copied to one place for each output pixel (im2col).
enum class KBlock { tap, kernel_row, im2col };

// The block of k for which weights are packed. pack_weights chooses the block for one size of
// images. Calls with images of other sizes use the same block.
struct PackedBlock {
  KBlock block;
  bool uses_amx;

  int64_t number() const { // 0 is for layouts that serve every block
    return 1 + static_cast<int64_t>(block) + 4 * uses_amx;
  }
  // The block of a problem's packed weights; null if their layout serves every block.
  static std::optional<PackedBlock> of(const ConvProblem& p) {
    if (p.packed == nullptr || p.packed_layout == 0)
      return std::nullopt;
    const uint64_t number = static_cast<uint64_t>(p.packed_layout) - 1; // a damaged one may be any
    return PackedBlock{static_cast<KBlock>(number % 4), number / 4 % 2 == 1};
  }
};

// Pixels of one GEMM: their accumulators of a panel, or their im2col, stay in the first-level
// cache.
inline constexpr int64_t kGemmPixels = 96;
// Elements that im2col may write, and GEMMs may read, beyond the last input row.
inline constexpr int64_t kOvercopy = 64;

struct IgemmPlan {
  int64_t merged;         // groups with few channels, computed as one: weights between them are 0
  int64_t groups, ic, oc; // after merging; ic: channels of a pixel in a row, with padding
  KBlock block;
  int64_t blocks, k; // blocks of an output, and the k of one
  bool uses_amx;
  int64_t kr;           // packed weights pad the k of a block to a multiple of kr
  int64_t nr;           // columns that packed weights interleave
  int64_t im2col_pitch; // from a pixel to the next; 0: no im2col
  int64_t chunks, kc;   // of the k of a block, for one GEMM; the last chunk may be shorter
  int64_t panels;       // of the output channels of a group
  int64_t pixel_step;   // input pixels in a row from an output to the next
  // A task computes some rows of an image and some panels, `width` pixels of each row.
  int64_t width, widths, rows, row_blocks, task_panels, panel_blocks;
  // Each thread packs the weights of one block of panels and computes all tasks of this block.
  bool threads_pack;

  Range k_range(int64_t chunk) const {
    return nth_range(chunk, kc, k);
  }
  int64_t columns(int64_t panel) const {
    return std::min(kPanelColumns, round_up(oc - panel * kPanelColumns, kPanelLanes));
  }
  int64_t gemm_pixels() const { // at most
    return uses_amx ? std::max(round_up(width, kAmxRows), kAmxPixels)
                    : std::max(width, kGemmPixels);
  }
  int64_t tasks(const ConvProblem& p) const {
    return p.n * groups * p.dst_size[0] * row_blocks * widths * panel_blocks;
  }
  void set_row_blocks(const ConvProblem& p, int64_t count) {
    row_blocks = count;
    rows = ceil_div(p.dst_size[1], count);
  }
  void set_task_panels(int64_t count) {
    task_panels = count;
    panel_blocks = ceil_div(panels, count);
  }
};

struct IgemmTask {
  int64_t n, group, d;
  Range rows, pixels, panels;
};

inline IgemmTask igemm_task(const IgemmPlan& plan, const ConvProblem& p, int64_t index) {
  Digits digits{index};
  IgemmTask task{};
  task.panels = nth_range(digits.next(plan.panel_blocks), plan.task_panels, plan.panels);
  task.pixels = nth_range(digits.next(plan.widths), plan.width, p.dst_size[2]);
  task.rows = nth_part(digits.next(plan.row_blocks), plan.row_blocks, p.dst_size[1]);
  task.d = digits.next(p.dst_size[0]);
  task.group = digits.next(plan.groups);
  task.n = digits.rest;
  return task;
}

namespace plan_detail {

// Merges groups until they fill a vector of columns.
inline int64_t groups_to_merge(const ConvProblem& p) {
  int64_t merged = 1;
  while (2 * merged * p.oc <= kPanelLanes && p.groups % (2 * merged) == 0)
    merged *= 2;
  return merged;
}

// Costs in ns for one output pixel: a GEMM for each row of the kernel, against im2col, which all
// panels share.
struct BlockCosts {
  static constexpr double call = 100;       // of a GEMM, whatever its size
  static constexpr double accumulators = 1; // of a panel, to read them again
  static constexpr double copy = 1;
  static constexpr double copied_bytes = 32;  // in a ns
  static constexpr int64_t most_bytes = 2048; // of a pixel: im2col has to stay in a cache
};

inline bool prefers_im2col(const ConvProblem& p, int64_t row_bytes, int64_t width, int64_t panels) {
  const int64_t rows = p.kernel[0] * p.kernel[1];
  const double gemms = panels * (BlockCosts::call / width + BlockCosts::accumulators);
  return rows > 1 && rows * row_bytes <= BlockCosts::most_bytes &&
      BlockCosts::copy + row_bytes / BlockCosts::copied_bytes < gemms;
}

// The same for register tiles, in multiply-adds of one output. Tiles of short rows compute some
// pixels twice, and k is padded to whole VNNI blocks for each row of the kernel.
template <class Gemm>
bool prefers_im2col_for_vnni(const ConvProblem& p, int64_t row_k, int64_t width, int64_t oc) {
  constexpr double rate = 232 / sizeof(typename Gemm::A); // multiply-adds in a ns
  const int64_t rows = p.kernel[0] * p.kernel[1];
  const double by_row =
      1.0 * round_up(width, vnni_mr(width)) / width * rows * round_up(row_k, Gemm::kVnni);
  const double bytes = rows * row_k * sizeof(typename Gemm::A);
  const double by_im2col =
      rows * row_k + (BlockCosts::copy + bytes / BlockCosts::copied_bytes) * rate / oc;
  return rows > 1 && by_im2col < by_row;
}

// The part of all (tap, output) pairs that does not meet padding.
inline double part_inside(const ConvProblem& p) {
  double part = 1;
  for (int axis = 1; axis < 3; axis++) {
    int64_t inside = 0;
    for (int64_t tap = 0; tap < p.kernel[axis]; tap++)
      inside += std::max<int64_t>(
          0,
          within(
              tap * p.dilation[axis] - p.pad[axis],
              p.stride[axis],
              p.src_size[axis],
              p.dst_size[axis])
              .count());
    part *= 1.0 * inside / (p.kernel[axis] * p.dst_size[axis]);
  }
  return part;
}

// Chooses the block of k for AMX, which pads channels with zeros to whole tile rows unless the taps
// of a kernel row need no padding, or most of it would be padding. False if brgemm is better: taps
// are apart, and either channels are few or many taps meet padding, which AMX multiplies like data.
template <class Gemm>
bool set_amx_block(const ConvProblem& p, bool are_adjacent, int64_t ic, IgemmPlan& plan) {
  constexpr int64_t kr = kAmxK<Gemm>;
  constexpr double least_inside = 0.8;
  const int64_t padded = round_up(ic, kr);
  const bool needs_none = are_adjacent && p.kernel[2] * ic % kr == 0;
  const bool is_padded = needs_none || padded <= 2 * ic;
  plan.block = !is_padded ? KBlock::im2col : are_adjacent ? KBlock::kernel_row : KBlock::tap;
  plan.ic = is_padded && !needs_none ? padded : ic;
  plan.kr = kr;
  plan.nr = kAmxNr;
  return are_adjacent || (is_padded && part_inside(p) > least_inside);
}

// Chooses the block of k for the other executors.
template <class Gemm>
void set_vector_block(const ConvProblem& p, bool are_adjacent, int64_t ic, IgemmPlan& plan) {
  const int64_t row_k = p.kernel[2] * ic, row_bytes = row_k * sizeof(typename Gemm::A);
  const std::optional<PackedBlock> packed = PackedBlock::of(p);
  const bool is_im2col = packed ? packed->block == KBlock::im2col
      : uses_vnni<Gemm>()       ? prefers_im2col_for_vnni<Gemm>(p, row_k, plan.width, plan.oc)
                                : prefers_im2col(p, row_bytes, plan.width, plan.panels);
  plan.block = !are_adjacent ? KBlock::tap : is_im2col ? KBlock::im2col : KBlock::kernel_row;
  plan.ic = plan.block == KBlock::im2col ? ic : round_up(ic, Gemm::kPixelVnni);
  plan.kr = Gemm::kVnni;
  plan.nr = Gemm::kNr;
}

// Whether to split weights, not pixels, across threads. Each thread packs its own weights and
// needs no barrier, but converts every input.
inline bool should_threads_pack(const ConvProblem& p, const IgemmPlan& plan, int64_t threads) {
  const int64_t weights = plan.oc * plan.blocks * plan.k;
  int64_t inputs = p.n * plan.ic;
  for (int axis = 0; axis < 3; axis++)
    inputs *= p.kernel[axis] == 1 ? p.dst_size[axis] : p.src_size[axis];
  const bool is_even = 16 * round_up(plan.panels, threads) <= 17 * plan.panels;
  return threads > 1 && p.packed == nullptr && plan.groups == 1 && !plan.uses_amx && is_even &&
      weights > threads * inputs;
}

// Cuts the outputs into tasks: rows first, then panels.
inline void set_tasks(const ConvProblem& p, int64_t threads, int64_t most_width, IgemmPlan& plan) {
  constexpr int64_t task_pixels = 384;
  plan.set_task_panels(plan.panels);
  plan.set_row_blocks(
      p, ceil_div(p.dst_size[1], std::clamp<int64_t>(task_pixels / plan.width, 1, p.dst_size[1])));
  plan.threads_pack = should_threads_pack(p, plan, threads);
  if (plan.threads_pack)
    return plan.set_task_panels(ceil_div(plan.panels, threads));
  const auto can_split_rows = [&] { return plan.rows > 1 && plan.rows * plan.width > most_width; };
  const int64_t enough = threads == 1 ? 1 : 3 * threads;
  while (plan.tasks(p) < enough && can_split_rows())
    plan.set_row_blocks(p, ceil_div(p.dst_size[1], plan.rows / 2));
  while (plan.tasks(p) < enough && plan.task_panels > 1)
    plan.set_task_panels(ceil_div(plan.task_panels, 2));
  // All threads should get the same number of tasks, except for a small remainder.
  const auto is_uneven = [&] {
    const int64_t tasks = plan.tasks(p);
    return 16 * round_up(tasks, threads) > 17 * tasks;
  };
  for (const int64_t blocks = plan.row_blocks; is_uneven() && can_split_rows();) {
    plan.set_row_blocks(p, plan.row_blocks + 1);
    if (plan.row_blocks > blocks + threads)
      break;
  }
}

} // namespace plan_detail

template <class Gemm>
IgemmPlan plan_igemm(const ConvProblem& p, int64_t threads) {
  using namespace plan_detail;
  IgemmPlan plan{};
  plan.merged = groups_to_merge(p);
  plan.groups = p.groups / plan.merged;
  plan.oc = p.oc * plan.merged;
  plan.panels = ceil_div(plan.oc, kPanelColumns);
  const int64_t pixels = p.dst_size[2], taps = product(p.kernel), ic = p.ic * plan.merged;
  const bool are_adjacent = p.kernel[2] == 1 || p.dilation[2] == 1;
  if (uses_amx<Gemm>()) {
    plan.uses_amx = set_amx_block<Gemm>(p, are_adjacent, ic, plan);
    if (const std::optional<PackedBlock> packed = PackedBlock::of(p))
      plan.uses_amx = packed->uses_amx;
  }
  const int64_t most_width = plan.uses_amx ? kAmxPixels : 64;
  plan.width = ceil_div(pixels, ceil_div(pixels, most_width));
  plan.widths = ceil_div(pixels, plan.width);
  if (!plan.uses_amx)
    set_vector_block<Gemm>(p, are_adjacent, ic, plan);
  plan.blocks = plan.block == KBlock::tap ? taps
      : plan.block == KBlock::kernel_row  ? p.kernel[0] * p.kernel[1]
                                          : 1;
  plan.k = taps * plan.ic / plan.blocks;
  if (plan.block == KBlock::im2col)
    plan.im2col_pitch = round_up(plan.k, plan.uses_amx ? plan.kr : Gemm::kPixelVnni);
  const int64_t most_k = plan.uses_amx ? plan.k : Gemm::kMaxK;
  plan.kc = round_up(ceil_div(plan.k, ceil_div(plan.k, most_k)), plan.kr);
  plan.chunks = ceil_div(plan.k, plan.kc);
  plan.pixel_step = p.kernel[2] == 1 ? 1 : p.stride[2]; // rows of 1x1 kernels skip other pixels
  set_tasks(p, threads, most_width, plan);
  return plan;
}

} // namespace torch_dnnl
