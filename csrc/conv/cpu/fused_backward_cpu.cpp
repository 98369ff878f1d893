// convolution_fused_backward on the CPU. h is computed for a part of the result at a time, and what
// is made of it while it is in the cache; fused_backward_schedule.h says how large parts are. Parts
// follow one another: threads share the work of each.
#include "conv/cpu/fused_backward.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "conv/cpu/activation_gradient.h"
#include "conv/cpu/fused_backward_schedule.h"

namespace torch_dnnl {
namespace {

using at::Tensor;

// The spatial dimension that rows run along: the first of which the result has several.
size_t axis_of_rows(const FusedBackward& call) {
  const auto sizes = call.args.spatial_of(call.grad);
  size_t axis = 0;
  while (axis + 1 < sizes.size() && sizes[axis] == 1)
    axis++;
  return axis;
}

RowsOfSrc rows_of_src(const FusedBackward& call, size_t axis) {
  const ConvArguments& args = call.args;
  const c10::SymInt &src = call.src_size[axis], &kernel = call.kernel_size[axis];
  return {
      .rows = call.grad.size(args.image_at.spatial + static_cast<int64_t>(axis)),
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
      .groups = call.args.groups.expect_int(),
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

// The call of some of the groups.
FusedBackward of_groups(const FusedBackward& call, Range groups) {
  const int64_t all = call.args.groups.expect_int(), count = groups.end - groups.begin;
  const auto narrow = [&](const Tensor& tensor, int64_t dim) {
    const int64_t channels = tensor.size(dim) / all;
    return tensor.narrow(dim, groups.begin * channels, count * channels);
  };
  const int64_t channel = call.args.image_at.channel, outer = call.args.weights_at.outer;
  FusedBackward result = call;
  result.args.groups = count;
  result.grad = narrow(call.grad, channel);
  result.value = narrow(call.value, channel);
  if (call.src.has_value()) {
    result.src = narrow(*call.src, channel);
    result.weights_grad = narrow(call.weights_grad, outer);
  }
  if (call.weights.has_value()) {
    result.weights = narrow(*call.weights, outer);
    result.src_grad = narrow(call.src_grad, channel);
  }
  if (call.bias)
    result.bias_grad = narrow(call.bias_grad, 0);
  return result;
}

// Memory for all parts, as the system may take long to hand it out.
class ReusedMemory {
 public:
  explicit ReusedMemory(const at::TensorOptions& options) : options_(options) {}

  void reserve(int64_t count) {
    if (memory_.defined() && memory_.numel() >= count)
      return;
    memory_ = Tensor(); // before there is more
    memory_ = empty({count}, options_);
  }

  Tensor as(at::IntArrayRef sizes, at::IntArrayRef strides) {
    reserve(c10::multiply_integers(sizes));
    return memory_.as_strided(sizes, strides);
  }

 private:
  at::TensorOptions options_;
  Tensor memory_;
};

// The gradient of weights, of which each part has a summand. Sums of 16-bit parts are float32, so
// that partial sums are not rounded, and lie densely, as kernels write them.
class WeightsSum {
 public:
  WeightsSum(const Tensor& result, bool has_parts) : result_(result), total_(result) {
    const bool is_widened = has_parts && result.element_size() < int64_t(sizeof(float));
    if (is_widened || !result.is_non_overlapping_and_dense()) {
      const auto dtype = is_widened ? at::kFloat : result.scalar_type();
      total_ = at::empty_like(result, result.options().dtype(dtype));
    }
  }

  at::TensorOptions options() const {
    return total_.options();
  }

  // compute(tensor that takes the summand)
  template <class F>
  void add(const F& compute) {
    if (!has_summand_) {
      compute(total_);
    } else {
      if (!summand_.defined())
        summand_ = at::empty_like(total_);
      compute(summand_);
      total_.add_(summand_);
    }
    has_summand_ = true;
  }

  void finish() {
    if (!has_summand_)
      total_.zero_();
    if (!total_.is_same(result_))
      result_.copy_(total_);
  }

 private:
  Tensor result_, total_, summand_;
  bool has_summand_ = false;
};

// Of a dense image: N, C and rows outermost, or C innermost.
std::vector<int64_t> image_strides(at::IntArrayRef sizes, bool is_channels_last) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  const auto next = [&](size_t d) {
    strides[d] = stride;
    stride *= sizes[d];
  };
  if (is_channels_last)
    next(1);
  for (size_t d = sizes.size() - 1; d > 1; d--)
    next(d);
  if (!is_channels_last)
    next(1);
  next(0);
  return strides;
}

// Computes all parts of a call.
class Parts {
 public:
  Parts(
      const FusedBackward& call,
      size_t axis,
      const RowsOfSrc& rows_of_src,
      const FusedBackwardSizes& sizes,
      const FusedBackwardSchedule& schedule,
      void (*compute)(const ConvProblem&, std::string_view))
      : call_(call),
        args_(call.args),
        axis_(axis),
        row_dim_(args_.image_at.spatial + static_cast<int64_t>(axis)),
        rows_of_src_(rows_of_src),
        sizes_(sizes),
        schedule_(schedule),
        compute_(compute),
        h_memory_(call.grad.options()),
        weights_sum_(
            call.weights_grad,
            schedule.images < sizes.images || schedule.rows < sizes.rows),
        wide_src_(weights_sum_.options()),
        wide_h_(weights_sum_.options()) {}

  void run() {
    if (call_.bias)
      sums_ = at::zeros(call_.bias_grad.sizes(), call_.bias_grad.options().dtype(at::kDouble));
    if (!call_.residual)
      memory_of_h(schedule_.images, std::min(schedule_.rows + sizes_.halo, sizes_.rows));
    for (int64_t n = 0; n < sizes_.images; n += schedule_.images) {
      for (int64_t row = 0; row < sizes_.rows; row += schedule_.rows) {
        compute_part(
            {n, std::min(n + schedule_.images, sizes_.images)},
            {row, std::min(row + schedule_.rows, sizes_.rows)});
      }
    }
    if (call_.src.has_value())
      weights_sum_.finish();
    if (call_.bias)
      call_.bias_grad.copy_(sums_);
  }

 private:
  void compute_part(Range images, Range rows) {
    const auto of_part = [&](const Tensor& image, Range of_rows) {
      return image.narrow(0, images.begin, images.end - images.begin)
          .narrow(row_dim_, of_rows.begin, of_rows.end - of_rows.begin);
    };
    // With the rows before it that meet the same rows of src.
    const Range with_halo{std::max<int64_t>(rows.begin - sizes_.halo, 0), rows.end};
    const Tensor h = call_.residual
        ? of_part(call_.residual_grad, with_halo)
        : memory_of_h(images.end - images.begin, with_halo.end - with_halo.begin);
    const auto compute_h = [&](Range of_rows, const Tensor& sums) {
      const Tensor result =
          h.narrow(row_dim_, of_rows.begin - with_halo.begin, of_rows.end - of_rows.begin);
      activation_gradient(
          activation_gradient_problem(
              args_, of_part(call_.grad, of_rows), of_part(call_.value, of_rows), result),
          sums.defined() ? sums.mutable_data_ptr<double>() : nullptr);
      return result;
    };
    if (with_halo.begin < rows.begin && !call_.residual) // else they are there
      compute_h({with_halo.begin, rows.begin}, /*sums=*/{});
    const Tensor own = compute_h(rows, sums_);

    const Range completed = rows_of_src_.completed_by(rows), met = rows_of_src_.met_by(rows);
    if (call_.weights.has_value() && completed.end > completed.begin) {
      compute_gradient(
          ConvPass::backward_data,
          of_part(call_.src_grad, completed),
          *call_.weights,
          h,
          completed.begin - with_halo.begin * rows_of_src_.stride);
    }
    if (call_.src.has_value() && met.end > met.begin) { // else these rows meet pads only
      weights_sum_.add([&](const Tensor& summand) {
        compute_gradient(
            ConvPass::backward_weights,
            in_type_of(summand, of_part(*call_.src, met), wide_src_),
            summand,
            in_type_of(summand, own, wide_h_),
            met.begin - rows.begin * rows_of_src_.stride);
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
    auto p = conv_problem(args_, pass, src, weights, h);
    p.pad[3 - args_.spatial() + axis_] = rows_of_src_.pad + first;
    compute_(p, args_.algorithm);
  }

  static Tensor in_type_of(const Tensor& like, const Tensor& part, ReusedMemory& memory) {
    if (part.scalar_type() == like.scalar_type())
      return part;
    const auto strides = at::infer_dense_strides(part.sizes(), part.strides());
    return memory.as(part.sizes(), strides).copy_(part);
  }

  // In the format of the value.
  Tensor memory_of_h(int64_t images, int64_t rows) {
    auto sizes = call_.grad.sizes().vec();
    sizes[0] = images;
    sizes[row_dim_] = rows;
    const bool is_channels_last =
        !args_.is_nxc() && call_.value.suggest_memory_format() != at::MemoryFormat::Contiguous;
    return h_memory_.as(sizes, image_strides(sizes, is_channels_last));
  }

  const FusedBackward& call_;
  const ConvArguments& args_;
  const size_t axis_;
  const int64_t row_dim_;
  const RowsOfSrc rows_of_src_;
  const FusedBackwardSizes sizes_;
  const FusedBackwardSchedule schedule_;
  void (*const compute_)(const ConvProblem&, std::string_view);
  ReusedMemory h_memory_;
  WeightsSum weights_sum_;
  ReusedMemory wide_src_, wide_h_;
  Tensor sums_;
};

} // namespace

void fused_backward_in_parts(
    const FusedBackward& call,
    void (*compute)(const ConvProblem&, std::string_view)) {
  const size_t axis = axis_of_rows(call);
  const RowsOfSrc rows = rows_of_src(call, axis);
  const FusedBackwardSizes sizes = sizes_of(call, rows);
  const FusedBackwardSchedule schedule = fused_backward_schedule(sizes);
  if (schedule.groups == sizes.groups)
    return Parts(call, axis, rows, sizes, schedule, compute).run();
  for (int64_t g = 0; g < sizes.groups; g += schedule.groups) {
    const auto part = of_groups(call, {g, std::min(g + schedule.groups, sizes.groups)});
    Parts(part, axis, rows, sizes, schedule, compute).run();
  }
}

} // namespace torch_dnnl
