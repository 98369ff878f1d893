// The memory of tensors and of kernels: an allocator in the place of torch's. What is freed is
// overwritten, so that reading it shows.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>

#include "failing.h"

namespace {

constexpr size_t kAlignment = 64; // of torch's own; here also the place of a block's size

void release(void* block) {
  if (block == nullptr)
    return;
  const size_t size = *static_cast<size_t*>(block);
  std::memset(block, 0xFF, kAlignment + size);
  std::free(block);
  failing::remove(static_cast<int64_t>(size));
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (size == 0)
      return {nullptr, nullptr, &release, cpu};
    void* block = nullptr;
    const bool failed =
        failing::fails() || posix_memalign(&block, kAlignment, kAlignment + size) != 0;
    TORCH_CHECK(!failed, "DefaultCPUAllocator: can't allocate memory: ", size, " bytes");
    *static_cast<size_t*>(block) = size;
    failing::add(static_cast<int64_t>(size));
    return {static_cast<char*>(block) + kAlignment, block, &release, cpu};
  }

  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};

} // namespace

extern "C" {

__attribute__((visibility("default"))) void install() {
  static Allocator allocator;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator);
}

__attribute__((visibility("default"))) void uninstall() {
  c10::SetAllocator(c10::DeviceType::CPU, c10::GetDefaultCPUAllocator());
}

} // extern "C"
