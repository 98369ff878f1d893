// The arguments of a reorder: what they mean, and whether they are valid. A call is read and
// checked once, into ReorderArguments; its output and its Problem are made of that (reorder.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/checks.h"
#include "core/dispatch.h"
#include "core/math.h"
#include "core/numeric.h"
#include "reorder/format.h"
#include "reorder/problem.h"

namespace torch_dnnl {

// What `algorithm` may be.
inline constexpr std::string_view kReorderAlgorithms[] = {
    "auto", // the device's own choice
    // The kernels of all devices.
    "boxes",
    "reference",
};

// A scale or zero point: a tensor or, if there is none, a number.
struct ReorderOperand {
  std::optional<at::Tensor> tensor;
  double number = 0;
};
// By reorder_arrays: their names, and the numbers that change nothing.
inline constexpr const char* kOperandNames[] = {
    "scale",
    "dst_scale",
    "src_zero_point",
    "dst_zero_point"};
inline constexpr double kNeutral[] = {1, 1, 0, 0};

// reorder_backward is a reorder too, with the arguments in other places; errors name them.
struct ReorderNames {
  const char *op, *src, *src_format, *dst_format;
};
inline constexpr ReorderNames reorder_names{"reorder", "src", "src_format", "dst_format"};
inline constexpr ReorderNames reorder_backward_names{
    "reorder_backward",
    "grad",
    "dst_format",
    "src_format"};

// The arguments as they are given.
struct ReorderOptions {
  ReorderNames names;
  c10::ScalarType compute_dtype; // float64 or float32
  std::optional<std::string_view> dst_format, src_format;
  at::OptionalSymIntArrayRef size;
  std::optional<c10::ScalarType> dtype;
  ReorderOperand operand[reorder_arrays::kAccumulate] = {{{}, 1}, {{}, 1}, {}, {}};
  std::optional<at::Tensor> accumulate;
  double beta = 1;
  bool round_before_zero_point = false;
  std::string_view algorithm = "auto";
};

using SymSizes = c10::SmallVector<c10::SymInt, 6>;

// A checked call. It refers to the source and to the arguments that it was made of.
struct ReorderArguments {
  const at::Tensor& src;
  const ReorderOptions& options;
  std::optional<Format> src_format, dst_format; // as given or implied
  SymSizes size;                                // logical
  SymSizes dst_size;                            // of the destination as a tensor
  c10::ScalarType dtype;                        // of the destination

  bool is_dst_blocked() const {
    return dst_format.has_value() && dst_format->blocked();
  }
};

namespace reorder_detail {

inline SymSizes physical_sizes(const Format& format, c10::SymIntArrayRef size) {
  SymSizes sizes;
  for (const int64_t dim : format.outer) {
    const int64_t block = format.block_of(dim);
    sizes.push_back(block == 1 ? size[dim] : (size[dim] + (block - 1)) / block);
  }
  for (const Format::Block& block : format.inner)
    sizes.push_back(block.size);
  return sizes;
}

// The logical sizes of a physical tensor, with the padding.
inline SymSizes padded_sizes(const Format& format, c10::SymIntArrayRef physical) {
  SymSizes sizes(format.rank());
  for (int64_t i = 0; i < format.rank(); i++) {
    const int64_t dim = format.outer[i];
    sizes[dim] = physical[i] * format.block_of(dim);
  }
  return sizes;
}

// TypeError unless a tensor is of the expected type.
inline void check_type(
    bool is_expected,
    const char* op,
    const char* argument,
    const char* expected,
    const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(
      is_expected,
      Expected(op) << argument << " to be " << expected << ", got "
                   << dtype_name(tensor.scalar_type()));
}

inline void check_sizes(
    const char* op,
    const char* argument,
    const at::Tensor& tensor,
    const char* like,
    c10::SymIntArrayRef sizes) {
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  for (size_t d = 0; same && d < sizes.size(); d++)
    same = holds(tensor.sym_size(d).sym_eq(sizes[d]));
  TORCH_CHECK_VALUE(
      same,
      Expected(op) << argument << " to have the sizes of " << like << ", " << sizes << ", got "
                   << tensor.sym_sizes());
}

// Reads the formats and the sizes, and checks src against them.
inline void read_layouts(ReorderArguments& call) {
  const at::Tensor& src = call.src;
  const ReorderOptions& options = call.options;
  const ReorderNames& names = options.names;
  if (options.src_format)
    call.src_format = parse_format(names.op, names.src_format, *options.src_format);
  if (options.dst_format)
    call.dst_format = parse_format(names.op, names.dst_format, *options.dst_format);
  const std::optional<Format>& src_format = call.src_format;
  const bool blocked = src_format.has_value() && src_format->blocked();
  const int64_t rank = src_format ? src_format->rank() : src.dim();
  const int64_t physical_rank = rank + (blocked ? src_format->inner.size() : 0);
  TORCH_CHECK_VALUE(
      src.dim() == physical_rank,
      Expected(names.op) << names.src << " to be " << physical_rank << "-D, as " << names.src_format
                         << " \"" << options.src_format.value_or("") << "\" says, got " << src.dim()
                         << "-D with sizes " << src.sym_sizes());
  TORCH_CHECK_VALUE(
      rank <= kMaxDims,
      Expected(names.op) << names.src << " to have at most " << kMaxDims << " dimensions, got "
                         << rank << "-D with sizes " << src.sym_sizes());
  TORCH_CHECK_VALUE(
      !call.dst_format || call.dst_format->rank() == rank,
      Expected(names.op) << names.dst_format << " to have a letter for each of " << rank
                         << " dimensions, got \"" << options.dst_format.value_or("") << "\"");

  if (options.size) {
    TORCH_CHECK_VALUE(
        static_cast<int64_t>(options.size->size()) == rank,
        Expected(names.op) << "size to have one entry for each of " << rank << " dimensions, got "
                           << *options.size);
    check_within(names.op, "", "size", *options.size, 0);
    call.size.append(options.size->begin(), options.size->end());
  } else if (blocked) {
    call.size = padded_sizes(*src_format, src.sym_sizes());
  } else {
    call.size.append(src.sym_sizes().begin(), src.sym_sizes().end());
  }
  if (blocked) {
    check_sizes(
        names.op,
        names.src,
        src,
        options.size ? "a tensor of that size and format" : "a whole number of blocks",
        physical_sizes(*src_format, call.size));
  } else if (options.size) {
    check_sizes(names.op, names.src, src, "size", call.size);
  }
  if (!call.dst_format && blocked)
    call.dst_format = src_format;
  call.dst_size = call.is_dst_blocked() ? physical_sizes(*call.dst_format, call.size) : call.size;
}

// A number as the kernel computes with it.
inline double computed(const ReorderOptions& options, double number) {
  return options.compute_dtype == c10::kDouble ? number : static_cast<float>(number);
}

// `dtype`: of the side that a zero point belongs to; nothing of it matters to a scale.
inline void check_operand(const ReorderArguments& call, int array, c10::ScalarType dtype) {
  const ReorderOptions& options = call.options;
  const char *op = options.names.op, *argument = kOperandNames[array];
  const double given = options.operand[array].number;
  const bool is_scale = array == reorder_arrays::kScale || array == reorder_arrays::kDstScale;
  const double number = computed(options, given);
  check_finite(op, argument, number);
  if (!options.operand[array].tensor) {
    TORCH_CHECK_VALUE(
        !is_scale || number != 0,
        Expected(op) << argument << " to be different from 0 in "
                     << dtype_name(options.compute_dtype) << ", got " << given);
    const bool is_value = is_scale || with_type(dtype, [&](auto tag) {
                            using T = decltype(tag);
                            return !std::is_integral_v<T> || convert<T>(given) == given;
                          });
    TORCH_CHECK_VALUE(
        is_value,
        Expected(op) << argument << " to be a value of " << dtype_name(dtype) << ", got " << given);
    return;
  }
  const at::Tensor& tensor = *options.operand[array].tensor;
  TORCH_CHECK_VALUE(
      given == kNeutral[array],
      Expected(op) << argument << " to be a number or a tensor, got both (" << given
                   << " and a tensor of sizes " << tensor.sym_sizes() << ")");
  check_strided(op, argument, tensor);
  check_same_device(op, argument, tensor, options.names.src, call.src);
  const c10::SymIntArrayRef size = call.size;
  // A tensor of one element may always be 0-D.
  bool fits = tensor.dim() == 0 || tensor.dim() == static_cast<int64_t>(size.size());
  for (int64_t d = 0; fits && d < tensor.dim(); d++) {
    const auto& length = tensor.sym_size(d);
    fits = TORCH_GUARD_OR_FALSE(length.sym_eq(size[d])) ||
        (holds(length.sym_gt(0)) && holds((size[d] % length).sym_eq(0)));
  }
  TORCH_CHECK_VALUE(
      fits,
      Expected(op) << argument << " to be " << size.size()
                   << "-D with each size 1 or a divisor of the logical size of src, " << size
                   << ", got " << tensor.dim() << "-D with sizes " << tensor.sym_sizes());
  const c10::ScalarType type = tensor.scalar_type();
  const bool is_known = is_scale ? contains(ReorderFloatingTypes{}, type)
                                 : contains(ReorderTypes{}, type) || type == c10::kLong;
  const char* expected = is_scale ? "of a floating type" : "of a floating or integer type";
  check_type(is_known, op, argument, expected, tensor);
}

} // namespace reorder_detail

// Reads and checks a call.
inline ReorderArguments reorder_arguments(const at::Tensor& src, const ReorderOptions& options) {
  using namespace reorder_detail;
  const ReorderNames& names = options.names;
  ReorderArguments call{src, options, {}, {}, {}, {}, options.dtype.value_or(src.scalar_type())};
  check_algorithm(names.op, options.algorithm, kReorderAlgorithms);
  check_strided(names.op, names.src, src);
  for (const auto type : {src.scalar_type(), call.dtype}) {
    TORCH_CHECK_TYPE(
        contains(ReorderTypes{}, type),
        Expected(names.op) << "float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2, "
                              "int32, int8 or uint8, got "
                           << names.src << " of " << dtype_name(src.scalar_type()) << " and dtype "
                           << dtype_name(call.dtype));
  }
  read_layouts(call);
  for (int array = 0; array < reorder_arrays::kAccumulate; array++) {
    const bool is_of_src = array == reorder_arrays::kSrcZeroPoint;
    check_operand(call, array, is_of_src ? src.scalar_type() : call.dtype);
  }
  check_finite(names.op, "beta", computed(options, options.beta));
  if (options.accumulate) {
    const at::Tensor& accumulate = *options.accumulate;
    check_strided(names.op, "accumulate", accumulate);
    check_same_device(names.op, "accumulate", accumulate, "src", src);
    const bool is_known = contains(ReorderTypes{}, accumulate.scalar_type());
    check_type(is_known, names.op, "accumulate", "of a type that src may have", accumulate);
    check_sizes(names.op, "accumulate", accumulate, "the destination", call.dst_size);
  }
  return call;
}

} // namespace torch_dnnl
