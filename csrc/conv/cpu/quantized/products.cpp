// Quantized convolution as matrix products of integers.
#include "conv/cpu/quantized/epilogue.h"
#include "conv/cpu/quantized/kernels.h"
#include "conv/cpu/shared/products/row_products.h"

namespace torch_dnnl {
namespace {

// Bytes still have the zero point when they are multiplied, and pads are it. The sums of all
// weights times the zero point, which is what sums have too much, are taken away at the end.
template <class Products>
class IntegerEnds {
 public:
  using Workspace = QuantizedEpilogue::Workspace;
  using Sums = PanelSums<int32_t>;

  IntegerEnds(
      const QuantizedProblem& p,
      const ProductPlan& plan,
      const ProductWeights<Products>& weights)
      : plan_(plan), weights_(weights), epilogue_(p) {}

  const int32_t* first(const Sums& /*sums*/) const {
    return nullptr;
  }
  // Modulo 2^32.
  void skip(const Sums& sums, int64_t row, Range pixels, int64_t block) const {
    if (!weights_.has_excess())
      return;
    const int32_t* const excess = weights_.excess(sums.group, sums.panel, block);
    const int64_t columns = plan_.columns(sums.panel);
    for (int64_t x = pixels.begin; x < pixels.end; x++) {
      int32_t* const to = sums.at(row, x);
      for (int64_t c = 0; c < columns; c++)
        to[c] =
            static_cast<int32_t>(static_cast<uint32_t>(to[c]) + static_cast<uint32_t>(excess[c]));
    }
  }
  void fetch_outputs(const Sums& /*sums*/, const RowTask& /*task*/, Range /*rows*/) const {}
  void store(const Sums& sums, const RowTask& task, Range rows, const Workspace& own) const {
    const int64_t first = sums.panel * kProductColumns;
    for (int64_t row = rows.begin; row < rows.end; row++) {
      epilogue_.store(
          {sums.at(row - rows.begin),
           kProductColumns,
           task.n,
           task.group * plan_.oc + first,
           task.d,
           row,
           task.pixels.begin,
           std::min(kProductColumns, plan_.oc - first),
           sums.pixels,
           weights_.excess(sums.group, sums.panel, plan_.blocks)},
          own);
    }
  }

  bool takes_tiles() const {
    return std::is_same_v<Products, ByteProducts> && epilogue_.takes_tiles();
  }
  void
  multiply(const TileProduct<Products>& product, const TileRun& at, const Workspace& own) const {
    if constexpr (std::is_same_v<Products, ByteProducts>) {
      const RowTask& task = at.task;
      const int64_t first = at.panel * kProductColumns;
      int32_t excess[kProductColumns];
      std::copy_n(weights_.excess(task.group, at.panel, plan_.blocks), kProductColumns, excess);
      for (int64_t block : at.skipped)
        subtract(weights_.excess(task.group, at.panel, block), excess);
      epilogue_.multiply(
          product,
          {nullptr,
           0,
           task.n,
           task.group * plan_.oc + first,
           task.d,
           at.row,
           task.pixels.begin,
           std::min(kProductColumns, plan_.oc - first),
           product.m,
           excess},
          own);
    }
  }

 private:
  // Modulo 2^32.
  static void subtract(const int32_t* from, int32_t* to) {
    for (int64_t c = 0; c < kProductColumns; c++)
      to[c] = static_cast<int32_t>(static_cast<uint32_t>(to[c]) - static_cast<uint32_t>(from[c]));
  }

  const ProductPlan& plan_;
  const ProductWeights<Products>& weights_;
  const QuantizedEpilogue epilogue_;
};

template <class Products>
void run_products(const QuantizedProblem& problem) {
  using Lines = IntegerLines<typename Products::Left>;
  const ConvProblem& p = problem.conv;
  const Lines lines{p.dtype == c10::kChar, static_cast<int>(problem.src_zero_point.get())};
  const ProductPlan plan = plan_products<Products>(p, at::get_num_threads());
  const ProductWeights<Products> weights(p, plan, static_cast<int>(lines.pad()));
  const IntegerEnds<Products> ends(problem, plan, weights);
  RowProducts<Products, Lines, IntegerEnds<Products>>(p, plan, lines, weights, ends).run();
}

template <class Products, class F>
auto with_plan(const QuantizedProblem& p, const F& f) {
  return f(p.conv, plan_products<Products>(p.conv, /*threads=*/1));
}

template <class Products>
constexpr Packing<QuantizedProblem> packing{
    [](const QuantizedProblem& p) {
      return with_plan<Products>(p, ProductWeights<Products>::packed_size);
    },
    [](const QuantizedProblem& p, void* to) {
      with_plan<Products>(p, [&](const ConvProblem& conv, const ProductPlan& plan) {
        ProductWeights<Products>(conv, plan, to);
      });
      return true;
    },
    [](const QuantizedProblem& p) {
      return with_plan<Products>(p, ProductWeights<Products>::layout);
    }};

} // namespace

const Packing<QuantizedProblem> quantized_brgemm_packing = packing<ByteProducts>;
const Packing<QuantizedProblem> quantized_pairs_packing = packing<PairProducts>;

bool supports_quantized_brgemm(const QuantizedProblem& p) {
  return has_short_sums(p) && ByteProducts::are_supported();
}

void run_quantized_brgemm(const QuantizedProblem& p) {
  run_products<ByteProducts>(p);
}

bool supports_quantized_pairs(const QuantizedProblem& p) {
  return has_short_sums(p);
}

void run_quantized_pairs(const QuantizedProblem& p) {
  run_products<PairProducts>(p);
}

} // namespace torch_dnnl
