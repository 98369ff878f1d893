// The CPU kernel of reorder for every pair of layouts whose digits have a common refinement.
//
// Each box of the problem is cut into tiles that fit in the cache, and tiles are distributed over
// the threads. Where the innermost axis is the same on both sides, a tile is computed row by row.
// Else it is computed with a transpose in registers: the elements are brought into the order of
// dst in the narrower of the two types, through a buffer, and converted before or after that.
#pragma once

#include "reorder/problem.h"

namespace torch_dnnl {

bool supports_boxes(const ReorderProblem& p);
void run_boxes(const ReorderProblem& p);

} // namespace torch_dnnl
