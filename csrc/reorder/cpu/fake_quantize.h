// Fake quantization on the CPU, of every problem whose digits, scales and zero points have a common
// refinement. Pieces of the result, in the order of memory, go from a buffer to the quantized type
// and back through the arithmetic of a reorder. The gradient is masked in the same pieces.
#pragma once

#include "reorder/fake_reference.h"

namespace torch_dnnl {

bool supports_fake_quantize(const FakeReorderProblem& p);
void fake_quantize(const FakeReorderProblem& p);

void mask_gradient(const FakeReorderProblem& p); // every problem

} // namespace torch_dnnl
