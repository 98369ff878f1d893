// A reorder of the rows of a box, in the order of the box: elements are moved, or loaded, computed
// with (quantize_rows.h), rounded and stored.
#pragma once

#include "reorder/box.h"

namespace torch_dnnl::reorder_cpu {

using namespace boxes;

// Of a merged box, whose innermost axis are the rows. `src` and `dst` are where it begins; where it
// begins in the other arrays, its offsets say.
void reorder_rows(
    const ReorderProblem& p,
    const Box& box,
    const char* src,
    char* dst,
    bool is_streamed);

} // namespace torch_dnnl::reorder_cpu
