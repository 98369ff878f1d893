# The version for find_package(TorchDnnl VERSION): a major version, or before 1.0 a minor one, is
# compatible with itself.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../../_build.py" _torch_dnnl_version REGEX "^version = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" PACKAGE_VERSION "${_torch_dnnl_version}")

if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
string(REGEX MATCH "^(0\\.)?[0-9]+" _torch_dnnl_series "${PACKAGE_VERSION}")
if("${PACKAGE_FIND_VERSION}." MATCHES "^${_torch_dnnl_series}\\."
   AND PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
