// The CPU kernel of resample for images whose rows are dense: N, C, ..., W with W
// innermost, or channels innermost in both images. Forward and backward are one
// computation, with a table or with its transpose.
//
// A task makes a piece of one output row: the source rows that its D and H taps
// name are added up into a buffer, vectorised along the row; then the W taps are
// applied to the buffer. Parallel over images, output rows and pieces of rows.
#pragma once

#include "resample/resample.h"

namespace torch_dnnl {

bool can_run_rows(const ResampleProblem& p);

// `transposed`: dst is the gradient of the source image.
void run_rows(const ResampleProblem& p, bool transposed);

} // namespace torch_dnnl
