// The CPU kernels of reorder and of fake quantization.
#pragma once

#include "reorder/fake_reference.h"

namespace torch_dnnl {

// Every pair of layouts whose digits have a common refinement: see boxes.cpp.
bool supports_boxes(const ReorderProblem& p);
void run_boxes(const ReorderProblem& p);

// The same of fake quantization; the gradient of every problem: see fake_quantize.cpp.
bool supports_fake_quantize(const FakeReorderProblem& p);
void fake_quantize(const FakeReorderProblem& p);
void mask_gradient(const FakeReorderProblem& p);

// The definitions, element by element: slow, and for every problem.
void run_reference(const ReorderProblem& p);
void fake_quantize_reference(const FakeReorderProblem& p);
void mask_gradient_reference(const FakeReorderProblem& p);

} // namespace torch_dnnl
