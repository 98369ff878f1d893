// Calls every function of the headers with its default options, and prints what reaches the
// operators: a line `operator argument value default` for each argument that has a default in the
// schema. Errors go to stderr. `calls FOLDER` only loads the libraries of a folder.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch_dnnl.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>

namespace {

std::unique_ptr<at::ObserverContext> print(const at::RecordFunction& call) {
  const auto schema = call.operator_schema();
  if (!schema.has_value() || schema->name().rfind("torch_dnnl::", 0) != 0)
    return nullptr;
  for (size_t i = 0; i < schema->arguments().size(); i++) {
    const auto& argument = schema->arguments()[i];
    if (argument.default_value().has_value())
      std::cout << schema->name() << "\t" << argument.name() << "\t" << call.inputs()[i] << "\t"
                << *argument.default_value() << "\n";
  }
  return nullptr;
}

template <class F>
void attempt(F call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    std::cerr << "ValueError: " << error.what_without_backtrace() << "\n";
  } catch (const c10::Error& error) {
    std::cerr << "Error: " << error.what_without_backtrace() << "\n";
  }
}

} // namespace

int main(int argc, char** argv) {
  using namespace torch_dnnl;
  const auto image = at::ones({1, 4, 4, 2}), weights = at::ones({3, 3, 2, 2});
  const auto grad = at::ones({1, 2, 2, 2});
  attempt([&] { reorder(image); }); // before load()
  attempt([&] { load("/nowhere"); });
  if (argc > 1) {
    attempt([&] { load(argv[1]); });
    return 0;
  }
  load();
  load();
  attempt([&] { resample(image.flatten(0, 2), {3}); });
  attempt([&] { convolution(image, weights, {}, {.strides = {1, 2, 3}}); });

  // Derivatives call other operators: only what is called here is printed.
  const c10::InferenceMode no_derivatives;
  at::addGlobalCallback(at::RecordFunctionCallback(print).needsInputs(true));
  attempt([&] { resample(image, {2, 2}); });
  attempt([&] { resample_backward(grad, {4, 2}); });
  attempt([&] { reorder(image); });
  attempt([&] { reorder_backward(image, {1, 4, 4, 2}); });
  attempt([&] { fake_reorder(image, at::kChar); });
  attempt([&] { fake_reorder_backward(image, at::zeros({5}, at::kByte)); });
  attempt([&] { parse_format("nchw"); });
  attempt([&] { convolution(image, weights); });
  attempt([&] { convolution_fused(image, weights); });
  attempt([&] { convolution_packed(image, weights); });
  attempt([&] { pack_weights(weights, {1, 4, 4, 2}); });
  attempt([&] { convolution_transpose(image, weights); });
  attempt([&] { convolution_backward_data(grad, weights, {4, 4}); });
  attempt([&] { convolution_backward_weights(grad, image, {3, 3}); });
  attempt([&] { convolution_fused_backward(grad, grad, "relu", image, weights, {4, 4}, {3, 3}); });
  attempt([&] { quantized_convolution(image.to(at::kByte), weights.to(at::kChar)); });
  attempt([&] { quantized_convolution_packed(image.to(at::kByte), weights.to(at::kChar)); });
  attempt([&] { pack_quantized_weights(weights.to(at::kChar), {1, 4, 4, 2}); });
}
