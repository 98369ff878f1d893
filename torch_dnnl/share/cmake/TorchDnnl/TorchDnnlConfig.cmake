# The imported target torch_dnnl::torch_dnnl: headers, and where torch_dnnl::load() finds the libraries,
# which no program links to. TORCH_DNNL_LIBRARY_DIR has that folder, the Python package's.
#
#   find_package(TorchDnnl REQUIRED)
#   target_link_libraries(program torch_dnnl::torch_dnnl)
#
# CMAKE_PREFIX_PATH has to name torch.utils.cmake_prefix_path too.
include(CMakeFindDependencyMacro)
find_dependency(Torch)

get_filename_component(TORCH_DNNL_LIBRARY_DIR "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# The libraries need the minor version of torch that they were built with.
file(STRINGS "${TORCH_DNNL_LIBRARY_DIR}/_build.py" _torch_dnnl_torch REGEX "^torch_version = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+" _torch_dnnl_torch "${_torch_dnnl_torch}")
if(NOT "${Torch_VERSION}." MATCHES "^${_torch_dnnl_torch}\\.")
  set(TorchDnnl_FOUND FALSE)
  set(TorchDnnl_NOT_FOUND_MESSAGE
      "torch_dnnl was built with torch ${_torch_dnnl_torch}, and CMake found torch ${Torch_VERSION}")
  return()
endif()

if(NOT TARGET torch_dnnl::torch_dnnl)
  add_library(torch_dnnl::torch_dnnl INTERFACE IMPORTED)
  target_include_directories(torch_dnnl::torch_dnnl INTERFACE "${TORCH_DNNL_LIBRARY_DIR}/include")
  target_compile_definitions(
    torch_dnnl::torch_dnnl INTERFACE "TORCH_DNNL_LIBRARY_DIR=\"${TORCH_DNNL_LIBRARY_DIR}\"")
  target_compile_features(torch_dnnl::torch_dnnl INTERFACE cxx_std_20)
  target_link_libraries(torch_dnnl::torch_dnnl INTERFACE ${TORCH_LIBRARIES} ${CMAKE_DL_LIBS})
endif()
