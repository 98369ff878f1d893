"""Our CPU libraries under a sanitizer: that of schemas, shapes and derivatives, and the kernels.

Torch itself is not instrumented; its allocators are seen, so that what lies before and behind each
tensor is known.
"""

import ast
from collections.abc import Callable
from pathlib import Path

from paths import ROOT

import torch_dnnl
from sanitizers.compiler import (
    INCLUDES,
    KERNELS,
    TORCH,
    Mistake,
    compile_all,
    link,
    product_name,
    sanitize,
)

THREADS = Path(__file__).with_name("threads.h")


def _flags_of(capability: str) -> list[str]:
    """What setup.py compiles a library's vectors with."""
    (flags,) = (
        statement.value
        for statement in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "CPU_FLAGS"
    )
    own: list[str] = eval(ast.unparse(flags))[capability]
    defines = [f"-DCPU_CAPABILITY={capability.upper()}", f"-DCPU_CAPABILITY_{capability.upper()}"]
    return [*defines, *own]


def _flags(sanitizer: str) -> list[str]:
    # ThreadSanitizer does not know what OpenMP's barriers order.
    of_cpp = ["-DINTRA_OP_PARALLEL", "-include", str(THREADS)]
    threads = of_cpp if sanitizer == "thread" else ["-fopenmp"]
    # Kernels are large functions of many vectors: with each access checked in place, or each local
    # variable, the compiler takes minutes for one.
    by_calls = ["--param", "asan-instrumentation-with-call-threshold=0", "--param", "asan-stack=0"]
    small = [*by_calls, "-fno-sanitize-address-use-after-scope"] * (sanitizer == "address")
    return ["-O1", "-DNDEBUG", *KERNELS, *sanitize(sanitizer), *small, *threads, *INCLUDES]


def build(sanitizer: str, mistake: Mistake | None = None) -> dict[str, str]:
    """The environment in which torch_dnnl takes the libraries."""
    vectors = _flags_of(torch_dnnl.build_info()["cpu_capability"])
    parts = {
        "core": (_sources(lambda parts: not parts & {"cpu", "cuda", "python"}), []),
        "cpu": (_sources(lambda parts: "cpu" in parts), vectors),
    }
    built = {}
    for part, (sources, flags) in parts.items():
        flags = [*_flags(sanitizer), *flags]
        planted = []
        if mistake is not None and ROOT / "csrc" / mistake.source in sources:
            sources.remove(ROOT / "csrc" / mistake.source)
            # First: of a header's functions the linker takes those of the first object.
            planted = [mistake.compile(flags)]
        objects = [*planted, *compile_all(sources, flags)]
        product = product_name(part, sanitizer, mistake if planted else None).with_suffix(".so")
        built[part] = link(product, objects, ["-shared", *sanitize(sanitizer), *TORCH])
    return {"TORCH_DNNL_CORE": str(built["core"]), "TORCH_DNNL_LIBRARY": str(built["cpu"])}


def _sources(is_wanted: Callable[[set[str]], bool]) -> list[Path]:
    folder = ROOT / "csrc"
    paths = sorted(folder.rglob("*.cpp"))
    return [path for path in paths if is_wanted(set(path.relative_to(folder).parts))]
