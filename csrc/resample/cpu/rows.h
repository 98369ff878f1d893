// The CPU kernel of resample for images whose rows are dense: N, C, ..., W with W
// innermost, or channels innermost in both images. Forward and backward are one
// computation, with a table or with its transpose.
//
// A row is made in two passes, in the order that costs less. Either the source rows
// that its D and H taps name are added up, and the W taps are applied to their sum;
// or the W taps are applied to each source row, which is kept for as long as output
// rows need it, and the results are added up. Both run along the row in vectors.
// Where elements of that sum would hardly be read twice, the two are one pass, and
// the sum stays in registers.
//
// Parallel over images, output rows and pieces of rows.
#pragma once

#include "resample/problem.h"

namespace torch_dnnl {

// Whether channels are innermost in both images, and pixels of a row are neighbours.
bool is_interleaved(const ResampleProblem& p);

bool supports_rows(const ResampleProblem& p);

void run_rows(const ResampleProblem& p);

} // namespace torch_dnnl
