#include "conv/cpu/shared/products/matrix_tiles.h"

#include <ATen/cpu/Utils.h>

namespace torch_dnnl {

#if defined(CPU_CAPABILITY_AVX512)
namespace {

// Linux gives the registers of tiles to a process that asks for them.
bool may_use_tiles() {
  static const bool may = __builtin_cpu_supports("amx-tile") &&
      __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16") &&
      at::cpu::init_amx();
  return may;
}

// What ldtilecfg reads.
struct TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

} // namespace

bool has_matrix_unit() {
  // torch tells what its settings, and those of oneDNN, leave of the machine.
  return HalfProducts<c10::BFloat16>::have_tiles() && may_use_tiles();
}

void MatrixUnit::use_rows(int64_t rows) {
  if (rows == rows_)
    return;
  rows_ = rows;
  TileConfiguration configuration;
  for (int tile = 0; tile < kTiles; tile++) {
    configuration.row_bytes[tile] = kTileRowBytes;
    configuration.rows[tile] = static_cast<uint8_t>(tile >= kFirstRight ? kTileRows : rows);
  }
  asm volatile("ldtilecfg %0" : : "m"(configuration));
}

MatrixUnit::~MatrixUnit() {
  if (rows_ > 0)
    asm volatile("tilerelease");
}
#else
bool has_matrix_unit() {
  return false;
}

void MatrixUnit::use_rows(int64_t /*rows*/) {}
MatrixUnit::~MatrixUnit() = default;
#endif

} // namespace torch_dnnl
