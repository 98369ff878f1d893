// Lines of images with the pixels of a channel next to each other, and such lines as rows of
// products.
#pragma once

#include "conv/cpu/shared/products/lines/image_lines.h"

namespace torch_dnnl {

// [channel][pixel] with `pitch` elements from a channel to the next. Pads are 0.
template <class T>
void copy_channel_lines(const LineOfImage& line, int64_t pitch, T* to);

// Such lines of some rows of an image, `row_stride` apart, as rows of products: of `columns`
// channels, those that a line has not are 0. `lines`: memory for as many elements.
template <class T, int64_t pack>
void interleave_rows(
    LineOfImage line,
    int64_t rows,
    int64_t row_stride,
    int64_t columns,
    T* lines,
    T* to);

// `depth` elements of each of some lines, that begin `pitch` apart, as [row / pack][line][row %
// pack]. Depth and pitch are multiples of pack.
template <class T, int64_t pack>
void interleave_lines(const T* from, int64_t pitch, int64_t lines, int64_t depth, T* to);

} // namespace torch_dnnl
