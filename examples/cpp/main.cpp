// torch_dnnl in a C++ program: an image is read as decoders give it, made smaller and sent through
// a convolution, with gradients. A model that was compiled in Python, as an AOTInductor package, is
// run on the same image if its file is named: build/example/main model.pt2
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch_dnnl.h>

#include <exception>
#include <iostream>

namespace {

void run(const char* package) {
  torch_dnnl::load();
  at::manual_seed(0);

  // uint8 [N, H, W, C] to float32 [N, C, H, W] of 0 to 1, in one pass.
  const auto pixels = at::randint(256, {1, 64, 64, 3}, at::kByte);
  const auto image = torch_dnnl::reorder(
      pixels.permute({0, 3, 1, 2}),
      {.dst_format = "nchw", .dtype = at::kFloat, .scale_value = 1. / 255});
  const auto small = torch_dnnl::resample(
      image, {}, {.scales = {0.5, 0.5}, .mode = "lanczos3", .antialias = true});

  const auto weights = (at::randn({16, 3, 3, 3}) / 5).requires_grad_();
  const auto bias = at::zeros({16}).requires_grad_();
  const auto result = torch_dnnl::convolution(
      small,
      weights,
      bias,
      {.strides = {2, 2}, .auto_pad = "same_upper", .data_format = "NCX", .weights_format = "OIX"});
  result.square().mean().backward();
  std::cout << "image " << image.sizes() << ", small " << small.sizes() << ", convolution "
            << result.sizes() << ", gradient of the weights " << weights.grad().sizes()
            << " of norm " << weights.grad().norm().item<float>() << "\n";

  if (package != nullptr) {
    const at::NoGradGuard no_grad;
    torch::inductor::AOTIModelPackageLoader model(package);
    const auto outputs = model.run({image});
    std::cout << "model " << outputs.at(0).sizes() << " of mean "
              << outputs.at(0).mean().item<float>() << "\n";
  }
}

} // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : nullptr);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
