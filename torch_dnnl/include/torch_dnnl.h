// The operators of torch_dnnl as C++ functions of at::Tensor. Call torch_dnnl::load() first.
//
// The functions have the operators' names, and arguments in the operators' order: first those that
// every call needs, then a struct of the others, which has the operators' defaults. They go through
// torch's dispatcher, so that autograd, autocast and every device work as they do in Python. A bad
// call throws what Python shows as an exception: c10::ValueError, c10::TypeError,
// c10::NotImplementedError, all of them c10::Error.
//
//   #include <torch_dnnl.h>
//   torch_dnnl::load();
//   at::Tensor half = torch_dnnl::resample(image, {}, {.scales = {0.5, 0.5}, .antialias = true});
#pragma once

#include <torch_dnnl/convolution.h>           // IWYU pragma: export
#include <torch_dnnl/load.h>                  // IWYU pragma: export
#include <torch_dnnl/quantized_convolution.h> // IWYU pragma: export
#include <torch_dnnl/reorder.h>               // IWYU pragma: export
#include <torch_dnnl/resample.h>              // IWYU pragma: export
