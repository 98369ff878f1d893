"""Our CPU libraries under a sanitizer: that of schemas, shapes and derivatives, and the kernels.

Torch itself is not instrumented; its allocators are seen, so that what lies before and behind each
tensor is known.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from paths import ROOT

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

# As setup.py has them.
CAPABILITIES = {
    "default": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
        *("-mavx2", "-mfma", "-mf16c"),
    ],
}


def capability() -> str:
    """Whose kernels torch_dnnl takes here."""
    used = torch.backends.cpu.get_cpu_capability().lower()
    return next((name for name in ("avx512", "avx2") if used.startswith(name)), "default")


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
    name = capability()
    vectors = [f"-DCPU_CAPABILITY={name.upper()}", f"-DCPU_CAPABILITY_{name.upper()}"]
    vectors += CAPABILITIES[name]
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
