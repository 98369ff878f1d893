// The definitions of reorder and of fake quantization, element by element: slow, and for every
// problem.
#pragma once

#include "reorder/fake_reference.h"

namespace torch_dnnl {

void run_reference(const ReorderProblem& p);
void fake_quantize_reference(const FakeReorderProblem& p);
void mask_gradient_reference(const FakeReorderProblem& p);

} // namespace torch_dnnl
