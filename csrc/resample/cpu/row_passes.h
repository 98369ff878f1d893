// The passes that the rows kernel is made of, as functions that are looked up by type.
//
// A row of an image becomes a line in the computing type C, and lines become a row of an image. No
// pass is compiled for a pair of images: a result of a rare type is made as a line and converted.
#pragma once

#include <cstdint>

#include "resample/cpu/taps.h"

namespace torch_dnnl {

// How far ahead rows of an image are fetched, in bytes. Short rows end before the processor has
// noticed that they are read in order: without this, shrinking took 2.5 times as long (measured
// with 640-byte rows; 1 KB ahead is too late, 8 KB no better). What is written is fetched, too: a
// store that waits for its line keeps all later ones waiting in a queue that is soon full.
inline constexpr int64_t kPrefetch = 4096;

// Where a pass writes: to a line between the passes, to the image, or to the image past the caches.
enum class Target : int8_t { line, image, stream };

// A part of an output row, as the taps of the W axis make it.
template <class C>
struct RowPart {
  const HostTable<C>& table;
  const Taps<C>*
      taps;         // few channels: the same table for vectors of elements; null: pixels are wide
  int64_t channels; // of a pixel
  int64_t begin, size; // pixels
  void* to;
  Target target;
  const void* empty; // one element, for those that read nothing
};

// Rows of an image, or lines, to be weighted and added up.
template <class C>
struct WeightedRowList {
  const void* const* rows;
  const C* weights;
  int64_t count;
};

inline constexpr int64_t kMaxRows = 8; // of a list

// Elements [0, n) of the sum of some rows. Unless `is_first`, what is there is added.
template <class C>
using AddRows = void (*)(const WeightedRowList<C>&, bool is_first, int64_t n, void* to, Target);

// The taps, applied to a row from its pixel 0 on: a line, or a row of bytes.
template <class C>
using ApplyTaps = void (*)(const void* row, const RowPart<C>&);
// The taps, applied to rows of an image that are added up on the way.
template <class C>
using ApplyTapsToRows = void (*)(const WeightedRowList<C>&, const RowPart<C>&);

// The passes that read or write images of one type. Those of C itself also read and write lines.
template <class C>
struct ImagePasses {
  AddRows<C> read = nullptr;  // rows of the image to a line; null if elements are only moved
  AddRows<C> write = nullptr; // lines to a row of the image
  // A line to a row of the image; null: to a line, which `write` converts.
  ApplyTaps<C> apply_taps = nullptr;
  // Rows of the image to a row of an image of the same type, without a line between; or null.
  ApplyTapsToRows<C> apply_taps_to_rows = nullptr;
  ApplyTaps<C> apply_taps_to_bytes = nullptr; // a row of the image to a line; or null
};

// The passes for images of T that are computed in C. Each is compiled in a file passes_*.cpp.
template <class T, class C>
const ImagePasses<C>& passes_of();

// Those that move unsigned integers E, whatever they stand for.
template <class E>
const ImagePasses<WeightOf<E>>& moves_of();

} // namespace torch_dnnl
