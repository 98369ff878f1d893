// The pixels of dst, over which gradients of weights are summed, in tiles.
#pragma once

#include "conv/problem.h"
#include "core/math.h"

namespace torch_dnnl {

struct GradientTiles {
  int64_t tile_rows, tile_width;
  int64_t row_tiles, width_tiles, tiles; // of an image; of all images
};

struct GradientTile {
  int64_t n, d;
  Range rows, pixels; // pixels: of each row
};

inline GradientTile tile_of(const ConvProblem& p, const GradientTiles& tiles, int64_t index) {
  Digits digits{index};
  GradientTile tile;
  tile.pixels = nth_range(digits.next(tiles.width_tiles), tiles.tile_width, p.dst_size[2]);
  tile.rows = nth_range(digits.next(tiles.row_tiles), tiles.tile_rows, p.dst_size[1]);
  tile.d = digits.next(p.dst_size[0]);
  tile.n = digits.rest;
  return tile;
}

} // namespace torch_dnnl
