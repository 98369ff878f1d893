"""oneDNN's Resampling, Reorder and Convolution as PyTorch operators.

Importing loads `_C` (schemas, shapes, derivatives), the CPU kernels for this machine's instruction
set and, where they were built and torch has CUDA, the CUDA kernels. From then on
`torch.ops.torch_dnnl.*` exists.
"""

import os
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_dnnl import _libraries

try:
    import torch_dnnl._build as _build
except ImportError:
    raise ImportError(
        "torch_dnnl is not built: run `make` in its source tree, or install it with "
        "`pip install --no-build-isolation .` and start Python in another folder than that of the "
        "sources"
    ) from None

__version__: str = _build.version

#: For CMAKE_PREFIX_PATH, as `torch.utils.cmake_prefix_path` is: find_package(TorchDnnl) finds the
#: target `torch_dnnl::torch_dnnl`, by which C++ programs call the operators (docs/cpp.md).
cmake_prefix_path: str = str(Path(__file__).parent / "share" / "cmake")

_LEVELS = ("default", "avx2", "avx512")  # of instruction sets, each a superset of the one before


def _cpu_level() -> str:
    """The best instruction set that is built and that ATen's kernels use.

    ATen decides, so ATEN_CPU_CAPABILITY=default|avx2|avx512 switches both.
    """
    capability = torch.backends.cpu.get_cpu_capability().lower()
    top = max(i for i, level in enumerate(_LEVELS) if i == 0 or capability.startswith(level))
    built = [level for level in _LEVELS if f"_cpu_{level}" in _build.libraries]
    usable = [level for level in built if level in _LEVELS[: top + 1]]
    if not usable:
        raise ImportError(
            f"torch_dnnl was built for {' and '.join(built)}, and ATen uses {_LEVELS[top]} here "
            "(what the machine has, or ATEN_CPU_CAPABILITY): build torch_dnnl on this machine, "
            "or for all of TORCH_DNNL_CPU=default,avx2,avx512"
        )
    return usable[-1]


def _has_cuda() -> bool:
    return "_cuda" in _build.libraries and torch.version.cuda is not None


def _load_libraries() -> None:
    here = Path(__file__).parent
    # Other libraries that register the same: the tests run the CUDA kernels on the host that way,
    # and those of the CPU under sanitizers.
    core = os.environ.get("TORCH_DNNL_CORE", here / "_C.so")
    cpu = os.environ.get("TORCH_DNNL_LIBRARY", here / f"_cpu_{_cpu_level()}.so")
    paths = [core, cpu]
    if _has_cuda():
        paths += [here / "_cuda.so", here / "_cuda_exact.so"]

    built, running = _build.torch_version, torch.__version__
    problem = "" if built.split(".")[:2] == running.split(".")[:2] else "the versions differ"
    try:
        for path in () if problem else paths:
            _libraries.check_whole(Path(path))
            torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        problem = str(error.__cause__ or error)
    if problem:
        raise ImportError(
            f"torch_dnnl {__version__} was built with torch {built} and does not load into torch "
            f"{running}, which is running ({problem}): build it again, with `make` in its source "
            "tree or `pip install --no-build-isolation --force-reinstall --no-deps .`"
        )


_load_libraries()

from torch_dnnl import _after_import, _flops, formats, functional, nn  # noqa: E402, F401
from torch_dnnl._accelerate import accelerate  # noqa: E402
from torch_dnnl.convert import convert, revert  # noqa: E402
from torch_dnnl.functional import _algorithm  # noqa: E402
from torch_dnnl.functional._algorithm import (  # noqa: E402
    conv_algorithm,
    reorder_algorithm,
    resample_algorithm,
)

if TYPE_CHECKING:
    from torch_dnnl import quantization
    from torch_dnnl.graph.optimize import optimize


def __getattr__(name: str) -> Any:
    """Loads what takes long to import when it is asked for: the rooms that read graphs."""
    if name == "optimize":
        item: Any = import_module("torch_dnnl.graph.optimize").optimize
    elif name in ("inductor", "onnx", "quantization"):
        item = import_module(f"torch_dnnl.{name}")
    else:
        raise AttributeError(f"module 'torch_dnnl' has no attribute {name!r}")
    globals()[name] = item
    return item


def _register_distributed() -> None:
    try:
        import_module("torch_dnnl.distributed")
    except (AttributeError, ImportError) as error:  # DTensor's registration is not public
        warnings.warn(
            f"torch_dnnl: DTensor of torch {torch.__version__} gets no rules for these operators "
            f"({error})",
            stacklevel=2,
        )


# DTensor takes seconds to import: for those who use it.
_after_import.after_import("torch.distributed.tensor", _register_distributed)


def _kernels() -> dict[str, dict[str, list[str]]]:
    """The names of each device's kernels, in order of preference, by operator family."""
    return {
        device: {
            family: names
            for family in (
                "convolution",
                "quantized_convolution",
                "reorder",
                "fake_reorder",
                "resample",
            )
            if (names := _algorithm.kernels(family, device))
        }
        for device in ("cpu", "cuda")
        if device == "cpu" or _has_cuda()
    }


def build_info() -> dict[str, Any]:
    """What was built, with what, and what of it is in use.

    `kernels` has, for each device and family of operators, the names of the kernels in order of
    preference. `algorithm=` and the context managers take these names. torch.profiler shows the
    kernel that ran below the operator that ran it.
    """
    return {
        "version": __version__,
        "built_torch": _build.torch_version,
        "running_torch": str(torch.__version__),
        "cpu_capability": _cpu_level(),
        "cuda_archs": _build.cuda_archs,
        "kernels": _kernels(),
    }


__all__ = [
    "accelerate",
    "build_info",
    "cmake_prefix_path",
    "conv_algorithm",
    "convert",
    "formats",
    "functional",
    "nn",
    "optimize",
    "quantization",
    "reorder_algorithm",
    "resample_algorithm",
    "revert",
]
