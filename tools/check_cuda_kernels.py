"""Prints which operators have a CUDA kernel; fails if one has none. Needs no GPU, and of the folder
of libraries that it is called with those for CUDA alone."""

import sys
from pathlib import Path

import torch

for library in ("_C", "_cuda", "_cuda_exact"):
    torch.ops.load_library(Path(sys.argv[1], f"{library}.so"))

# What takes no tensor, such as a list of kernels, runs on no device.
names = {
    schema.name
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("torch_dnnl::") and "Tensor" in str(schema)
}
has_kernel = {
    name: torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA")
    for name in sorted(names)
}
for name, found in has_kernel.items():
    print(f"{name.removeprefix('torch_dnnl::'):32}{'CUDA' if found else 'MISSING'}")
missing = list(has_kernel.values()).count(False)
print(f"{len(has_kernel) - missing} of {len(has_kernel)} operators have a CUDA kernel")
sys.exit(missing > 0 or not has_kernel)
