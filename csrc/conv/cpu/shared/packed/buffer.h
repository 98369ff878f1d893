// Buffers of packed weights: a header that says what they are for, and the weights as one kernel
// reads them.
#pragma once

#include <ATen/core/Tensor.h>

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
  uint64_t sum = 0; // of what comes before

  // Of the weights, behind the header.
  static constexpr int64_t kOffset = 256;

  PackedHeader() = default;
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
    sum = computed_sum();
  }

  uint64_t computed_sum() const { // FNV-1a
    uint64_t hash = 14695981039346656037u;
    for (const auto* byte = reinterpret_cast<const unsigned char*>(this);
         byte < reinterpret_cast<const unsigned char*>(&sum);
         byte++)
      hash = (hash ^ *byte) * 1099511628211u;
    return hash;
  }
};
static_assert(sizeof(PackedHeader) <= PackedHeader::kOffset);

// The header of a buffer; ValueError if it is none that pack_weights made.
inline PackedHeader header_of(const at::Tensor& packed) {
  constexpr const char* op = "convolution";
  TORCH_CHECK_VALUE(
      packed.scalar_type() == c10::kByte && packed.dim() == 1 && packed.is_contiguous() &&
          packed.numel() >= PackedHeader::kOffset,
      Expected(op) << "packed weights to be a result of pack_weights, got " << packed.scalar_type()
                   << " of sizes " << packed.sizes());
  PackedHeader header;
  const PackedHeader known;
  std::memcpy(&header, packed.const_data_ptr(), sizeof(header));
  TORCH_CHECK_VALUE(
      std::memcmp(header.mark, known.mark, sizeof(known.mark)) == 0 &&
          header.sum == header.computed_sum(),
      Expected(op) << "packed weights to be a result of pack_weights, got other bytes");
  TORCH_CHECK_VALUE(
      header.version != known.version || header.bytes == packed.numel() - PackedHeader::kOffset,
      Expected(op) << "packed weights of " << header.bytes << " bytes, got "
                   << packed.numel() - PackedHeader::kOffset);
  return header;
}

inline const void* packed_data(const at::Tensor& packed) {
  return static_cast<const char*>(packed.const_data_ptr()) + PackedHeader::kOffset;
}

// The kernel that weights are packed for; null if there is none here, or if nothing is packed.
template <class Problem, size_t n>
const PackingKernel<Problem>*
kernel_of_packed(const PackingKernel<Problem> (&kernels)[n], const at::Tensor& packed) {
  if (packed.numel() == 0)
    return nullptr;
  const PackedHeader header = header_of(packed);
  for (const PackingKernel<Problem>& kernel : kernels)
    if (kernel.packing != nullptr && std::strcmp(kernel.name, header.kernel) == 0)
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

// Whether weights are packed for this call, CPU and version.
template <class Problem>
bool is_packed_for(
    const at::Tensor& packed,
    const PackingKernel<Problem>& kernel,
    const Problem& p,
    const ConvProblem& as_called) {
  if (!kernel.supports(p))
    return false;
  const PackedHeader wanted = header_for(kernel, p, as_called);
  return std::memcmp(&wanted, packed.const_data_ptr(), sizeof(wanted)) == 0;
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
