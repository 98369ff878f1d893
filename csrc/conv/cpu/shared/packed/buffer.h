// Buffers of packed weights: a header that says what they are for, and the weights as one kernel
// reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include "conv/cpu/shared/packed/packed.h"
#include "conv/problem.h"
#include "core/expected.h"
#include "core/torch/empty.h"

namespace torch_dnnl {

struct PackedHeader {
  char mark[8] = {'d', 'n', 'n', 'l', 'p', 'a', 'c', 'k'};
  int64_t version = 1, bytes = 0, layout = 0;
  char library[16] = {}, kernel[32] = {};
  int64_t dtype = 0, pass = 0, groups = 0, ic = 0, oc = 0, taps[3] = {}, stride[3] = {},
          dilation[3] = {};

  // Of the weights, behind the header.
  static constexpr int64_t kOffset = 256;

  constexpr PackedHeader() = default;
  PackedHeader(
      const ConvProblem& p,
      std::string_view kernel_name,
      int64_t kernel_layout,
      int64_t size)
      : bytes(size), layout(kernel_layout) {
    std::string_view(cpu_library()).copy(library, sizeof(library) - 1);
    kernel_name.copy(kernel, sizeof(kernel) - 1);
    dtype = static_cast<int64_t>(p.dtype), pass = static_cast<int64_t>(p.pass);
    groups = p.groups, ic = p.ic, oc = p.oc;
    for (int a = 0; a < 3; a++) {
      taps[a] = p.kernel[a], stride[a] = p.stride[a];
      dilation[a] = p.kernel[a] == 1 ? 1 : p.dilation[a];
    }
  }
};
static_assert(sizeof(PackedHeader) <= PackedHeader::kOffset);

// ValueError if a tensor is no result of pack_weights.
inline void check_packed(const at::Tensor& packed) {
  constexpr PackedHeader known;
  const bool has_header = packed.scalar_type() == c10::kByte && packed.dim() == 1 &&
      packed.is_contiguous() && packed.numel() >= PackedHeader::kOffset;
  TORCH_CHECK_VALUE(
      has_header && std::memcmp(packed.const_data_ptr(), known.mark, sizeof(known.mark)) == 0,
      Expected("convolution") << "packed weights to be a result of pack_weights, got "
                              << packed.scalar_type() << " of sizes " << packed.sizes());
}

// The problem with packed weights, which check_packed() has seen.
inline ConvProblem with_packed(ConvProblem p, const at::Tensor& packed) {
  const char* const data = static_cast<const char*>(packed.const_data_ptr());
  p.packed = data + PackedHeader::kOffset;
  std::memcpy(&p.packed_layout, data + offsetof(PackedHeader, layout), sizeof(p.packed_layout));
  return p;
}

// The kernel whose name is in a buffer; null if there is none, or if nothing is packed.
template <class Row, size_t n>
const Row* kernel_of_packed(const Row (&kernels)[n], const at::Tensor& packed) {
  if (packed.numel() == 0)
    return nullptr;
  check_packed(packed);
  const char* const name =
      static_cast<const char*>(packed.const_data_ptr()) + offsetof(PackedHeader, kernel);
  for (const Row& kernel : kernels)
    if (kernel.packing != nullptr &&
        std::strncmp(kernel.name, name, sizeof(PackedHeader::kernel)) == 0)
      return &kernel;
  return nullptr;
}

// `p`: the problem that the kernel runs. `as_called` has the attributes of the call, and the type
// of the weights.
template <class Problem>
PackedHeader
header_for(const PackingKernel<Problem>& kernel, const Problem& p, const ConvProblem& as_called) {
  const Packing<Problem>& packing = *kernel.packing;
  const int64_t layout = packing.layout == nullptr ? 0 : packing.layout(p);
  return {as_called, kernel.name, layout, packing.size(p)};
}

// Whether the packed weights of `p` are for this call, CPU and version. A damaged header differs.
template <class Problem>
bool is_packed_for(
    const at::Tensor& packed,
    const PackingKernel<Problem>& kernel,
    const Problem& p,
    const ConvProblem& as_called) {
  if (!kernel.supports(p))
    return false;
  const PackedHeader wanted = header_for(kernel, p, as_called);
  return packed.numel() == PackedHeader::kOffset + wanted.bytes &&
      std::memcmp(&wanted, packed.const_data_ptr(), sizeof(wanted)) == 0;
}

// The weights of a problem packed for a kernel; no elements if the kernel does not take them.
template <class Problem>
at::Tensor
packed_by(const PackingKernel<Problem>& kernel, const Problem& p, const ConvProblem& as_called) {
  const PackedHeader header = header_for(kernel, p, as_called);
  const at::Tensor packed = empty({PackedHeader::kOffset + header.bytes}, c10::kByte);
  auto* const to = static_cast<char*>(packed.mutable_data_ptr());
  std::memset(to, 0, PackedHeader::kOffset);
  std::memcpy(to, &header, sizeof(header));
  return kernel.packing->pack(p, to + PackedHeader::kOffset) ? packed : empty({0}, c10::kByte);
}

} // namespace torch_dnnl
