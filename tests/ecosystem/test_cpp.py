"""Headers, CMake's target and the example in C++: built, run and compared with the schemas."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from paths import ROOT

import torch_dnnl
import torch_dnnl.functional as D

pytestmark = pytest.mark.ecosystem

SCRIPTS = Path(sys.executable).parent  # cmake and ninja, of pip


def run(*command):
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of the build of tests/ecosystem/cpp."""
    folder = tmp_path_factory.mktemp("cpp")
    ninja = shutil.which("ninja", path=f"{SCRIPTS}:{os.environ['PATH']}")
    prefixes = f"{torch.utils.cmake_prefix_path};{torch_dnnl.cmake_prefix_path}"
    for command in (
        ("-S", ROOT / "tests" / "ecosystem" / "cpp", "-B", folder, "-G", "Ninja",
         f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DCMAKE_PREFIX_PATH={prefixes}",
         # As torch was compiled, whose inputs of RecordFunction are others without NDEBUG.
         "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"),
        ("--build", folder),
    ):  # fmt: skip
        result = run(SCRIPTS / "cmake", *command)
        assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def calls(programs):
    """What the program of all calls says."""
    result = run(programs / "calls")
    assert result.returncode == 0, result.stderr
    return result


def test_example(programs, tmp_path):
    """It agrees with Python, and runs a model that was compiled in Python."""

    def model(image):
        small = D.resample(image, size=(16, 16), antialias=True)
        layout = {"data_format": "NCX", "weights_format": "OIX"}
        return D.convolution(small, weights, pads_begin=1, pads_end=1, **layout)

    torch.manual_seed(0)
    pixels = torch.randint(256, (1, 64, 64, 3), dtype=torch.uint8)
    image = D.reorder(pixels.permute(0, 3, 1, 2), "nchw", dtype=torch.float32, scale=1 / 255)
    weights = torch.randn(16, 3, 3, 3) / 5
    weights.requires_grad_()
    small = D.resample(image, scale_factor=0.5, mode="lanczos3", antialias=True)
    result = D.conv2d(small, weights, stride=2, padding="same_upper")
    result.square().mean().backward()
    norm = weights.grad.norm().item()

    weights = weights.detach()
    package = tmp_path / "model.pt2"
    with torch.no_grad():
        program = torch.export.export(_Module(model), (image,))
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
    run_there = run(programs / "example" / "main", package)
    assert run_there.returncode == 0, run_there.stderr
    first, second = run_there.stdout.splitlines()
    assert "small [1, 3, 32, 32], convolution [1, 16, 16, 16]" in first
    assert float(first.split()[-1]) == pytest.approx(norm, rel=1e-4)
    assert second.startswith("model [1, 16, 16, 16] of mean ")
    assert float(second.split()[-1]) == pytest.approx(model(image).mean().item(), rel=1e-4)


class _Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def test_defaults_are_those_of_the_schemas(calls):
    """Every function passes every argument of its operator, with the schema's default."""
    passed = {}
    for line in calls.stdout.splitlines():
        operator, argument, value, default = line.split("\t")
        assert value == default, line
        passed.setdefault(operator, []).append(argument)
    schemas = {
        schema.name: [a.name for a in schema.arguments if a.has_default_value()]
        for schema in torch._C._jit_get_all_schemas()
        if re.fullmatch(r"torch_dnnl::(?!\w+_kernels_)\w+", schema.name)
    }
    without = {"torch_dnnl::parse_format", "torch_dnnl::resample_rows"}  # have no defaults
    assert passed == {name: names for name, names in schemas.items() if name not in without}


def test_parameters_have_the_schemas_names():
    """Also those that every call needs, and those of the operators that print nothing."""
    text = "".join(p.read_text() for p in (ROOT / "torch_dnnl" / "include").rglob("*.h"))
    for schema in torch._C._jit_get_all_schemas():
        if re.fullmatch(r"torch_dnnl::(?!\w+_kernels_)\w+", schema.name):
            name = schema.name.removeprefix("torch_dnnl::")
            (parameters,) = re.findall(rf"^inline [^(]+\s{name}\(([^)]*)\) {{$", text, re.MULTILINE)
            needed = [a.name for a in schema.arguments if not a.has_default_value()]
            names = re.findall(r"(\w+)(?: = [^,]+)?(?:,|$)", parameters)
            assert names[: len(needed)] == needed, name


def test_errors(calls, programs, tmp_path):
    """Clear words: before load(), of folders that do not fit, and of bad calls."""
    before, nowhere, rank, strides, dst_size = calls.stderr.splitlines()
    assert before.startswith("Error: reorder: expected torch_dnnl::load()")
    assert nowhere.startswith("Error: torch_dnnl::load: expected path to be the folder")
    assert rank.startswith("ValueError: resample: expected src to be 3-D to 5-D")
    assert strides.startswith("ValueError: convolution: expected strides")
    assert dst_size.startswith("ValueError: convolution_transpose: expected dst_size")
    for record, message in (
        ("torch_version = '2.1.0'\nlibraries = ['_C']\n", "built with torch 2"),
        (f"torch_version = '{torch.__version__}'\nlibraries = ['_C']\n", "/_C.so: cannot open"),
        (f"torch_version = '{torch.__version__}'\n", "to have libraries, got none"),
    ):
        (tmp_path / "_build.py").write_text(record)
        assert message in run(programs / "calls", tmp_path).stderr
    (tmp_path / "_C.so").symlink_to(Path(torch_dnnl.__file__).with_name("_C.so"))
    (tmp_path / "_build.py").write_text(
        f"torch_version = '{torch.__version__}'\nlibraries = ['_C']\n"
    )
    assert "expected a CPU library for" in run(programs / "calls", tmp_path).stderr
