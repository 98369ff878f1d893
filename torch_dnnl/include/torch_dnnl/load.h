// Loads the libraries of torch_dnnl into a C++ program: torch_dnnl::load().
#pragma once

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace torch_dnnl {

namespace detail {

// The value that the record of a build, lines of `name = value`, has for a name.
inline std::string recorded(const std::string& file, const std::string& name) {
  std::ifstream record(file);
  TORCH_CHECK(
      record.is_open(),
      "torch_dnnl::load: expected path to be the folder of the Python package torch_dnnl, built, "
      "got one without ",
      file);
  for (std::string line; std::getline(record, line);)
    if (line.rfind(name + " = ", 0) == 0)
      return line.substr(name.size() + 3);
  TORCH_CHECK(false, "torch_dnnl::load: expected ", file, " to have ", name, ", got none");
}

// The libraries do not link to each other, and what they register stays: none is ever closed.
inline void load_library(const std::string& file) {
  TORCH_CHECK(
      dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr, "torch_dnnl::load: ", dlerror());
}

// The best CPU library of those that are built for what ATen's kernels use. ATen decides, so that
// ATEN_CPU_CAPABILITY=default|avx2|avx512 switches both.
inline std::string cpu_library(const std::string& libraries) {
  std::string capability = at::get_cpu_capability(); // such as AVX512
  std::transform(capability.begin(), capability.end(), capability.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  constexpr std::string_view levels[] = {"default", "avx2", "avx512"}; // each has the ones before
  size_t top = 0;
  for (size_t i = 0; i < std::size(levels); i++)
    if (capability.rfind(levels[i], 0) == 0)
      top = i;
  std::string best;
  for (size_t i = 0; i <= top; i++) {
    const std::string library = "_cpu_" + std::string(levels[i]);
    if (libraries.find("'" + library + "'") != std::string::npos)
      best = library;
  }
  TORCH_CHECK(
      !best.empty(),
      "torch_dnnl::load: expected a CPU library for ",
      capability,
      ", which ATen uses here, got ",
      libraries,
      ": build torch_dnnl on this machine, or for all of TORCH_DNNL_CPU=default,avx2,avx512");
  return best;
}

} // namespace detail

// Loads the operators, the CPU kernels for this machine and, where they were built and there is a
// GPU, the CUDA kernels. A second call does nothing. `path`: the folder of the Python package
// torch_dnnl; empty: the one that CMake found. Throws c10::Error where nothing fits.
inline void load(std::string path = "") {
#ifdef TORCH_DNNL_LIBRARY_DIR
  if (path.empty())
    path = TORCH_DNNL_LIBRARY_DIR;
#endif
  TORCH_CHECK(
      !path.empty(),
      "torch_dnnl::load: expected path to be the folder of the Python package torch_dnnl, got an "
      "empty one (the target torch_dnnl::torch_dnnl of CMake sets it)");
  const std::string record = path + "/_build.py";
  const std::string built = detail::recorded(record, "torch_version"); // such as '2.13.0+cpu'
  const std::string running =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  TORCH_CHECK(
      built.rfind("'" + running, 0) == 0,
      "torch_dnnl::load: expected libraries built with torch ",
      TORCH_VERSION,
      ", which is running, got ones built with ",
      built);

  const std::string libraries = detail::recorded(record, "libraries");
  detail::load_library(path + "/_C.so");
  detail::load_library(path + "/" + detail::cpu_library(libraries) + ".so");
  if (libraries.find("'_cuda'") != std::string::npos && at::hasCUDA())
    for (const char* name : {"/_cuda.so", "/_cuda_exact.so"})
      detail::load_library(path + name);
}

} // namespace torch_dnnl
