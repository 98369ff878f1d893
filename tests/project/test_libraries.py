"""Each CPU library, whatever this machine's best one is; and what import says."""

import os
import re
import subprocess
import sys

import pytest
import torch
from paths import ROOT, path_of

import torch_dnnl

ORDER = ["default", "avx2", "avx512"]
BEST = torch.backends.cpu.get_cpu_capability().lower()


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.parametrize(
    "capability", [c for c in ORDER if BEST not in ORDER or ORDER.index(c) < ORDER.index(BEST)]
)
def test_values_with_library(capability):
    files = ["values", "reorder_kernels", "reorder_bits", "fake_reorder", "quantized_convolution"]
    result = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--problems=15",
        *map(path_of, files),
        "-k", "matches_oracle or any_layout or kernels or same_bits or match_oracle",
        ATEN_CPU_CAPABILITY=capability,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", result.stdout)[1]) > 100
    shown = run(
        "-c",
        "import torch_dnnl; print(torch_dnnl.build_info()['cpu_capability'])",
        ATEN_CPU_CAPABILITY=capability,
    )
    assert shown.stdout.strip().lower() == capability, shown.stderr


def test_build_info():
    info = torch_dnnl.build_info()
    assert info["version"] == torch_dnnl.__version__
    assert info["running_torch"] == torch.__version__
    assert info["built_torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert info["cuda_archs"] is None or info["cuda_archs"]


def test_every_operator_has_every_kernel():
    # What takes no tensor, such as a list of kernels, runs on no device.
    operators = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torch_dnnl::") and "Tensor" in str(schema)
    }
    assert len(operators) >= 7
    for name in operators:
        for key in ("CPU", "Meta", "Autograd", "FuncTorchBatched"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key), (name, key)
    for key in ("AutocastCPU", "AutocastCUDA"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key("torch_dnnl::convolution", key)
