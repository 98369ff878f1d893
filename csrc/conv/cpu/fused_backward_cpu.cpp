// convolution_fused_backward on the CPU, in parts. A part is some images, or some rows of one
// image. h of a part is computed, then the gradients of the part while h is in the cache. All of h
// is in memory only if h is small or a result. Parts follow one another: threads share the work of
// each.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <vector>

#include "conv/conv.h"
#include "conv/cpu/shared/kernels.h"
#include "core/math.h"

namespace torch_dnnl {
namespace {

using at::Tensor;

// ---- How large parts are, and which rows of src belong to them: all of this is integers ----

// Rows run along the first spatial dimension that has several in the result.
struct FusedBackwardSizes {
  int64_t images, rows;
  int64_t halo;        // rows before a part that meet the same rows of src; 0 without its gradient
  int64_t h_bytes;     // of all images
  int64_t image_bytes; // of h of one image, and of what is widened with it
  int64_t weights_bytes; // of the sums that are the gradient of weights; 0 without it
  int64_t products;      // multiply-adds with each element of h
  bool is_widened;       // whether parts are widened to float32 for the gradient of weights
  bool keeps_h;          // h is a result itself
};

// Of each part but the last ones.
struct FusedBackwardSchedule {
  int64_t images, rows;
};

FusedBackwardSchedule fused_backward_schedule(const FusedBackwardSizes& s) {
  constexpr int64_t MB = 1 << 20;
  // A part of h and what is made of it stay in the second- and third-level cache. Where products
  // take most of the time, what is done once for a part, such as Winograd's transforms of weights,
  // weighs more. Each part has a gradient of weights to add to their sum: then as much of h is in
  // memory as of that gradient.
  const int64_t part_bytes = std::max((s.products < 64 ? 4 : 6) * MB, s.weights_bytes);
  // What is widened takes time and memory, which less of h is not worth.
  const bool is_small = s.h_bytes <= (s.is_widened ? 2 : 1) * part_bytes;
  if (is_small || (s.keeps_h && s.weights_bytes > 4 * MB))
    return {s.images, s.rows};

  const auto fitting = [part_bytes](int64_t bytes) {
    return std::max<int64_t>(part_bytes / bytes, 1);
  };
  const auto evenly = [](int64_t count, int64_t most) {
    return ceil_div(count, ceil_div(count, most));
  };
  const int64_t images = evenly(s.images, fitting(s.image_bytes));
  if (images > 1)
    return {images, s.rows};
  const int64_t rows = evenly(s.rows, fitting(s.image_bytes / s.rows));
  // A halo of more rows would be computed again for each part: rather whole images.
  return {1, rows >= s.halo ? rows : s.rows};
}

// How rows of the result meet rows of src.
struct RowsOfSrc {
  int64_t axis; // the spatial dimension that rows run along
  int64_t rows, src_rows;
  int64_t stride, pad;
  int64_t reach; // from the first to the last row of src that a row meets

  // The rows of src that these rows meet.
  Range met_by(Range r) const {
    return {
        std::max<int64_t>(r.begin * stride - pad, 0),
        std::min((r.end - 1) * stride - pad + reach + 1, src_rows)};
  }
  // Those that no later row meets, and that no earlier rows complete.
  Range completed_by(Range r) const {
    return {boundary(r.begin), boundary(r.end)};
  }

 private:
  int64_t boundary(int64_t row) const {
    return row == 0   ? 0
        : row == rows ? src_rows
                      : std::clamp<int64_t>(row * stride - pad, 0, src_rows);
  }
};

// ---- The parts ----

// Rows run along the first spatial dimension of which the result has several.
RowsOfSrc rows_of_src(const FusedBackward& call) {
  const ConvArguments& args = call.args;
  const auto sizes = args.spatial_of(call.grad);
  size_t axis = 0;
  while (axis + 1 < sizes.size() && sizes[axis] == 1)
    axis++;
  const c10::SymInt &src = call.src_size[axis], &kernel = call.kernel_size[axis];
  return {
      .axis = static_cast<int64_t>(axis),
      .rows = sizes[axis].expect_int(),
      .src_rows = src.expect_int(),
      .stride = args.strides[axis].expect_int(),
      .pad = args.pad(axis, src, kernel).expect_int(),
      .reach = args.reach(axis, kernel).expect_int() - 1};
}

FusedBackwardSizes sizes_of(const FusedBackward& call, const RowsOfSrc& rows) {
  constexpr int64_t wide = sizeof(float);
  const int64_t images = call.grad.size(0), bytes = static_cast<int64_t>(call.grad.nbytes());
  const int64_t channels = call.grad.size(call.args.image_at.channel);
  const bool is_widened = call.src.has_value() && call.grad.element_size() < wide;
  const int64_t widened = is_widened ? (call.grad.numel() + call.src->numel()) * wide : 0;
  const int64_t weights =
      call.weights.has_value() ? call.weights->numel() : call.weights_grad.numel();
  return {
      .images = images,
      .rows = rows.rows,
      .halo = call.weights.has_value() ? ceil_div(rows.reach, rows.stride) : 0,
      .h_bytes = bytes,
      .image_bytes = (bytes + widened) / std::max<int64_t>(images, 1),
      .weights_bytes = call.src.has_value()
          ? call.weights_grad.numel() * std::max(wide, call.weights_grad.element_size())
          : 0,
      .products = weights / std::max<int64_t>(channels, 1),
      .is_widened = is_widened,
      .keeps_h = call.residual};
}

// Memory for all parts, as the system may take long to hand it out.
struct ReusedMemory {
  at::TensorOptions options;
  Tensor memory{};

  Tensor as(at::IntArrayRef sizes, at::IntArrayRef strides) {
    const int64_t count = c10::multiply_integers(sizes);
    if (!memory.defined() || memory.numel() < count) {
      memory = Tensor(); // before there is more
      memory = empty({count}, options);
    }
    return memory.as_strided(sizes, strides);
  }
};

// The gradient of weights, of which each part has a summand. Sums of 16-bit parts are float32, so
// that partial sums are not rounded, and lie densely, as kernels write them.
class WeightsSum {
 public:
  WeightsSum(const Tensor& result, bool has_parts) : total(result), result_(result) {
    const bool is_widened = has_parts && result.element_size() < int64_t(sizeof(float));
    if (is_widened || !result.is_non_overlapping_and_dense()) {
      const auto dtype = is_widened ? at::kFloat : result.scalar_type();
      total = at::empty_like(result, result.options().dtype(dtype));
    }
  }

  // compute(tensor that takes the summand)
  template <class F>
  void add(const F& compute) {
    if (!has_summand_) {
      compute(total);
    } else {
      if (!summand_.defined())
        summand_ = at::empty_like(total);
      compute(summand_);
      total.add_(summand_);
    }
    has_summand_ = true;
  }

  void finish() {
    if (!has_summand_)
      total.zero_();
    if (!total.is_same(result_))
      result_.copy_(total);
  }

  Tensor total;

 private:
  const Tensor result_;
  Tensor summand_;
  bool has_summand_ = false;
};

// Computes all parts of a call.
struct Parts {
  const FusedBackward& call;
  const RowsOfSrc& rows_of_src;
  const FusedBackwardSizes& sizes;
  const FusedBackwardSchedule& schedule;
  void (*compute)(const ConvProblem&, std::string_view);

  const ConvArguments& args = call.args;
  int64_t row_dim = args.image_at.spatial + rows_of_src.axis;
  WeightsSum weights_sum{
      call.weights_grad,
      /*has_parts=*/schedule.images < sizes.images || schedule.rows < sizes.rows};
  ReusedMemory h_memory{call.grad.options()};
  ReusedMemory wide_src{weights_sum.total.options()}, wide_h{weights_sum.total.options()};
  Tensor sums = // the gradient of the bias
      call.bias ? at::zeros(call.bias_grad.sizes(), call.bias_grad.options().dtype(at::kDouble))
                : Tensor();

  void run() {
    if (!call.residual)
      memory_of_h(schedule.images, std::min(schedule.rows + sizes.halo, sizes.rows));
    for (int64_t n = 0; n < sizes.images; n += schedule.images) {
      for (int64_t row = 0; row < sizes.rows; row += schedule.rows) {
        compute_part(
            {n, std::min(n + schedule.images, sizes.images)},
            {row, std::min(row + schedule.rows, sizes.rows)});
      }
    }
    if (call.src.has_value())
      weights_sum.finish();
    if (call.bias)
      call.bias_grad.copy_(sums);
  }

  void compute_part(Range images, Range rows) {
    const auto of_part = [&](const Tensor& image, Range of_rows) {
      return image.narrow(0, images.begin, images.count())
          .narrow(row_dim, of_rows.begin, of_rows.count());
    };
    // With the rows before it that meet the same rows of src.
    const Range with_halo{std::max<int64_t>(rows.begin - sizes.halo, 0), rows.end};
    const Tensor h = call.residual ? of_part(call.residual_grad, with_halo)
                                   : memory_of_h(images.count(), with_halo.count());
    const auto compute_h = [&](Range of_rows, double* of_bias) {
      const Tensor result = h.narrow(row_dim, of_rows.begin - with_halo.begin, of_rows.count());
      activation_gradient(
          activation_gradient_problem(
              args, of_part(call.grad, of_rows), of_part(call.value, of_rows), result),
          of_bias);
      return result;
    };
    if (with_halo.begin < rows.begin && !call.residual) // else they are there
      compute_h({with_halo.begin, rows.begin}, nullptr);
    const Tensor own = compute_h(rows, call.bias ? sums.mutable_data_ptr<double>() : nullptr);

    const Range completed = rows_of_src.completed_by(rows), met = rows_of_src.met_by(rows);
    if (call.weights.has_value() && completed.count() > 0) {
      compute_gradient(
          ConvPass::backward_data,
          of_part(call.src_grad, completed),
          *call.weights,
          h,
          completed.begin - with_halo.begin * rows_of_src.stride);
    }
    if (call.src.has_value() && met.count() > 0) { // else these rows meet pads only
      weights_sum.add([&](const Tensor& summand) {
        compute_gradient(
            ConvPass::backward_weights,
            in_type_of(summand, of_part(*call.src, met), wide_src),
            summand,
            in_type_of(summand, own, wide_h),
            met.begin - rows.begin * rows_of_src.stride);
      });
    }
  }

  // `first`: the first row of src, counted from where the first row of h begins without pads.
  void compute_gradient(
      ConvPass pass,
      const Tensor& src,
      const Tensor& weights,
      const Tensor& h,
      int64_t first) const {
    if ((pass == ConvPass::backward_data ? src : weights).numel() == 0)
      return;
    auto p = conv_problem(args, pass, src, weights, h);
    p.pad[3 - args.spatial() + rows_of_src.axis] = rows_of_src.pad + first;
    compute(p, args.algorithm);
  }

  static Tensor in_type_of(const Tensor& like, const Tensor& part, ReusedMemory& memory) {
    if (part.scalar_type() == like.scalar_type())
      return part;
    const Tensor dense = at::empty_like(part, part.options().device(at::kMeta));
    return memory.as(part.sizes(), dense.strides()).copy_(part);
  }

  // In the format of the value.
  Tensor memory_of_h(int64_t images, int64_t rows) {
    auto shape = call.grad.sizes().vec();
    shape[0] = images;
    shape[row_dim] = rows;
    if (args.is_nxc() || memory_format(call.value) == at::MemoryFormat::Contiguous)
      return h_memory.as(shape, c10::contiguous_strides(shape));
    std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end()); // channels last
    return h_memory.as(shape, c10::contiguous_strides(shape)).movedim(-1, 1);
  }
};

} // namespace

void fused_backward_in_parts(
    const FusedBackward& call,
    void (*compute)(const ConvProblem&, std::string_view)) {
  const RowsOfSrc rows = rows_of_src(call);
  const FusedBackwardSizes sizes = sizes_of(call, rows);
  const FusedBackwardSchedule schedule = fused_backward_schedule(sizes);
  Parts{call, rows, sizes, schedule, compute}.run();
}

} // namespace torch_dnnl
